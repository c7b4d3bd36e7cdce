"""Files that change while they are read: lines that are appended (`Appended`), and one JSON document that is replaced (`Replaced`).

Neither raises for what a file holds or lacks: `error` says what is wrong with it, and what was read before stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Generic, TypeVar

from unhang import encoding
from unhang.records.rundir import MAX_DOCUMENT_BYTES

T = TypeVar("T")

CHUNK_BYTES = 1 << 20
# A longer line is none of ours; of what has no end as much would be kept.
MAX_LINE_BYTES = 4 << 20
# By so much of what stood before the last read it is known that a file was written anew.
_MARK_BYTES = 64


class Appended:
    """Lines of a file that grows. One that was cut short, replaced or written anew is read from its beginning, and `restarted` counts that."""

    def __init__(self, path: Path, *, from_last_bytes: int | None = None) -> None:
        """`from_last_bytes`: how much of its end is enough, where it is long at the first look."""
        self.path = path
        self.error: str | None = None
        self.missing = True
        self.restarted = 0
        self.too_long = 0
        self._from_last_bytes = from_last_bytes
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._mark = b""
        self._rest = b""
        self._skips = False

    @property
    def is_cut(self) -> bool:
        """Whether it ends in the middle of a line, as far as it was read."""
        return bool(self._rest) or self._skips

    def read(self) -> Iterator[bytes]:
        """The whole lines that are new, without their ends. A last one without an end is left until it has one."""
        self.error = None
        try:
            opened = _open(self.path)
        except OSError as e:
            self.missing = isinstance(e, FileNotFoundError)
            self.error = None if self.missing else f"{e.strerror or e}"
            return
        with opened as file:
            try:
                self.missing = False
                # Find the place to go on from; returns the size.
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._identity or status.st_size < self._offset or not self._is_the_same(file):
                    self.restarted += self._identity is not None
                    self._identity, self._offset, self._mark, self._rest, self._skips = identity, 0, b"", b"", False
                    self.too_long = 0
                    if self._from_last_bytes is not None and status.st_size > self._from_last_bytes:
                        self._offset, self._skips = status.st_size - self._from_last_bytes, True
                file.seek(self._offset)
                size = status.st_size
                while self._offset < size:
                    data = file.read(min(CHUNK_BYTES, size - self._offset))
                    if not data:
                        return
                    self._offset += len(data)
                    self._mark = (self._mark + data)[-_MARK_BYTES:]
                    yield from self._lines(data)
            except OSError as e:
                self.error = f"{e.strerror or e}"

    def _is_the_same(self, file: FileIO) -> bool:
        file.seek(self._offset - len(self._mark))
        return file.read(len(self._mark)) == self._mark

    def _lines(self, data: bytes) -> Iterator[bytes]:
        *whole, rest = (self._rest + data).split(b"\n")
        if whole and self._skips:
            self._skips = False
            del whole[0]
        self._rest = b"" if self._skips else rest
        if len(rest) > MAX_LINE_BYTES:
            self._rest, self._skips = b"", True
            self.too_long += 1
        yield from whole


class Replaced(Generic[T]):
    """One JSON document. `value` is the newest that could be read, None before there was one."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self.value: T | None = None
        self.error: str | None = None
        self.missing = True
        self._kind = kind
        self._seen: tuple[int, int, int, int] | None = None

    def read(self) -> T | None:
        try:
            with _open(self.path) as file:
                self.missing = False
                status = os.fstat(file.fileno())
                seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                if seen == self._seen:
                    return self.value
                self._seen, self.error = seen, None
                if status.st_size > MAX_DOCUMENT_BYTES:
                    self.error = f"it is larger than {MAX_DOCUMENT_BYTES >> 20} MiB"
                    return self.value
                self.value = encoding.decode(file.read(), self._kind)
        except FileNotFoundError:
            self.missing, self.error, self._seen = True, None, None
        except OSError as e:
            self.missing, self.error, self._seen = False, f"{e.strerror or e}", None
        except encoding.NOT_JSON as e:
            self.error = f"it is damaged, or of another version: {e}"
        return self.value


def _open(path: Path) -> FileIO:
    """Raises OSError; what is no regular file is refused, for a FIFO would be waited for without end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "it is no file")
    return FileIO(fd, "rb")
