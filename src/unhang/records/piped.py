"""Standard input, where a pipe with nothing in it keeps nobody from being interrupted."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import IO, Any

_NAP_MS = 500


class _Piped(io.RawIOBase):
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # A signal that comes just before the system call is answered by Python only after it: that must come back by itself.
        while not self._poll.poll(_NAP_MS):
            pass
        return os.readv(self._fd, [buffer])


def stdin() -> IO[bytes]:
    """Its bytes, none of which may have been read before. What stands in for it, and is no file, is taken as it is."""
    stream = sys.stdin.buffer
    try:
        fd = stream.fileno()
    except OSError:
        return stream
    return io.BufferedReader(_Piped(fd))
