"""Data loaders with workers: fork, spawn, persistent, more workers than cores, and one that warns and logs from its workers."""

# ruff: noqa: T201
from __future__ import annotations

import logging
import sys
import warnings

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Numbers(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 13:
            warnings.warn("image 13 is truncated, it is padded with zeros", stacklevel=1)
        if index == 21:
            try:
                raise OSError("broken data stream when reading image file")
            except OSError:
                logging.exception("cannot read sample %d, another one is taken", index)
        return torch.full((3, 8, 8), float(index))


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 8

    def __iter__(self):  # type: ignore[no-untyped-def]
        info = get_worker_info()
        return iter(range(10 if info is None else 10 + info.id))


if __name__ == "__main__":
    kind = sys.argv[1]
    logging.basicConfig(level=logging.INFO)
    options: dict[str, object] = {
        "fork": {"multiprocessing_context": "fork"},
        "spawn": {"multiprocessing_context": "spawn"},
        "persistent": {"persistent_workers": True, "prefetch_factor": 4, "timeout": 60},
        "many": {},
        "pinned": {"pin_memory": True},
        "stream": {},
    }[kind]  # type: ignore[assignment]
    data = Stream() if kind == "stream" else Numbers()
    loader = DataLoader(data, batch_size=None if kind == "stream" else 8, num_workers=12 if kind == "many" else 2, **options)  # type: ignore[arg-type]
    for epoch in range(2):
        n = sum(1 for _ in loader)
        print(f"epoch {epoch}: {n} batches from {loader.num_workers} workers ({kind})", flush=True)
