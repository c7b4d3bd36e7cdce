"""Buffers of sends that nobody waits for: NCCL has taken its own copy, Gloo reads the buffer when the peer asks for it.

Gloo tells that it has done so only to who waits. A thread cannot do that: woken while the interpreter ends, it ends the process by SIGABRT.
So the next send waits for the oldest ones, once there are so many of them that those have long arrived. Whoever has more than that on the way would
have waited with NCCL as well.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

MOST_BYTES = 1 << 30
# However large they are.
LEAST = 16

_left: deque[tuple[Any, Any]] = deque()


def keep(handle: Any, sending: Any, buffer: Any) -> Callable[[], object]:
    """Keep the buffer for as long as it is needed, should nobody have the handle any more; returns what is to be called once it was waited for."""
    # Appending is all that may happen there: it is called wherever Python collects garbage.
    finalizer = weakref.finalize(handle, _left.append, (sending, buffer))
    finalizer.atexit = False
    return finalizer.detach


def drop() -> None:
    """Wait for the oldest, where there are too many."""
    size = sum(buffer.nbytes for _, buffer in _left)
    while len(_left) > LEAST and size > MOST_BYTES:
        sending, buffer = _left.popleft()
        size -= buffer.nbytes
        # Who would have waited for it would have been told.
        with contextlib.suppress(RuntimeError):
            sending.wait()
