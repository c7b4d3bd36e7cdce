"""Keeps a dump of the flight recorder from importing torch's compiler.

torch turns the frames of a dump into text with the help of torch._inductor, which it finds with `hasattr(torch, "_inductor")`
(torch/csrc/profiler/python/combined_traceback.cpp). Since torch 2.1 that imports it: 800 modules, 1.5 s of CPU and several times that on a host whose
cores are taken, in a thread that the training knows nothing of, and for ever where the main thread hangs in the middle of the same import. In a
process that has not compiled anything it has nothing to tell.
"""

from __future__ import annotations

import contextlib
import sys
from _thread import allocate_lock, get_ident
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_NAME = "_inductor"


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Inside, this thread finds no compiler in a torch that has not imported it yet; every other thread finds the real one."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with _lock:
        there = vars(torch).setdefault(_NAME, _ABSENT)
        if there is _ABSENT:
            _ABSENT.threads.append(get_ident())
    if there is not _ABSENT:
        yield
        return
    try:
        yield
    finally:
        with _lock:
            _ABSENT.threads.remove(get_ident())
            # Whoever has imported the real one meanwhile has put it there.
            if not _ABSENT.threads and vars(torch).get(_NAME) is _ABSENT:
                del vars(torch)[_NAME]


class _Absent(ModuleType):
    """A module without anything for these threads, and the real one, imported then, for all others."""

    def __init__(self) -> None:
        super().__init__(f"torch.{_NAME}")
        self.threads: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if get_ident() in self.threads:
            raise AttributeError(name)
        return getattr(__import__(f"torch.{_NAME}", fromlist=[name]), name)


_ABSENT = _Absent()
_lock = allocate_lock()
