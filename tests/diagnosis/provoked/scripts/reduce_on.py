"""Reduces a tensor of the CPU in a group that was made for `--backend`."""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="cpu:gloo,cuda:gloo")
arguments = parser.parse_args()
dist.init_process_group(arguments.backend)
dist.all_reduce(torch.ones(3))
dist.barrier(device_ids=None)
dist.destroy_process_group()
print("reduced")
