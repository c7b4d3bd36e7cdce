"""Images, made here or read from class folders, and the order in which they come.

Nothing is drawn from a global generator: pixels, order and crops are functions of the seed and of numbers, so that a
resumed training sees what an undisturbed one does.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
from stop import leave_to_the_rank
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

# An index, and the number that its crop is drawn from.
Place = tuple[int, int]
# A worker that takes longer for a batch has hung, and the rank raises.
_TIMEOUT_S = 300
_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")


class Synthetic(Dataset[tuple[torch.Tensor, int]]):
    """`count` images from number `first` on, uint8 (3, size, size): the coarse pattern of their class, half covered by noise."""

    def __init__(self, count: int, *, classes: int, size: int, first: int = 0) -> None:
        self.count, self.classes, self.size, self.first = count, classes, size, first
        self._patterns = torch.randint(128, (classes, 3, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: Place) -> tuple[torch.Tensor, int]:
        number = self.first + place[0]
        label = number % self.classes
        noise = torch.randint(128, (3, self.size, self.size), generator=torch.Generator().manual_seed(number), dtype=torch.uint8)
        return interpolate(self._patterns[label : label + 1], (self.size, self.size))[0] + noise, label


class Folder(Dataset[tuple[torch.Tensor, int]]):
    """The images ROOT/CLASS/FILE, uint8 (3, size, size). In training a random part of each, mirrored at random; else its middle."""

    def __init__(self, root: Path, *, size: int, is_training: bool) -> None:
        try:
            import PIL.Image  # noqa: F401
        except ImportError:
            raise SystemExit("Pillow reads images from folders, and is not installed.\nTry: pip install pillow") from None
        names = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
        files = ((path, label) for label, name in enumerate(names) for path in sorted((root / name).iterdir()))
        self._files = [(str(path), label) for path, label in files if path.suffix.lower() in _SUFFIXES]
        self.size, self.is_training, self.classes = size, is_training, len(names)
        if not self._files:
            raise SystemExit(f"{root} has no images.\nExpected: {root}/CLASS/FILE, with FILE ending in {', '.join(_SUFFIXES)}")

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, place: Place) -> tuple[torch.Tensor, int]:
        import numpy as np
        from PIL import Image

        path, label = self._files[place[0]]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        drawn = random.Random(place[1]) if self.is_training else None
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=_crop(*image.size, drawn))
        if drawn and drawn.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), label


def _crop(width: int, height: int, drawn: random.Random | None) -> tuple[float, float, float, float]:
    """Left, upper, right, lower of a square: at random, of half the shorter side or more; undrawn, the middle."""
    side = min(width, height) * (drawn.uniform(0.5, 1) if drawn else 7 / 8)
    left, upper = ((room - side) * (drawn.random() if drawn else 0.5) for room in (width, height))
    return left, upper, left + side, upper + side


def batches(count: int, *, batch: int, rank: int, ranks: int, seed: int, start: int, stop: int) -> Iterator[list[Place]]:
    """The batches of one rank for steps `start` to `stop - 1`, across epochs. A rest too small for all ranks is left out of its epoch."""
    at, order = -1, torch.empty(0)
    for step in range(start, stop):
        epoch, number = divmod(step, count // (batch * ranks))
        if epoch != at:
            at, order = epoch, torch.randperm(count, generator=torch.Generator().manual_seed(seed << 32 | epoch))
        first = (number * ranks + rank) * batch
        yield [(int(order[n]), seed << 48 | epoch * count + n) for n in range(first, first + batch)]


def load(data: Dataset[Any], *, workers: int, **order: Any) -> DataLoader[Any]:
    """Batches in the order of a `batch_sampler`, or of `sampler` and `batch_size`. Its own generator: it would draw from the global one."""
    of_workers: dict[str, Any] = {}
    if workers:
        # A rank has threads, of torch, Gloo or NCCL: what is forked from it may wait for ever for a lock that one of them held.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        # A signal to all processes of the job must not end the server, and the workers with it: what is ignored here stays so in what is started.
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        forkserver.ensure_running()
        signal.signal(signal.SIGTERM, before)
        of_workers = {"multiprocessing_context": context, "timeout": _TIMEOUT_S}
    return DataLoader(
        data,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),
        worker_init_fn=leave_to_the_rank,
        **of_workers,
        **order,
    )
