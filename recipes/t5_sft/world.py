"""This process among the others: rank, device, backend and precision. Also right for a training of one, without any launcher."""

from __future__ import annotations

import gc
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

# Its functions have the default group as a default argument: imported after the group was made (DDP does that), they keep it for ever.
import torch.distributed.nn


@dataclass(frozen=True, kw_only=True)
class World:
    """Set up by `join`."""

    rank: int
    local_rank: int
    size: int
    device: torch.device
    backend: str
    bf16: bool

    def autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def move(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}


def join(*, timeout_s: float, bf16: str) -> World:
    """Join the process group that the launcher describes, or make one of one. `bf16` is "auto", "on" or "off"."""
    rank, local_rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    elif int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        # Ranks that each use every core slow each other down many times over.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    backend = "nccl" if cuda else "gloo"
    timeout = timedelta(seconds=timeout_s)
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
    # CPUs, and GPUs before Ampere, only emulate bf16: that is slower than fp32.
    return World(
        rank=rank,
        local_rank=local_rank,
        size=size,
        device=device,
        backend=backend,
        bf16=bf16 == "on" or (bf16 == "auto" and cuda and torch.cuda.get_device_capability(device)[0] >= 8),
    )


def leave() -> None:
    """Leave the group and end its threads. Nothing may refer to the group any more, DDP included.

    A thread of Gloo that lets go of a tensor while the interpreter shuts down aborts the process ("terminate called without an active
    exception"); destroying the group ends its threads only once the last reference is gone.
    """
    gc.collect()
    dist.destroy_process_group()
    gc.collect()
