"""DeepSpeed ZeRO-2 classification with evaluations over several data sets that cannot kill it; see README.md."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepspeed
import torch
from data import CLASSES, WORDS, batch, tests
from stop import Stop
from torch import nn

import unhang
from unhang.integrations.deepspeed import evaluate

KEPT = 2  # checkpoints


class Classifier(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, CLASSES))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(words))


class Fault:
    """KIND@STEP:RANK, in the evaluation after that step, in its second batch. `kill` and `sleep` happen in the first attempt of `unhang run` only."""

    KINDS = ("exception", "memory", "sleep", "kill")

    def __init__(self, asked: str, *, rank: int, deadline_s: float) -> None:
        kind, _, where = asked.partition("@")
        step, _, number = where.partition(":")
        if asked and (kind not in self.KINDS or not step.isdecimal() or not number.isdecimal()):
            raise SystemExit(f"--fault is KIND@STEP:RANK with one of {', '.join(self.KINDS)}, not {asked}")
        self._kind = kind if asked and int(number) == rank and os.environ.get("UNHANG_ATTEMPT", "0") == "0" else ""
        self._step = int(step) if asked else -1
        self._deadline_s = deadline_s
        self._batches = 0

    def point(self, step: int, rows: int, batch_size: int) -> None:
        if not self._kind or step != self._step:
            return
        self._batches += 1
        if self._kind == "memory" and rows > batch_size // 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB (injected)")
        if self._batches != 2:
            return
        if self._kind == "exception":
            raise KeyError("a label that the vocabulary lacks (injected)")
        if self._kind == "sleep":
            time.sleep(1.5 * self._deadline_s)
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("deepspeed_eval_output"), help="checkpoints and metrics.jsonl")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eval-every", type=int, default=20, help="steps between evaluations, each followed by a checkpoint; 0: none")
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--eval-batch-size", type=int, default=64)
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds without progress until an evaluation gives a rank up")
    parser.add_argument("--fault", default="", metavar="KIND@STEP:RANK", help=f"what goes wrong in an evaluation: {', '.join(Fault.KINDS)}")
    # DeepSpeed's launcher gives it to every script.
    parser.add_argument("--local_rank", "--local-rank", type=int, default=-1, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    asked = options()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    rank = torch.distributed.get_rank()
    config = {
        "train_micro_batch_size_per_gpu": asked.batch_size,
        "optimizer": {"type": "AdamW", "params": {"lr": 5e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": torch.cuda.is_available() and torch.cuda.is_bf16_supported()},
    }
    engine, *_ = deepspeed.initialize(model=Classifier(), config=config)
    asked.output.mkdir(parents=True, exist_ok=True)
    log = Log(asked.output / "metrics.jsonl", rank)
    if (asked.output / "checkpoints" / "latest").exists():
        engine.load_checkpoint(str(asked.output / "checkpoints"))
    data_sets, stop = tests(), Stop(engine.device)
    fault = Fault(asked.fault, rank=rank, deadline_s=asked.deadline)
    loss = math.nan
    for step in range(engine.global_steps + 1, asked.steps + 1):
        # Dropout of a step is the same whether the training was started again before it or not.
        torch.manual_seed(1_000 * step + rank)
        rows = {name: values.to(engine.device) for name, values in batch(step, rank, asked.batch_size).items()}
        found = nn.functional.cross_entropy(engine(rows["words"]).float(), rows["labels"])
        engine.backward(found)
        engine.step()
        loss = unhang.reduce_metrics({"loss": (found.item(), 1)})["loss"]
        log.write({"step": step, "loss": loss})
        stopped = stop.agreed()
        if not stopped and asked.eval_every and step % asked.eval_every == 0:

            def one(model: Any, rows: Mapping[str, torch.Tensor], step: int = step) -> dict[str, tuple[float, int]]:
                stop.check()
                fault.point(step, len(rows["labels"]), asked.eval_batch_size)
                scores = model(rows["words"]).float()
                right = int((scores.argmax(1) == rows["labels"]).sum())
                each = nn.functional.cross_entropy(scores, rows["labels"], reduction="sum")
                return {"loss": (each.item(), len(scores)), "accuracy": (right, len(scores))}

            result = evaluate(engine, one, data_sets, batch_size=asked.eval_batch_size, deadline=asked.deadline)
            log.write({"step": step, **result.flat()})
            for name, data_set in result.data_sets.items():
                if data_set.why:
                    log.say(f"evaluation after step {step}, {name}: {data_set.why}")
            save(engine, asked.output / "checkpoints", step)
        if stopped and step < asked.steps:
            save(engine, asked.output / "checkpoints", step)
            log.say(f"stopped by {stopped} after step {step}; the same command goes on from there")
            break
    else:
        log.write({"step": engine.global_steps, "finished": True, "loss": loss})
        log.say(f"finished at step {engine.global_steps}, loss {loss:.6f}")
    stop.close()
    torch.distributed.destroy_process_group()


def save(engine: Any, directory: Path, step: int) -> None:
    """A checkpoint of all ranks; the newest `KEPT` stay."""
    engine.save_checkpoint(str(directory), tag=f"step-{step:06}")
    if torch.distributed.get_rank() == 0:
        for old in sorted(directory.glob("step-*"))[:-KEPT]:
            shutil.rmtree(old)


class Log:
    """One JSON line for each step and evaluation, written by rank 0; not-a-number is null."""

    def __init__(self, path: Path, rank: int) -> None:
        self._file = path.open("a") if rank == 0 else None

    def write(self, what: Mapping[str, Any]) -> None:
        if self._file is not None:
            known = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in what.items()}
            self._file.write(json.dumps(known) + "\n")
            self._file.flush()

    def say(self, text: str) -> None:
        if self._file is not None:
            print(text, flush=True)


if __name__ == "__main__":
    main()
