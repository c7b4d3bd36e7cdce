"""Checkpoints of one file each, the same for DDP and FSDP2: a training may go on with the other one.

One is written beside its place, synced to disk, and renamed: it is there whole or not at all.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

KEEP = 2


def save(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, step: int, **more: Any) -> None:
    """Write step-NNNNNNNN.pt, and keep the newest `KEEP`. All ranks call it, rank 0 writes."""
    weights, moments = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() != 0:
        return
    final = directory / f"step-{step:08d}.pt"
    with final.with_suffix(".tmp").open("wb") as file:
        torch.save({"model": weights, "optimizer": moments, "step": step, **more}, file)
        file.flush()
        os.fsync(file.fileno())
    final.with_suffix(".tmp").replace(final)
    for old in sorted(directory.glob("step-*.pt"))[:-KEEP]:
        old.unlink()


def find_newest(directory: Path) -> dict[str, Any] | None:
    """The content of the newest that can be read, or None. Rank 0 chooses for all; each reads the file."""
    chosen: list[Path | None] = [None]
    if dist.get_rank() == 0:
        for path in sorted(directory.glob("step-*.pt")):
            try:
                torch.load(path, map_location="cpu", weights_only=True)
                chosen = [path]
            except Exception as e:
                print(f"warning: {path} cannot be read and is left out ({type(e).__name__}: {e})", file=sys.stderr, flush=True)
    dist.broadcast_object_list(chosen, src=0)
    return torch.load(chosen[0], map_location="cpu", weights_only=True) if chosen[0] else None
