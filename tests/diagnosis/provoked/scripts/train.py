"""A small DDP training on Gloo, and the ways in which it can be made to fail."""

from __future__ import annotations

import argparse
import datetime
import gc
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
    if step == 3 and fault == "odd-exception" and rank == 2:
        raise ValueError("sample 8841 has no label")
    return torch.ones(2, 4)


def grow() -> None:
    kept = []
    for _ in range(4000):
        kept.append(b"x" * (1 << 20))


def train(fault: str, rank: int) -> None:
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        batch = read_batch(fault, rank, step)
        if step == 3 and rank == 1 and fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 3 and rank == 1 and fault == "grows":
            grow()
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--timeout-s", type=float, default=30)
    arguments = parser.parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=arguments.timeout_s))
    train(arguments.fault, dist.get_rank())
    # The model and its graph are gone here: a reducer that outlives the group can abort the process while Python ends (torch 2.13).
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


main()
