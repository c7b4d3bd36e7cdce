"""What a training must find again exactly as it left it, however an evaluation ends."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def as_it_was(models: Iterable[torch.nn.Module] = ()) -> Iterator[None]:
    """Inside: no gradients, `models` in eval mode.

    Afterwards random numbers (Python's, numpy's, torch's of the CPU and of the current GPU), grad mode and the mode of each submodule are as before.
    """
    modes = [(module, module.training) for model in models for module in model.modules()]
    numbers = _numbers()
    try:
        with torch.no_grad():
            for module, _ in modes:
                module.training = False
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        _set_numbers(numbers)


def _numbers() -> tuple[Any, Any, torch.Tensor, torch.Tensor | None]:
    # Without being imported: what the training does not use has no state to keep.
    numpy = sys.modules.get("numpy")
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    return random.getstate(), None if numpy is None else numpy.random.get_state(), torch.get_rng_state(), cuda


def _set_numbers(numbers: tuple[Any, Any, torch.Tensor, torch.Tensor | None]) -> None:
    python, of_numpy, cpu, cuda = numbers
    random.setstate(python)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
