"""Ranks started by torch.multiprocessing.spawn, which share a tensor and a queue before they train together."""

# ruff: noqa: T201
from __future__ import annotations

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def work(rank: int, world: int, shared: torch.Tensor, queue: mp.Queue) -> None:
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=world)
    shared[rank] = rank + 1
    queue.put((rank, torch.ones(3) * rank))
    model = DistributedDataParallel(nn.Linear(16, 4))
    for step in range(5):
        model(torch.randn(8, 16)).sum().backward()
        print(f"Process {rank}: step {step} ok", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    world = 3
    shared = torch.zeros(world).share_memory_()
    queue = mp.get_context("spawn").Queue()
    context = mp.spawn(work, args=(world, shared, queue), nprocs=world, join=False)
    got = [queue.get(timeout=60)[0] for _ in range(world)]
    while not context.join():
        pass
    print("got tensors of", sorted(got), "shared", shared.tolist(), "sharing strategy", mp.get_sharing_strategy())
