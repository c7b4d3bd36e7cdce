"""Joins a process group, reduces a little and then what was asked for, and leaves."""

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
    parser.add_argument("--elements", type=int, default=1000)
    arguments = parser.parse_args()
    timeout = datetime.timedelta(seconds=arguments.timeout_s)
    dist.init_process_group(arguments.backend, timeout=timeout)
    for elements in (8, arguments.elements):
        tensor = torch.ones(elements)
        dist.all_reduce(tensor)
        if int(os.environ["RANK"]) == 0:
            print(f"{dist.get_world_size()} ranks, sum {tensor.sum().item():.0f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
