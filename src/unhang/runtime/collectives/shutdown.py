"""The end of the process: no thread is inside torch for this library any more when the interpreter is torn down.

Before Python 3.14, a thread that asks for the interpreter's lock during the teardown is ended where it stands, by pthread_exit. In the middle of C++
that ends the whole process: "terminate called without an active exception", SIGABRT, after a training that had succeeded. Three kinds of threads ask:
our own, when the store answers; those of a script, in a call of ours; and Gloo's, which lets go of a call's tensors after the call has returned.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

# Whatever is still under way then is left as it is.
_WITHIN_S = 3.0
_LOOKS_EVERY_S = 0.001
# For threads of the script to come out of a short call of torch's, and to meet the end in the next one of ours.
_OTHERS_S = 0.1

# Set when the interpreter begins to end: threads of ours stop.
ended = threading.Event()
_closers: list[Callable[[float], None]] = []
# Threads inside torch, and how deep.
_inside: dict[int, int] = {}


def at_end(close: Callable[[float], None]) -> None:
    """Call `close(until)` when the interpreter ends, in the order of registration; it returns by `until` (time.monotonic)."""
    _closers.append(close)


@contextmanager
def inside_torch() -> Iterator[None]:
    """Around a call that waits without the interpreter's lock. Once the interpreter ends, only the main thread makes such calls.

    Other threads get SystemExit, which ends them without a word and lets go of the locks that they hold: an exit handler may need those.
    """
    who = threading.get_ident()
    _inside[who] = _inside.get(who, 0) + 1
    try:
        # In this order: either the end sees this thread inside, or this thread sees the end.
        _stop()
        yield
    finally:
        _inside[who] -= 1
        if not _inside[who]:
            del _inside[who]
    _stop()


def _stop() -> None:
    if ended.is_set() and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def all_outside(until: float) -> bool:
    """Wait until no other thread is inside torch; whether that is so."""
    me = threading.get_ident()
    while _inside.keys() - {me}:
        if time.monotonic() > until:
            return False
        time.sleep(_LOOKS_EVERY_S)
    return True


def keep(something: object) -> None:
    """Never drop it, not even when its module is cleared: to drop a group that is in use, or of another process, waits for its threads."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(something))


def _end() -> None:
    ended.set()
    until = time.monotonic() + _WITHIN_S
    for close in _closers:
        with suppress(Exception):
            close(until)
    _let_others_on(min(until, time.monotonic() + _OTHERS_S))


def _let_others_on(until: float) -> None:
    """Between two calls of ours a thread may be in `torch.ones`, which asks for that lock as well; the next call ends it. A longer one is its own."""
    while time.monotonic() < until and any(one.daemon and not one.name.startswith("unhang-") for one in threading.enumerate()):
        time.sleep(_LOOKS_EVERY_S)


# A child has none of the threads.
os.register_at_fork(after_in_child=_inside.clear)
atexit.register(_end)
