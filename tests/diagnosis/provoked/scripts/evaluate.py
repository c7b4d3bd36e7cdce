"""Reduces metrics over the ranks after a few steps without gradients; and the ways in which ranks fail to do the same."""

from __future__ import annotations

import argparse
import datetime

import torch
import torch.distributed as dist


def reduce_metrics(fault: str, rank: int) -> None:
    metrics = torch.ones(5 if fault == "sizes" and rank == 1 else 4)
    if fault == "operations" and rank == 1:
        dist.broadcast(metrics, src=1)
    else:
        dist.all_reduce(metrics)


def save(fault: str, rank: int) -> None:
    if fault == "guarded" and rank == 0:
        dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--timeout-s", type=float, default=30)
    arguments = parser.parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=arguments.timeout_s))
    rank = dist.get_rank()
    for step in range(4):
        dist.all_reduce(torch.ones(4))
        if step == 2:
            save(arguments.fault, rank)
            reduce_metrics(arguments.fault, rank)
    dist.barrier()
    dist.destroy_process_group()
    print(f"evaluated on rank {rank}")


main()
