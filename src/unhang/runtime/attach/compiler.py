"""Keeps a dump of the flight recorder from importing torch's compiler.

torch turns the frames of a dump into text with the help of torch._inductor, which it finds with `hasattr(torch, "_inductor")`
(torch/csrc/profiler/python/combined_traceback.cpp). Since torch 2.1 that imports it: 800 modules, 1.5 s of CPU and several times that on a host whose
cores are taken, in a thread that the training knows nothing of, and for ever where the main thread hangs in the middle of the same import. In a
process that has not compiled anything it has nothing to tell.
"""

from __future__ import annotations

import contextlib
import sys
from _thread import get_ident
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_NAME = "_inductor"


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Inside, this thread finds no compiler in a torch that has not imported it yet; every other thread finds the real one."""
    torch = sys.modules.get("torch")
    if torch is None or _NAME in vars(torch):
        yield
        return
    absent = _Absent(get_ident())
    vars(torch)[_NAME] = absent
    try:
        yield
    finally:
        # Whoever has imported it meanwhile has put it there.
        found = vars(torch).pop(_NAME, absent)
        if found is not absent:
            vars(torch)[_NAME] = found


class _Absent(ModuleType):
    """A module without anything for one thread, and the real one, imported then, for all others."""

    def __init__(self, ident: int) -> None:
        super().__init__(f"torch.{_NAME}")
        self._ident = ident

    def __getattr__(self, name: str) -> Any:
        if get_ident() == self._ident:
            raise AttributeError(name)
        return getattr(__import__(f"torch.{_NAME}", fromlist=[name]), name)
