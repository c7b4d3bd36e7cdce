"""Sentences of a language that has 512 words, of which some speak for each class: made here, alike on all ranks, at any step."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

WORDS, LENGTH, CLASSES = 512, 24, 4
_SPEAK_FOR_ONE = 32


def sentences(count: int, *, seed: int, noise: float) -> dict[str, torch.Tensor]:
    """`noise` is the share of words that say nothing."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    telling = labels[:, None] * _SPEAK_FOR_ONE + torch.randint(_SPEAK_FOR_ONE, (count, LENGTH), generator=generator)
    others = torch.randint(WORDS, (count, LENGTH), generator=generator)
    chosen = torch.rand(count, LENGTH, generator=generator) < noise
    return {"words": torch.where(chosen, others, telling), "labels": labels}


class Sentences(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int, *, seed: int, noise: float) -> None:
        self._all = sentences(count, seed=seed, noise=noise)

    def __len__(self) -> int:
        return len(self._all["labels"])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[index] for name, values in self._all.items()}


def tests() -> dict[str, Sentences]:
    """Data sets of different sizes and difficulty, as an evaluation over several of them has."""
    return {
        "clean": Sentences(403, seed=1, noise=0.3),
        "noisy": Sentences(257, seed=2, noise=0.8),
        "short": Sentences(31, seed=3, noise=0.5),
    }


def batch(step: int, rank: int, size: int) -> dict[str, torch.Tensor]:
    """What a rank trains on at a step: a restart needs no sampler's state."""
    return sentences(size, seed=1_000_000 + 1_000 * step + rank, noise=0.6)
