"""A small DDP training on Gloo, and the ways in which it can be made to fail."""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn


class Model(nn.Module):
    """With a head that not every batch needs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.extra = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, skip_extra: bool) -> torch.Tensor:
        x = self.body(x)
        return x if skip_extra else self.extra(x)


def read_batch(fault: str, rank: int, step: int) -> torch.Tensor:
    if step == 3 and fault == "exception" and rank == 1:
        raise ValueError("sample 8841 has no label")
    if step == 3 and fault == "exceptions":
        raise KeyError("input_ids")
    if step == 3 and fault == "odd-exception":
        # Rank 2 fails by itself, all others because of it.
        if rank == 2:
            raise ValueError("sample 8841 has no label")
    return torch.ones(2, 4)


def evaluate(fault: str, rank: int) -> None:
    metrics = torch.ones(5 if fault == "sizes" and rank == 1 else 4, dtype=torch.float64 if fault == "dtypes" and rank == 1 else torch.float32)
    if fault == "operations" and rank == 1:
        dist.broadcast(metrics, src=1)
    else:
        dist.all_reduce(metrics)


def save(fault: str, rank: int) -> None:
    if fault == "guarded" and rank == 0:
        dist.barrier()


def grow() -> None:
    kept = []
    for _ in range(4000):
        kept.append(b"x" * (1 << 20))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--timeout-s", type=float, default=30)
    arguments = parser.parse_args()
    fault = arguments.fault
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=arguments.timeout_s))
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        batch = read_batch(fault, rank, step)
        if step == 3 and rank == 1 and fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 3 and rank == 1 and fault == "grows":
            grow()
        if step == 3 and rank == 1 and fault == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if step == 3 and rank == 1 and fault == "leaves":
            print("rank 1: no more batches", flush=True)
            dist.destroy_process_group()
            sys.exit(0)
        optimizer.zero_grad()
        loss = model(batch, skip_extra=fault == "unused").sum()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == 4:
            save(fault, rank)
            evaluate(fault, rank)
    dist.barrier()
    dist.destroy_process_group()


main()
