"""What a training must find again exactly as it left it, however an evaluation ends."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Of torch's modules for accelerators those that have generators. A machine has one kind, seldom two.
_ACCELERATORS = ("cuda", "xpu", "mps", "npu", "hpu", "mlu", "musa", "mtia")


@contextmanager
def as_it_was(models: Iterable[torch.nn.Module] = ()) -> Iterator[None]:
    """Inside: no gradients, `models` in eval mode.

    Afterwards random numbers (Python's, numpy's global ones, torch's of the CPU and of every device that was in use before), grad mode and modes of
    submodules are as before. Generators that somebody has made for himself are his: torch.Generator, numpy.random.default_rng.
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
        for restore in numbers:
            restore()


def _numbers() -> list[Callable[[], None]]:
    """What puts each generator back to where it is now."""
    python, cpu = random.getstate(), torch.get_rng_state()
    found: list[Callable[[], None]] = [lambda: random.setstate(python), lambda: torch.set_rng_state(cpu)]
    # Without being imported: what the training does not use has no state to keep. A thread may be importing it at this moment.
    if (numpy := getattr(sys.modules.get("numpy"), "random", None)) is not None and hasattr(numpy, "get_state"):
        of_numpy = numpy.get_state()
        found.append(lambda: numpy.set_state(of_numpy))
    for module in _in_use():
        found += _of_devices(module)
    return found


def _in_use() -> Iterator[Any]:
    """The modules of accelerators that this process has begun to use: asking any other would begin it, and take memory of a device."""
    for name in dict.fromkeys((_accelerator(), *_ACCELERATORS)):
        module = getattr(torch, name, None)
        if module is None or name == "cpu":
            continue
        # MPS and others that need no beginning have no such question, but a generator from the start; torch 2.4 has `torch.backends` say whether.
        asked = (module, "is_initialized"), (module, "is_available"), (getattr(torch.backends, name, None), "is_available")
        asks = next((ask for of, what in asked if (ask := getattr(of, what, None)) is not None), None)
        if asks is not None and asks():
            yield module


def _accelerator() -> str:
    # torch 2.6 and newer; what a maker has registered under a name of its own is known to it alone.
    accelerator = getattr(torch, "accelerator", None)
    with contextlib.suppress(RuntimeError):
        if accelerator is not None and (device := accelerator.current_accelerator()) is not None:
            return str(device.type)
    return "cpu"


def _of_devices(module: Any) -> Iterator[Callable[[], None]]:
    def kept(*device: int) -> Callable[[], None]:
        state = module.get_rng_state(*device)
        return lambda: module.set_rng_state(state, *device)

    if not hasattr(module, "set_rng_state"):
        return
    if not hasattr(module, "get_rng_state_all"):
        yield kept()
        return
    for device in range(module.device_count()):
        yield kept(device)
