"""Fine-tune a small T5: `torchrun --standalone --nproc-per-node 2 train.py train --is_finetune --use_small_config --output DIR`.

Heavy modules are imported where they are first needed: the data is made before torch is loaded, and `--help` needs neither.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import options as command_line
from logbook import Logbook, Stages


class Training:
    """One rank's part of a training: everything that changes from step to step, and the loop."""

    def __init__(self, options: Namespace, *, stages: Stages) -> None:
        load_libraries(stages)
        import checkpoint
        import data
        import library
        import model
        import prepare
        import world
        from evaluation import Evaluator
        from torch.nn.parallel import DistributedDataParallel

        self.meta = prepare.wait(options.data, seconds=options.data_wait)
        stages.done("waiting for data")
        self.world = world.join(timeout_s=options.timeout, bf16=options.bf16)
        stages.done("process group")
        self.options = options
        self.logbook = Logbook(options.output / "metrics.jsonl", speaks=self.world.rank == 0)
        # The same weights on every rank; different dropout afterwards.
        checkpoint.seed_rng(options.seed)
        self.model = model.build(options.size, vocab_size=self.meta["vocab_size"], dropout=options.dropout, pretrained=options.pretrained)
        if options.is_finetune:
            model.freeze_for_finetuning(self.model)
        self.model.to(self.world.device)
        self.optimizer = model.make_optimizer(self.model, lr=options.lr, weight_decay=options.weight_decay)
        self.schedule = model.make_schedule(self.optimizer, warmup=options.warmup, total=options.max_steps)
        self.ddp = DistributedDataParallel(self.model, device_ids=[self.world.local_rank] if self.world.device.type == "cuda" else None)
        checkpoint.seed_rng(options.seed * 1_000_003 + self.world.rank + 1)

        self.step = 0
        self.scores: dict[str, Any] = {"loss": None, "eval_loss": None, "perplexity": None, "eval_step": None}
        self.collate = data.Collate(source_tokens=options.source_tokens, target_tokens=options.target_tokens)
        self.train_rows = data.ArrowRows(options.data / "train.arrow")
        self.eval_rows = data.ArrowRows(options.data / "eval.arrow")
        self.order = data.Order(len(self.train_rows), seed=options.seed)
        self.checkpoints = checkpoint.Checkpoints(options.output / "checkpoints", keep=options.keep, world=self.world)
        self.workers = options.workers if options.workers is not None else int(self.world.device.type == "cuda")
        self.evaluator = Evaluator(
            self.model, self.eval_rows, collate=self.collate, batch_size=options.batch_size, workers=self.workers, world=self.world
        )
        self.guarded = options.guarded and not library.missing
        self.monitor = None
        if options.monitored and not library.missing:
            self.monitor = library.Monitor([library.JSONL(options.output / "monitor.jsonl")], torch_collectives=True)
        stages.done("model")
        self.resumed_from = self._resume()
        stages.done("checkpoint")

    def run(self) -> None:
        """Train up to --max-steps, and leave the model in OUTPUT/model."""
        from library import faults, sync_check
        from model import set_training
        from stop import Stop

        options, stop = self.options, Stop(self.world.device)
        batches = self._batches()
        self.logbook.start(step=self.step, total=options.max_steps, resumed_from=self.resumed_from)
        set_training(self.model)
        spent, tokens, steps = 0.0, 0, 0
        for step in range(self.step + 1, options.max_steps + 1):
            began = time.perf_counter()
            faults.point("train.step", step=step)
            loss, seen = self._optimizer_step(batches)
            self.step, tokens, steps = step, tokens + seen, steps + 1
            values = None
            if step % options.log_every == 0 or step == options.max_steps:
                self.scores["loss"] = loss.item()
                spent += time.perf_counter() - began
                values = {"loss": self.scores["loss"], "lr": self.rate, "tokens_per_s": tokens / spent, "step_s": spent / steps}
                spent, tokens, steps = 0.0, 0, 0
            else:
                spent += time.perf_counter() - began
            self.logbook.step(step, total=options.max_steps, values=values)
            stopped = stop.agreed()
            if step % options.eval_every == 0 and not stopped:
                self._evaluate()
                set_training(self.model)
            if stopped or step % options.save_every == 0 or step == options.max_steps:
                # Raises, and names who differs: ranks that have diverged never get into a checkpoint.
                sync_check(step, model=self.model, loss=loss, every=1)
                self.checkpoints.save(step, self._state())
            if stopped and step < options.max_steps:
                self.logbook.say(f"stopped by {stopped} after step {step}; the same command goes on from there")
                break
        stop.close()
        self._finish()

    def _optimizer_step(self, batches: Iterator[dict[str, Any]]) -> tuple[Any, int]:
        """One step over --accumulate micro-batches. Returns this rank's loss, and the tokens of all ranks as this one estimates them."""
        import torch
        from library import faults

        total, tokens = torch.zeros((), device=self.world.device), 0
        for micro in range(self.options.accumulate):
            batch = next(batches)
            tokens += batch["input_ids"].numel() + batch["labels"].numel()
            last = micro == self.options.accumulate - 1
            with nullcontext() if last else self.ddp.no_sync():
                with self.world.autocast():
                    loss = self.ddp(**self.world.move(batch), use_cache=False).loss / self.options.accumulate
                loss.backward()
            total += loss.detach()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        torch.nn.utils.clip_grad_norm_(trained, self.options.clip)
        self.rate = self.schedule.get_last_lr()[0]
        self.optimizer.step()
        faults.tap("train.weights", trained[0], step=self.step + 1)
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, tokens * self.world.size

    def _batches(self) -> Iterator[dict[str, Any]]:
        """This rank's micro-batches from the next step on."""
        import torch
        from data import Batches
        from stop import leave_to_the_rank

        options = self.options
        sampler = Batches(
            self.order,
            batch_size=options.batch_size,
            rank=self.world.rank,
            world_size=self.world.size,
            start=self.step * options.accumulate,
            stop=options.max_steps * options.accumulate,
        )
        # A generator of its own: the loader would draw from the global one, and a resumed training would have drawn once more.
        return iter(
            torch.utils.data.DataLoader(
                self.train_rows,
                batch_sampler=sampler,
                collate_fn=self.collate,
                num_workers=self.workers,
                worker_init_fn=leave_to_the_rank,
                pin_memory=self.world.device.type == "cuda",
                generator=torch.Generator(),
            )
        )

    def _evaluate(self) -> None:
        began = time.perf_counter()
        score = self.evaluator.guarded(self.step, monitor=self.monitor) if self.guarded else self.evaluator.plain(self.step)
        self.scores.update(eval_loss=score.loss, perplexity=score.perplexity, eval_step=self.step)
        self.logbook.evaluation(self.step, score, seconds=time.perf_counter() - began)

    def _finish(self) -> None:
        """The last evaluation and the model, without a barrier: a rank that is done leaves the group and goes. If it was stopped, it only leaves."""
        import world

        finished = self.step == self.options.max_steps
        if finished and self.scores["eval_step"] != self.step:
            self._evaluate()
        if self.monitor is not None:
            self.monitor.close()
        del self.ddp
        world.leave()
        if finished:
            if self.world.rank == 0:
                self._export(self.options.output / "model")
            self.logbook.record(final=True, step=self.step, **{name: self.scores[name] for name in ("loss", "eval_loss", "perplexity")})
            self.logbook.say(f"final loss {self.scores['loss']!r}, evaluation loss {self.scores['eval_loss']!r} after step {self.step}")
        self.logbook.close()

    def _export(self, target: Path) -> None:
        """The model and its tokenizer as Hugging Face reads them, written whole or not at all."""
        building = target.with_name(f".{target.name}.{os.getpid()}")
        self.model.save_pretrained(building)
        shutil.copy(self.options.data / "tokenizer.json", building)
        shutil.rmtree(target, ignore_errors=True)
        building.rename(target)

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scores": self.scores,
            "course": self._course(),
        }

    def _course(self) -> dict[str, Any]:
        """What decides, together with the state, how a training goes on."""
        names = ("batch_size", "accumulate", "max_steps", "warmup", "lr", "weight_decay", "dropout", "clip", "seed", "source_tokens", "target_tokens")
        return {**{name: getattr(self.options, name) for name in names}, "ranks": self.world.size, "rows": len(self.train_rows)}

    def _resume(self) -> Path | None:
        """Go on from the newest sound checkpoint, if there is one."""
        from checkpoint import restore_rng

        # A restart must go on from what the attempt before it has saved.
        if self.options.fresh and not any(int(os.environ.get(name) or 0) for name in ("UNHANG_ATTEMPT", "TORCHELASTIC_RESTART_COUNT")):
            self.checkpoints.remove_all()
        found = self.checkpoints.load_latest()
        if found is None:
            return None
        path, state = found
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.step, self.scores = state["step"], state["scores"]
        self._settle_buckets()
        changed = [f"{name} was {old}, is {self._course()[name]}" for name, old in state["course"].items() if old != self._course()[name]]
        if changed:
            self.logbook.say(f"warning: not an exact continuation of {path}: {'; '.join(changed)}")
        if len(state["rng"]) == self.world.size:
            restore_rng(state["rng"][self.world.rank])
        return path

    def _settle_buckets(self) -> None:
        """One pass whose gradients are thrown away.

        DDP regroups its gradient buckets after its first pass. In the training that is resumed that was long ago, and on more
        than two ranks the order of summation depends on the grouping.
        """
        with self.world.autocast():
            loss = self.ddp(**self.world.move(self.collate([self.train_rows[0]])), use_cache=False).loss
        loss.backward()
        self.optimizer.zero_grad(set_to_none=True)

    def say_what_is_lacking(self) -> None:
        import library

        lacks = library.lacking(guarded=self.options.guarded, monitored=self.options.monitored)
        if lacks:
            self.logbook.say(f"warning: {lacks}")

    def banner(self, stages: Stages) -> str:
        """What is about to happen, with the numbers."""
        import psutil
        import torch
        from model import parameter_counts

        o, w = self.options, self.world
        trained, frozen = parameter_counts(self.model)
        memory = psutil.virtual_memory()
        per_epoch = len(self.train_rows) // (o.batch_size * w.size)
        lines = {
            "config": f"preset {o.preset}, T5 {o.size}, torch {torch.__version__}, seed {o.seed}",
            "ranks": f"{w.size} on {w.device.type} ({w.backend}), {'bf16' if w.bf16 else 'fp32'}, {torch.get_num_threads()} threads each",
            "parameters": f"{trained:,} trained, {frozen:,} frozen{' (embedding and encoder)' if o.is_finetune else ''}",
            "start from": f"checkpoint {self.resumed_from} (step {self.step})" if self.resumed_from else str(o.pretrained or "fresh weights"),
            "memory": f"{memory.available / 2**30:.2f} GiB free of {memory.total / 2**30:.2f} GiB; rows are mapped from disk, not held",
            "data": f"{o.data}: {len(self.train_rows)} rows, {len(self.eval_rows)} for evaluation, vocabulary {self.meta['vocab_size']}",
            "steps": f"{o.max_steps} of {o.batch_size} rows x {o.accumulate} x {w.size} ranks ({o.max_steps * o.accumulate / per_epoch:.1f} epochs)",
            "ready after": str(stages),
        }
        return "\n".join(f"{name:>12}: {value}" for name, value in lines.items())


def load_libraries(stages: Stages) -> None:
    """Import what takes seconds."""
    # With the collector on, a quarter of the import time goes into looking for garbage among the modules.
    gc.disable()
    import torch

    assert torch
    stages.done("torch")
    import library
    import model
    from transformers.utils.logging import disable_progress_bar

    assert library and model
    disable_progress_bar()
    stages.done("transformers")
    gc.freeze()
    gc.enable()


def train(options: Namespace) -> None:
    stages = Stages()
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        prepare_data(options, missing_only=True)
        stages.done("data")
    training = Training(options, stages=stages)
    training.logbook.say(training.banner(stages))
    training.say_what_is_lacking()
    training.run()


def prepare_data(options: Namespace, *, missing_only: bool = False) -> None:
    """Make the data in a directory that must not exist, or only where it is missing."""
    import prepare
    from tqdm import tqdm

    out = options.data if missing_only else options.out
    if (out / "meta.json").exists():
        if missing_only:
            return
        sys.exit(f"{out} exists already; remove it, or name another --out")
    meta = prepare.prepare(
        out,
        rows=options.rows,
        eval_rows=options.eval_rows,
        vocab=options.vocab,
        seed=options.seed,
        progress=lambda numbers: iter(tqdm(numbers, total=options.rows + options.eval_rows, unit="row", disable=None, leave=False)),
    )
    print(
        f"{out}: {meta['rows']} rows and {meta['eval_rows']} for evaluation on {len(meta['causes'])} causes, vocabulary {meta['vocab_size']}",
        flush=True,
    )


def main() -> None:
    options = command_line.parse()
    if options.verb == "prepare":
        prepare_data(options)
    else:
        options.output.mkdir(parents=True, exist_ok=True)
        train(options)


if __name__ == "__main__":
    main()
