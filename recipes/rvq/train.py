"""Train a residual vector-quantised autoencoder of skeletal motion; see README.md."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from autoencoder import FRAMES_PER_CODE, Autoencoder, codebook_use, watch
from batches import Cache, Schedule, Sequences, Window, ahead, cached, first_windows, loaded
from motion import Gaits, MotionError, Recorded
from stop import Stop
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import unhang
from unhang.testing import faults

HELD_OUT_EVERY = 10  # each tenth sequence is for validation
MEASURED = 256  # sequences from which mean and standard deviation are taken
KEPT = 2  # checkpoints


class Training:
    """One rank's part of the training."""

    def __init__(self, options: argparse.Namespace, motions: Gaits | Recorded, *, rank: int, world_size: int, device: torch.device) -> None:
        self.options, self.rank, self.world_size, self.device = options, rank, world_size, device
        numbers = np.arange(len(motions.lengths))
        held_out = numbers % HELD_OUT_EVERY == 0
        self.buckets = options.lengths if options.multi_length_training else [options.length]
        self.sequences, self.lengths, self.training_numbers = Sequences(motions), motions.lengths, numbers[~held_out]
        self.validation = first_windows(numbers[held_out], motions.lengths, self.buckets)[rank::world_size]
        torch.manual_seed(options.seed)
        std, mean = torch.std_mean(torch.cat([self.sequences.whole(int(i)) for i in self.training_numbers[:MEASURED]]), dim=0)
        # A channel that never moves has no scale of its own.
        self.model = Autoencoder(mean, std.clamp(min=1e-3), width=options.width, quantizers=options.quantizers, codes=options.codes).to(device)
        # Rank 0's buffers in every step would hide codebooks that differ between ranks; `sync_check` compares them. torch 2.13 renamed the option.
        renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
        unsent: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        self.ddp = DistributedDataParallel(self.model, device_ids=[device] if device.type == "cuda" else None, **unsent)
        self.watched = watch(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.counts = torch.zeros(options.quantizers, options.codes, dtype=torch.int64, device=device)
        # Revived codes are drawn from the rank's own batch.
        torch.manual_seed(options.seed * 1_000_003 + rank + 1)
        self.step = 0
        self.file = (options.output / "metrics.jsonl").open("ab", buffering=0) if rank == 0 else None
        self.cache: Cache | None = None

    def run(self) -> None:
        options, stop = self.options, Stop(self.device)
        self._resume()
        batches = self._batches()
        for step in range(self.step + 1, options.steps + 1):
            faults.point("train.step", step=step)
            error, commitment, codes, _ = self.ddp(next(batches))
            loss = error + commitment
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.step = step
            by_quantizer = codes.flatten(0, 1).T
            self.counts.scatter_add_(1, by_quantizer, torch.ones_like(by_quantizer))
            faults.tap("train.codebook", self.watched["codebooks"]["layers_0__codebook_embed_avg"], step=step)
            stopped = stop.agreed()
            saves = bool(stopped) or step % options.save_every == 0 or step == options.steps
            # No checkpoint of ranks that differ.
            unhang.sync_check(step, model=self.watched, loss=loss, every=1 if saves else options.sync_check_every)
            if step % options.log_every == 0 or step == options.steps:
                self._report(error.item(), commitment.item())
            if step == options.steps or (not stopped and step % options.eval_every == 0):
                self._evaluate()
            if saves:
                self._save()
            if stopped:
                self.say(f"stopped by {stopped} after step {step}; the same command goes on from there")
                break
        else:
            self.write({"step": self.step, "finished": True})
            self.say(f"finished at step {self.step}")
        if self.cache is not None:
            self.say(f"cache: {self.cache.hits} hits, {self.cache.misses} misses, {self.cache.held_bytes / 2**20:.1f} MiB held")
        stop.close()

    def _batches(self) -> Iterator[torch.Tensor]:
        options = self.options
        of_rank = {"batch_size": options.batch_size, "rank": self.rank, "world_size": self.world_size, "steps": range(self.step, options.steps)}
        try:
            schedule = Schedule(self.training_numbers, self.lengths, buckets=self.buckets, seed=options.seed, **of_rank)
        except ValueError as e:
            sys.exit(f"train.py: {e}")
        self.say(
            f"{self.world_size} ranks on {self.device.type}, steps {self.step + 1} to {options.steps} of {options.batch_size} windows of"
            f" {' or '.join(map(str, self.buckets))} frames on each rank, {schedule.steps_per_epoch} steps an epoch"
        )
        budget_bytes = int(options.gpu_cache * self.lengths.mean() * len(self.model.mean) * 4)
        reading = {"workers": options.workers, "pin_memory": options.pin_memory}
        if budget_bytes:
            self.cache = Cache(self.sequences.whole, budget_bytes=budget_bytes, device=self.device)
            batches = cached(self.cache, schedule, **reading)
        else:
            batches = loaded(self.sequences, schedule, device=self.device, **reading)
        return ahead(batches, depth=options.prefetch, device=self.device) if options.prefetch else batches

    def _report(self, error: float, commitment: float) -> None:
        counts = self.counts.clone()
        unhang.all_reduce(counts)
        self.counts.zero_()
        use = codebook_use(counts)
        found = unhang.reduce_metrics({"reconstruction": error, "commitment": commitment})
        self.write({"step": self.step, **found, **use})
        shown = ", ".join(f"{perplexity:.0f}" for perplexity in use["perplexity"])
        self.say(f"step {self.step}/{self.options.steps}  reconstruction {found['reconstruction']:.4f}  perplexity {shown}")

    def _evaluate(self) -> None:
        """Each rank takes its own windows, without collectives: ranks may have different numbers of batches."""

        def validate(windows: list[Window], batch_size: int) -> Iterator[dict[str, tuple[float, int]]]:
            for length in self.buckets:
                alike = [window for window in windows if window[2] == length]
                for first in range(0, len(alike), batch_size):
                    faults.point("evaluate.batch", step=self.step)
                    motion = torch.stack([self.sequences[window] for window in alike[first : first + batch_size]]).to(self.device)
                    error, _, _, mean_pose = self.model(motion)
                    values = motion.numel()
                    yield {"reconstruction": (error.item() * values, values), "mean_pose": (mean_pose.item() * values, values)}

        result = unhang.evaluate(validate, {"validation": self.validation}, batch_size=self.options.batch_size, step=self.step, model=self.model)
        self.write({"step": self.step, **result.flat()})
        if result.ok:
            shown = "reconstruction {reconstruction:.4f}, mean pose {mean_pose:.4f}".format(**result.data_sets["validation"].metrics)
            self.say(f"step {self.step}  validation: {shown}")
        else:
            self.say(f"step {self.step}  validation failed, the training goes on: {result.says}")

    def write(self, values: Mapping[str, Any]) -> None:
        """One line of JSON, by rank 0; what is not a number is null."""
        if self.file:
            self.file.write(msgspec.json.encode(values) + b"\n")

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def _save(self) -> None:
        """One file, written beside its place, synced and renamed; the newest two stay."""
        of_ranks: list[Any] = [None] * self.world_size
        cuda = torch.cuda.get_rng_state() if self.device.type == "cuda" else None
        dist.all_gather_object(of_ranks, {"host": torch.get_rng_state(), "cuda": cuda, "counts": self.counts.cpu()})
        if self.rank != 0:
            return
        directory = self.options.output / "checkpoints"
        directory.mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "ranks": of_ranks}
        building = directory / "building"
        with building.open("wb") as file:
            torch.save({**state, "step": self.step, "course": self._course()}, file)
            file.flush()
            os.fsync(file.fileno())
        building.replace(directory / f"step-{self.step:08}.pt")
        for old in sorted(directory.glob("step-*.pt"))[:-KEPT]:
            old.unlink()

    def _course(self) -> dict[str, Any]:
        """What decides, together with the state, how the training goes on."""
        course = {name: getattr(self.options, name) for name in ("batch_size", "codes", "lr", "quantizers", "seed", "width")}
        return {**course, "ranks": self.world_size, "buckets": self.buckets, "sequences": len(self.lengths), "frames": int(self.lengths.sum())}

    def _resume(self) -> None:
        """Go on from the newest checkpoint. Rank 0 chooses, so that no two ranks go on from different steps."""
        chosen = [max(map(str, (self.options.output / "checkpoints").glob("step-*.pt")), default=None) if self.rank == 0 else None]
        dist.broadcast_object_list(chosen, src=0)
        if chosen[0] is None:
            return
        state = torch.load(chosen[0], map_location="cpu", weights_only=True)
        self._restore(state)
        # DDP regroups its gradients after its first pass, and with three ranks or more the groups decide the order of summation.
        error, commitment, *_ = self.ddp(torch.randn(self.options.batch_size, self.buckets[0], len(self.model.mean), device=self.device))
        (error + commitment).backward()
        self.optimizer.zero_grad(set_to_none=True)
        self._restore(state)
        changed = [name for name, value in self._course().items() if value != state["course"][name]]
        self.say(f"going on from {chosen[0]}" + (f"; not exactly: other {', '.join(changed)}" if changed else ""))

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        if len(state["ranks"]) == self.world_size:
            mine = state["ranks"][self.rank]
            torch.set_rng_state(mine["host"])
            self.counts.copy_(mine["counts"])
            if mine["cuda"] is not None and self.device.type == "cuda":
                torch.cuda.set_rng_state(mine["cuda"])


def multiple(of: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not int(text) or int(text) % of:
            raise argparse.ArgumentTypeError(f"{text} is no multiple of {of}")
        return int(text)

    return number


def options() -> argparse.Namespace:
    whole, frames = multiple(1), multiple(FRAMES_PER_CODE)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, kind, default, says in (
        ("--output", Path, Path("rvq_output"), "checkpoints and metrics.jsonl"),
        ("--data", Path, None, "a .bvh or .npz file, or a directory of them; without it motion is made"),
        ("--sequences", whole, 10_000, "how many are made without --data"),
        ("--steps", whole, 300, "optimizer steps"),
        ("--batch-size", whole, 64, "windows of each rank in a step"),
        ("--length", frames, 64, "frames of a window"),
        ("--lengths", lambda text: [frames(one) for one in text.split(",")], [64, 96, 128, 192], "with --multi-length-training"),
        ("--width", whole, 64, "channels of the convolutions"),
        ("--quantizers", whole, 4, "codebooks, each for what the ones before leave"),
        ("--codes", whole, 128, "of each codebook"),
        ("--lr", float, 1e-3, "learning rate of AdamW"),
        ("--seed", int, 0, "of weights, order and made motion"),
        ("--log-every", whole, 20, "steps"),
        ("--eval-every", whole, 100, "steps"),
        ("--save-every", whole, 100, "steps"),
        ("--sync-check-every", whole, 100, "steps between comparisons of all ranks; they are also compared before each checkpoint"),
        ("--workers", int, 0, "loader processes of each rank"),
        ("--gpu-cache", int, 0, "keep sequences on the device: as many bytes as so many of mean length take"),
        ("--prefetch", int, 0, "batches made ahead, on a GPU by a stream of their own"),
        ("--timeout", float, 1800.0, "seconds until a collective gives up"),
    ):
        # Also with underscores, and loader workers by their usual name.
        spellings = dict.fromkeys((name, "--" + name[2:].replace("-", "_"), *(("--num-workers", "--num_workers") if name == "--workers" else ())))
        parser.add_argument(*spellings, type=kind, default=default, help=says)
    parser.add_argument("--multi-length-training", "--multi_length_training", action="store_true", help="windows of all --lengths, one length a step")
    parser.add_argument("--use-gpu-cache", "--use_gpu_cache", dest="gpu_cache", action="store_const", const=5000, help="the same as --gpu-cache 5000")
    parser.add_argument("--pin-memory", "--pin_memory", action="store_true", help="page-locked batches, whose copies the host does not wait for")
    return parser.parse_args()


def join(timeout_s: float) -> tuple[int, int, torch.device]:
    """Rank, world size and device in the group that the launcher describes, or in one of one."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    elif int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        # Ranks that each use every core slow each other down many times over.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    launched: dict[str, Any] = {} if "MASTER_ADDR" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout_s), **launched)
    return dist.get_rank(), dist.get_world_size(), device


def main() -> None:
    asked = options()
    try:
        motions = Recorded(asked.data) if asked.data else Gaits(asked.sequences, seed=asked.seed)
    except MotionError as e:
        sys.exit(f"train.py: {e}")
    asked.output.mkdir(parents=True, exist_ok=True)
    rank, world_size, device = join(asked.timeout)
    Training(asked, motions, rank=rank, world_size=world_size, device=device).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
