"""Train a ResNet with DDP or FSDP2, and measure it: `torchrun --standalone --nproc-per-node 8 train.py --batch 128 --amp bf16`."""

from __future__ import annotations

import argparse
import gc
import inspect
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoint
import torch
import torch.distributed as dist
from data import Folder, Place, Synthetic, batches, load
from step_clock import StepClock
from stop import Stop
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unhang
from unhang.testing import faults

# He et al., 2015; from 50 on with the stride in the 3x3 convolution, as benchmarks have it.
DEPTHS = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3], 101: [3, 4, 23, 3], 152: [3, 8, 36, 3]}
# Beside the step, what decides how a training goes on.
COURSE = ("data", "batch", "iterations", "warmup", "optimizer", "lr", "amp", "image_size", "samples", "seed", "ranks")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--batch", "--batch-size", type=at_least(1), default=128, help="images of each rank in a step")
    add("--iterations", type=at_least(1), default=50, help="measured steps")
    add("--warmup", type=at_least(0), default=5, help="steps before them, in which the learning rate rises")
    add("--depth", type=int, choices=DEPTHS, default=50)
    add("--width", type=at_least(1), default=64, help="channels of the first layer; fewer make a smaller model")
    add("--image-size", type=at_least(32), default=224)
    add("--data", default="synthetic", help="synthetic; fixed, one batch that stays on the device; or a directory: train/CLASS/FILE, val/CLASS/FILE")
    add("--samples", type=at_least(1), default=100_000, help="synthetic images; a tenth as many for evaluation")
    add("--classes", type=at_least(1), default=1000, help="of synthetic images")
    add("--workers", type=at_least(0), default=4, help="loader processes of each rank")
    add("--optimizer", choices=("sgd", "adamw"), default="sgd")
    add("--lr", type=float, default=0.1, help="highest learning rate; it falls to 0 along a cosine")
    add("--amp", choices=("no", "bf16"), default="no", help="automatic mixed precision")
    add("--strategy", choices=("ddp", "fsdp2"), default="ddp")
    add("--bucket-mb", type=at_least(1), help="gradients that DDP sends together, in MiB (25 if not given)")
    add("--compile", choices=("on", "off"), default="off", help="torch.compile")
    add("--cudnn-benchmark", choices=("on", "off"), default="on", help="let cuDNN choose its algorithms by trying them")
    add("--seed", type=at_least(0), default=0)
    add("--output", type=Path, help="metrics.jsonl and checkpoints; training resumes from the newest. Nothing is written without it")
    add("--save-every", type=at_least(0), default=0, help="steps between checkpoints; 0: one at the end")
    add("--eval-every", type=at_least(0), default=0, help="steps between evaluations; 0: none")
    add("--log-every", type=at_least(1), default=50, help="steps between log lines, which wait for the device")
    asked = parser.parse_args()
    if asked.strategy == "fsdp2" and asked.bucket_mb:
        parser.error("--bucket-mb is for DDP; FSDP2 sends the gradients of each stage together")
    if asked.save_every and not asked.output:
        parser.error("--save-every needs --output")
    return asked


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def build(depth: int, *, width: int, classes: int) -> nn.Module:
    """A ResNet with fresh weights; the published ones have `width` 64."""
    from transformers.models.resnet.configuration_resnet import ResNetConfig
    from transformers.models.resnet.modeling_resnet import ResNetForImageClassification

    layer, outputs = ("basic", width) if depth < 50 else ("bottleneck", 4 * width)
    sizes = [outputs * 2**stage for stage in range(4)]
    return ResNetForImageClassification(
        ResNetConfig(embedding_size=width, hidden_sizes=sizes, depths=DEPTHS[depth], layer_type=layer, num_labels=classes)
    )


def shard(model: nn.Module, device: torch.device) -> nn.Module:
    """The same model under FSDP2, each stage gathered by itself. Raises SystemExit if this torch lacks it."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise SystemExit(f"--strategy fsdp2 needs torch 2.6 or newer; this is torch {torch.__version__}.\nTry: --strategy ddp") from None
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for stage in model.resnet.encoder.stages:
        fully_shard(stage, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Training:
    """One rank's part of a training. `whole` is the model that is evaluated: its forward needs no other rank."""

    def __init__(self, asked: argparse.Namespace, device: torch.device) -> None:
        self.asked, self.device = asked, device
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.course = {name: str(value) for name, value in {**vars(asked), "ranks": self.ranks}.items() if name in COURSE}
        self.total = asked.warmup + asked.iterations
        self.train_data, self.eval_data = data_sets(asked)
        if len(self.train_data) < asked.batch * self.ranks:
            raise SystemExit(f"{len(self.train_data)} images are fewer than one batch of {asked.batch} on each of {self.ranks} ranks.")
        torch.backends.cudnn.benchmark = asked.cudnn_benchmark == "on"
        # The same weights on every rank.
        torch.manual_seed(asked.seed)
        shape = {"width": asked.width, "classes": self.train_data.classes}
        self.whole = model = build(asked.depth, **shape).to(device)
        if asked.compile == "on":
            for part in model.resnet.encoder.stages if asked.strategy == "fsdp2" else [model]:
                part.compile()
        if asked.strategy == "fsdp2":
            self.model = shard(model, device)
            self.whole = build(asked.depth, **shape).to(device) if asked.eval_every else model
        else:
            # Statistics are averaged where they are used, as under FSDP2, and not sent in each step. torch 2.13 has renamed the option.
            sync = "forward_sync_buffers" if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters else "broadcast_buffers"
            self.model = DistributedDataParallel(model, bucket_cap_mb=asked.bucket_mb or 25, gradient_as_bucket_view=True, **{sync: False})
        optimizers = {"sgd": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-4}), "adamw": (torch.optim.AdamW, {"weight_decay": 0.05})}
        kind, more = optimizers[asked.optimizer]
        self.optimizer = kind(self.model.parameters(), lr=asked.lr, **more)
        self.clock = StepClock(device)
        self.losses: list[torch.Tensor] = []
        self.scores: dict[str, Any] = {"loss": None}
        self.step = self.start = 0
        self.file = None
        self.stop: Stop | None = None
        if asked.output:
            asked.output.mkdir(parents=True, exist_ok=True)
            self.file = (asked.output / "metrics.jsonl").open("a", encoding="utf-8") if self.rank == 0 else None
            self._resume()

    def run(self) -> dict[str, Any]:
        """Train to the last step. Returns what was measured, the same on all ranks."""
        asked, source = self.asked, self._batches()
        # Without --output nothing could be kept.
        self.stop = stop = Stop(self.device) if asked.output else None
        self.model.train()
        for step in range(self.start + 1, self.total + 1):
            self.step = step
            faults.point("train.step", step=step)
            self._step(step, *self.clock.next(source))
            self.clock.end()
            stopped = stop.agreed() if stop else ""
            evaluates, logs = not stopped and self._is_due(step, asked.eval_every), self._is_due(step, asked.log_every)
            saves = asked.output and (stopped or step == self.total or self._is_due(step, asked.save_every))
            if logs or evaluates or saves:
                self._log(step)
            if evaluates or saves:
                self._average_statistics()
            if saves:
                # First: a scheduler does not wait for an evaluation.
                checkpoint.save(asked.output, self.model, self.optimizer, step=step, course=self.course)
            if evaluates:
                self._evaluate(step)
            if stopped and step < self.total:
                self.say(f"stopped by {stopped} after step {step}; the same command goes on from there")
                break
        if stop:
            stop.close()
        measured = self.clock.results(images=asked.batch * self.ranks, skip=asked.warmup)
        return {"step": self.step, **self.scores, "chance_loss": math.log(self.train_data.classes), **measured}

    def _is_due(self, step: int, every: int) -> bool:
        return every > 0 and (step % every == 0 or step == self.total)

    def _batches(self) -> Iterator[Any]:
        order = {"batch": self.asked.batch, "rank": self.rank, "ranks": self.ranks, "seed": self.asked.seed}
        if self.asked.data != "fixed":
            sampler = batches(len(self.train_data), start=self.start, stop=self.total, **order)
            return iter(load(self.train_data, workers=self.asked.workers, batch_sampler=sampler))
        first = next(iter(load(self.train_data, workers=0, batch_sampler=batches(len(self.train_data), start=0, stop=1, **order))))
        return itertools.repeat([part.to(self.device) for part in first])

    def _step(self, step: int, images: torch.Tensor, labels: torch.Tensor) -> None:
        measured = step - self.asked.warmup
        rises = step / (self.asked.warmup + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = self.asked.lr * (rises if measured < 1 else 0.5 + 0.5 * math.cos(math.pi * (measured - 1) / self.asked.iterations))
        loss = cross_entropy(self._logits(self.model, images), labels.to(self.device, non_blocking=True))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    def _logits(self, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        pixels = images.to(self.device, non_blocking=True).float() / 127.5 - 1
        if self.device.type == "cuda":
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.asked.amp != "no"):
            return model(pixel_values=pixels).logits.float()

    def _log(self, step: int) -> None:
        """Mean losses of all ranks, of the steps since the last time."""
        losses = torch.stack(self.losses)
        dist.all_reduce(losses)
        means = (losses / self.ranks).tolist()
        self.losses.clear()
        self.clock.collect()
        for number, loss in enumerate(means, step - len(means) + 1):
            self.write(step=number, loss=loss)
        self.scores["loss"] = means[-1]
        self.say(f"step {step}/{self.total}  loss {means[-1]:.4f}")

    def _average_statistics(self) -> None:
        """Make running means and variances, which each rank has of its own images, the same on all."""
        statistics = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        total = torch.cat([buffer.flatten() for buffer in statistics])
        dist.all_reduce(total)
        for buffer, mean in zip(statistics, (total / self.ranks).split([buffer.numel() for buffer in statistics]), strict=True):
            buffer.copy_(mean.view_as(buffer))

    def _evaluate(self, step: int) -> None:
        """Loss and accuracy over the images for evaluation, each once; None where that failed. Nothing inside waits for another rank."""
        if self.asked.strategy == "fsdp2":
            self.whole.load_state_dict(get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True)))
        mine = [(index, 0) for index in range(self.rank, len(self.eval_data), self.ranks)]
        result = unhang.evaluate(self._test, {"eval": mine}, batch_size=self.asked.batch, step=step, model=self.whole)
        found: dict[str, Any] = {"eval_attempts": result.attempts}
        if result.ok:
            found |= {f"eval_{name}": value for name, value in result.data_sets["eval"].metrics.items()}
        else:
            found |= {"eval_loss": None, "eval_accuracy": None, "eval_failed": result.says}
        self.scores.update(found)
        self.write(step=step, **found)
        self.say(f"step {step}/{self.total}  evaluation: {', '.join(f'{name[5:]} {value}' for name, value in found.items())}")

    def _test(self, places: list[Place], batch: int) -> Iterator[dict[str, tuple[float, int]]]:
        if self.stop:
            self.stop.check()
        for images, labels in load(self.eval_data, workers=self.asked.workers, sampler=places, batch_size=batch):
            faults.point("evaluate.batch", step=self.step)
            if self.stop:
                self.stop.check()
            with torch.no_grad():
                logits, labels = self._logits(self.whole, images), labels.to(self.device)
                loss, right = cross_entropy(logits, labels, reduction="sum"), (logits.argmax(1) == labels).sum()
            yield {"loss": (loss.item(), len(labels)), "accuracy": (int(right), len(labels))}

    def _resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        state = checkpoint.find_newest(self.asked.output)
        if state is None:
            return
        if self.asked.strategy == "ddp":
            # DDP groups gradients anew after its first pass, and with three or more ranks the order of summation depends on the groups.
            self._logits(self.model, torch.zeros(self.asked.batch, 3, self.asked.image_size, self.asked.image_size)).sum().backward()
            self.optimizer.zero_grad(set_to_none=True)
        whole = StateDictOptions(full_state_dict=True)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=whole)
        self.start = state["step"]
        changed = [f"{name} was {old}, is {self.course[name]}" for name, old in state["course"].items() if old != self.course[name]]
        self.say(f"goes on after step {self.start}" + (f", not exactly: {', '.join(changed)}" if changed else ""))
        self.write(start=self.start)

    def write(self, **values: Any) -> None:
        if self.file:
            print(json.dumps(values), file=self.file, flush=True)

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)


def data_sets(asked: argparse.Namespace) -> tuple[Any, Any]:
    """Images for training and for evaluation."""
    if asked.data in ("synthetic", "fixed"):
        more = {"classes": asked.classes, "size": asked.image_size}
        return Synthetic(asked.samples, **more), Synthetic(math.ceil(asked.samples / 10), first=asked.samples, **more)
    train = Folder(Path(asked.data, "train"), size=asked.image_size, is_training=True)
    return train, Folder(Path(asked.data, "val"), size=asked.image_size, is_training=False) if asked.eval_every else None


def join() -> torch.device:
    """Join the process group that the launcher describes, or make one of one; NCCL's variables are left as they are."""
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    alone = {} if "MASTER_ADDR" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **alone)
    return device


def setup(asked: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """What was measured, and on what."""
    found = {"model": f"resnet{asked.depth}", **{name: getattr(asked, name) for name in ("width", "batch", "amp", "strategy", "data", "image_size")}}
    found |= {"ranks": dist.get_world_size(), "backend": dist.get_backend(), "torch": torch.__version__, "device": device.type}
    if device.type == "cuda":
        found |= {"device": torch.cuda.get_device_name(device), "cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return found


def main() -> None:
    asked = parse()
    training = Training(asked, join())
    training.say(json.dumps({**training.run(), **setup(asked, training.device)}))
    # Gloo's threads end with the last reference to the group; one that runs while Python shuts down can abort the process.
    del training
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
