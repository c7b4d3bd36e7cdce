"""Starts its ranks by itself, with torch.multiprocessing.spawn."""

from __future__ import annotations

import argparse
import datetime
import os
import signal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def augment(fault: str) -> torch.Tensor:
    if fault == "exception":
        raise RuntimeError("crop 512 is larger than the image (480, 640)")
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.ones(4)


def work(rank: int, world: int, port: int, fault: str) -> None:
    # Before the group is made: a Gloo thread that outlives Python would now and then end the process before it has told of its exception.
    batch = augment(fault if rank == 1 else "")
    store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=20))
    dist.all_reduce(batch)
    dist.destroy_process_group()
    print(f"reduced on rank {rank}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fault", default="")
    arguments = parser.parse_args()
    mp.spawn(work, args=(2, arguments.port, arguments.fault), nprocs=2)
