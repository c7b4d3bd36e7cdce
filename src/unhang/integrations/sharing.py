"""A data set divided among ranks without any of them asking another: every batch is some rank's, once."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
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


def share(loader: data.DataLoader[Any]) -> Iterator[Any]:
    """This rank's batches of `loader`, which goes over the whole data set on every rank: of n ranks each takes every n-th, in the loader's order.

    A loader that is divided already (a DistributedSampler and its like, a batch sampler over one) is left as it is. An order that is drawn is the
    same on all ranks, whatever their seeds. An IterableDataset must be undivided, or say that it is not: nobody can tell what it leaves out.
    """
    rank, size = rank_and_size()
    sampler = loader.batch_sampler
    if size == 1 or _is_divided(loader):
        yield from loader
    elif sampler is None or isinstance(loader.dataset, data.IterableDataset):
        yield from itertools.islice(loader, rank, None, size)
    else:
        with _drawn_alike(loader.sampler, getattr(sampler, "sampler", None)):
            batches = list(sampler)
        yield from _again(loader, batches[rank::size])


def batches(dataset: Any, size: int, collate_fn: Callable[[list[Any]], Any] | None, num_workers: int) -> Iterator[Any]:
    """This rank's batches of `dataset`, from a loader that is made for them."""
    return share(data.DataLoader(dataset, batch_size=size, collate_fn=collate_fn, num_workers=num_workers))


def _is_divided(loader: data.DataLoader[Any]) -> bool:
    """By what samplers (torch's, transformers', accelerate's) and data sets (accelerate's, `datasets`') say of themselves."""
    parts = [loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None), loader.dataset]
    if getattr(loader.dataset, "_distributed", None) is not None:
        return True
    return any(isinstance(n := getattr(one, name, None), int) and n > 1 for one in parts for name in ("num_replicas", "num_processes"))


@contextlib.contextmanager
def _drawn_alike(*samplers: Any) -> Iterator[None]:
    """Ranks have seeds of their own: each would take its part of another order. Generators stand afterwards where they stood."""
    generators = [one for one in (getattr(sampler, "generator", None) for sampler in samplers) if isinstance(one, torch.Generator)]
    states = [one.get_state() for one in generators]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(0)
            for one in generators:
                one.manual_seed(0)
            yield
    finally:
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)


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
