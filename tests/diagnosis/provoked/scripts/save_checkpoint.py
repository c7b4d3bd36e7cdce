"""Trains for a moment and saves a checkpoint, as every rank or as rank 0 does."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

import torch
import torch.distributed as dist


def save(model: torch.nn.Module, path: Path) -> None:
    torch.save(model.state_dict(), path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--config", type=Path)
    arguments = parser.parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    if arguments.config is not None:
        print(f"config: {arguments.config.read_text().strip()}", flush=True)
    model = torch.nn.Linear(arguments.width, arguments.width)
    dist.all_reduce(model.weight.data)
    if dist.get_rank() == 0:
        arguments.folder.mkdir(exist_ok=True)
        save(model, arguments.folder / "checkpoint.pt")
    dist.barrier()
    if dist.get_rank() == 1:
        read = torch.load(arguments.folder / "checkpoint.pt")
        print(f"read {len(read)} tensors", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
