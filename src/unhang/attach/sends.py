"""Buffers of sends that nobody waits for: NCCL has taken its own copy, Gloo reads the buffer when the peer asks for it.

Gloo tells that it has done so only to who waits. A thread cannot do that: woken while the interpreter ends, it ends the process by SIGABRT.
So the next send waits for the oldest ones, once there are so many of them that those have long arrived. Whoever has more than that on the way would
have waited with NCCL as well.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

MOST_BYTES = 1 << 30
# However large they are.
LEAST = 16

# What garbage collection, in whatever thread and moment, has found to be nobody's any more; and what of it is kept, the oldest first.
_abandoned: deque[tuple[Any, Any]] = deque()
_left: deque[tuple[Any, Any]] = deque()
_left_bytes = 0
_lock = threading.Lock()


def keep(handle: Any, sending: Any, buffer: Any) -> Callable[[], object]:
    """Keep the buffer for as long as it is needed, should nobody have the handle any more; returns what is to be called once it was waited for."""
    # Appending is all that may happen there: it is called wherever Python collects garbage.
    finalizer = weakref.finalize(handle, _abandoned.append, (sending, buffer))
    finalizer.atexit = False
    return finalizer.detach


def drop() -> None:
    """Wait for the oldest, where there are too many."""
    global _left_bytes
    oldest = []
    with _lock:
        while _abandoned:
            _left.append(_abandoned.popleft())
            _left_bytes += _left[-1][1].nbytes
        while len(_left) > LEAST and _left_bytes > MOST_BYTES:
            oldest.append(_left.popleft())
            _left_bytes -= oldest[-1][1].nbytes
    for sending, _ in oldest:
        # Who would have waited for it would have been told.
        with contextlib.suppress(RuntimeError):
            sending.wait()
