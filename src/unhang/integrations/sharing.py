"""A data set divided among ranks without any of them asking another: every batch is some rank's, once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import data
from torch.utils._pytree import tree_map_only


def rank_and_size() -> tuple[int, int]:
    """Of the default group; of a training without one, 0 and 1."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def share(loader: data.DataLoader[Any], *, even: bool = False) -> Iterator[tuple[Any, bool]]:
    """This rank's batches of `loader`, which goes over the whole data set on every rank: of n ranks each takes every n-th, in the loader's order.

    With `even` all ranks get the same number: those that have one batch fewer get the last one again, with False beside it: it does not count. A
    loader that is divided already (a DistributedSampler) is left as it is. Raises ValueError for an iterable data set that has to be even.
    """
    rank, size = rank_and_size()
    sampler = loader.batch_sampler
    if size == 1 or isinstance(loader.sampler, data.DistributedSampler):
        yield from ((batch, True) for batch in loader)
    elif sampler is None or isinstance(loader.dataset, data.IterableDataset):
        if even:
            raise ValueError("how many batches an iterable data set has is not known before its end: give a data set with a length")
        yield from ((batch, True) for number, batch in enumerate(loader) if number % size == rank)
    else:
        batches = list(sampler)
        mine = batches[rank::size]
        own = len(mine)
        if even and own < len(batches[::size]):
            mine.append(batches[-1])
        yield from ((batch, number < own) for number, batch in enumerate(_again(loader, mine)))


def _again(loader: data.DataLoader[Any], batches: list[Any]) -> data.DataLoader[Any]:
    workers = loader.num_workers
    of_workers = {"prefetch_factor": loader.prefetch_factor, "multiprocessing_context": loader.multiprocessing_context} if workers else {}
    return data.DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        **of_workers,
    )


def moved(batch: Any, device: Any) -> Any:
    """All tensors of `batch` on `device`."""
    if hasattr(batch, "to"):
        return batch.to(device)
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True), batch)
