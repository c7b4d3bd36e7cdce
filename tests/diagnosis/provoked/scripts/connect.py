"""Joins a process group, reduces once, and leaves."""

from __future__ import annotations

import argparse
import datetime
import os

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--timeout-s", type=float, default=20)
    parser.add_argument("--elements", type=int, default=8)
    arguments = parser.parse_args()
    timeout = datetime.timedelta(seconds=arguments.timeout_s)
    dist.init_process_group(arguments.backend, timeout=timeout)
    tensor = torch.ones(arguments.elements)
    dist.all_reduce(tensor)
    if int(os.environ["RANK"]) == 0:
        print(f"{dist.get_world_size()} ranks, sum {tensor.sum().item():.0f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
