"""The training's own output: passed through unchanged, and kept in one log for each rank and stream.

Ranks share our terminal, and torchrun starts Python with `-u`, which writes each argument of a `print` by itself: a line is passed on
when it is whole, so that two ranks do not write into each other's lines. What has no end (a prompt, a progress bar) waits `LINE_WAIT_S`.
A stream is a terminal for the training where our own is one, so that progress bars look as they would without us. A log
that cannot be written is given up with a note; the training never notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
import tty
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

from unhang import fsio

Stream = Literal["out", "err"]
# Takes what was read: the rank (None for the launcher), the stream, the bytes as they came.
Sink = Callable[["int | None", Stream, bytes], None]

READ_BYTES = 1 << 16
LINE_WAIT_S = 0.05


class Channel:
    """One stream of one process group: what is written to `write_fd` goes to the sink and to the log."""

    def __init__(self, *, rank: int | None, stream: Stream, log: Path, sink: Sink, trouble: Callable[[str], None], terminal: bool) -> None:
        self.rank = rank
        self.stream = stream
        self._sink = sink
        self._trouble = trouble
        self._path = log
        self._log: BinaryIO | None = None
        self._read_fd, self.write_fd = _pair(terminal, trouble)
        try:
            fsio.make_directory(log.parent, 0o775)
            self._log = open(log, "ab", buffering=0, opener=partial(fsio.open_private, mode=0o664))  # noqa: SIM115  open as long as the stream is
        except OSError as e:
            trouble(f"cannot write {log}: {e.strerror}; this output is not kept")
        os.set_blocking(self._read_fd, False)
        self.closed = asyncio.Event()
        self._begun = b""
        self._timer: asyncio.TimerHandle | None = None
        asyncio.get_running_loop().add_reader(self._read_fd, self._read)

    @property
    def identity(self) -> str:
        """Device and inode of the writing end: by it a process knows that its stream is still ours."""
        status = os.fstat(self.write_fd)
        return f"{status.st_dev}:{status.st_ino}"

    def resize(self) -> None:
        """Our own terminal has another size now: so has the training's. Does nothing where the stream is none."""
        if not self.closed.is_set():
            _take_size(self._read_fd)

    def release(self) -> None:
        """Close our writing end once the process has its own; the end of the stream is seen from then on."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        """Read what is left and stop."""
        self.release()
        while not self.closed.is_set() and self._read():
            pass
        self._end()

    def _read(self) -> bool:
        try:
            data = os.read(self._read_fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            # Linux answers EIO on a pseudo-terminal whose other side is closed.
            data = b""
        if not data:
            self._end()
            return False
        if self._log is not None:
            try:
                self._log.write(data)
            except OSError as e:
                self._trouble(f"cannot write {self._path}: {e.strerror}; the rest of this output is not kept")
                self._log.close()
                self._log = None
        self._pass_on(data)
        return True

    def _pass_on(self, data: bytes) -> None:
        data = self._begun + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > READ_BYTES:
            end = len(data)
        self._begun = data[end:]
        if end:
            self._stop_waiting()
            self._sink(self.rank, self.stream, data[:end])
        if self._begun and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINE_WAIT_S, self._let_go)

    def _let_go(self) -> None:
        """Pass on a line that has begun and has no end yet."""
        self._stop_waiting()
        if self._begun:
            data, self._begun = self._begun, b""
            self._sink(self.rank, self.stream, data)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        if self.closed.is_set():
            return
        self.closed.set()
        asyncio.get_running_loop().remove_reader(self._read_fd)
        self._let_go()
        os.close(self._read_fd)
        if self._log is not None:
            self._log.close()


def _pair(terminal: bool, trouble: Callable[[str], None]) -> tuple[int, int]:
    """What is read from, and what the training writes to. Raises OSError where there is not even a pipe to be had."""
    if terminal:
        try:
            master, slave = os.openpty()
            # Bytes as they are: no \n to \r\n, no echo.
            tty.setraw(slave)
            _take_size(master)
            return master, slave
        except OSError as e:
            # Containers without /dev/pts, and machines on which all are taken.
            trouble(f"there is no pseudo-terminal to be had ({e.strerror or e}): the training's output is no terminal for it; it goes on")
    return os.pipe()


def _take_size(master: int) -> None:
    """Give a pseudo-terminal the size of our own terminal."""
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(fd, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0))
            fcntl.ioctl(master, termios.TIOCSWINSZ, size)
            return
