"""Bytes in order, and where they come from: files, spools, limits on what they may become, and damage, which is one exception."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

CHUNK_BYTES = 256 * 1024
# As much as tells every packing, archive and kind of file apart: a tar header.
HEAD_BYTES = 512
_MAX_NAME_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Where reading stops. Packed data may grow to `ratio` times its size, `always_bytes` in any case, `unpacked_bytes` at most.

    One line repeated for 200 MB packs 1000:1 with gzip and 10000:1 with zstd: a ratio alone would refuse real logs. What is made of very many tiny
    parts, in layers, costs far more than its size: of CPU time a file gets `cpu_s`, and more for each of its packed bytes.
    """

    files: int = 20_000
    members: int = 100_000
    depth: int = 2
    ratio: int = 2000
    always_bytes: int = 4 * 1024**3
    unpacked_bytes: int = 64 * 1024**3
    spool_bytes: int = 16 * 1024**3
    window_bytes: int = 128 * 1024**2
    cpu_s: float = 7.0
    cpu_s_per_byte: float = 10 / 1024**2


class Damaged(Exception):
    """Nothing more can be read from `what`; `why` says it in plain words, without numbers that differ from file to file."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why
        self.reported = False


class Budget:
    """What one file on disk may become. Once `exceeded`, every further `take` raises the same Damaged."""

    def __init__(self, what: str, packed_bytes: int, limits: Limits) -> None:
        self.what = what
        self.limits = limits
        self.left_bytes = min(limits.unpacked_bytes, max(limits.always_bytes, limits.ratio * packed_bytes))
        self.left_members = limits.members
        self._until_s = time.process_time() + limits.cpu_s + limits.cpu_s_per_byte * packed_bytes
        self.exceeded: Damaged | None = None

    def take(self, size_bytes: int) -> None:
        self.left_bytes -= size_bytes
        if self.left_bytes < 0:
            self._exceed("it unpacks to more than the limit allows, as an archive bomb does; the rest was not read")
        self.check_time()

    def check_time(self) -> None:
        if time.process_time() > self._until_s:
            self._exceed("it takes more time than a file of its size should, as an archive bomb does; the rest was not read")

    def take_member(self) -> None:
        self.check_time()
        self.left_members -= 1
        if self.left_members < 0:
            self._exceed(f"it has more than {self.limits.members:,} members; the rest was not read")

    def _exceed(self, why: str) -> None:
        self.exceeded = self.exceeded or Damaged(self.what, why)
        raise self.exceeded


class Stream:
    """Bytes in order. `read` gives exactly `size` bytes, fewer only at the end; damage is raised by the read behind the last good byte, and again."""

    def __init__(self, chunks: Iterator[bytes], what: str) -> None:
        self.what = what
        self.position = 0
        self._chunks = chunks
        self._buffer = b""
        self._at = 0
        self._damage: Damaged | None = None

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (self._at < len(self._buffer) or self._fill()):
            part = self._buffer[self._at : self._at + size]
            self._at += len(part)
            self.position += len(part)
            size -= len(part)
            parts.append(part)
        if not parts and self._damage:
            raise self._damage
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, size: int) -> bytes:
        """The next bytes, which stay unread. Raises the damage only where there are none."""
        head = self.read(size)
        self.position -= len(head)
        self._buffer = head + self._buffer[self._at :]
        self._at = 0
        return head

    def skip(self, size: int) -> int:
        """How many bytes were skipped: `size`, or fewer at the end."""
        left = size
        while left > 0 and (got := len(self.read(min(left, CHUNK_BYTES)))):
            left -= got
        return size - left

    def chunks(self) -> Iterator[bytes]:
        """What is left, as it comes."""
        while data := self.read(CHUNK_BYTES):
            yield data

    def exactly(self, size: int) -> bytes:
        """`size` bytes, or Damaged where the data is cut off."""
        data = self.read(size)
        if len(data) < size:
            raise self._damage or cut_off(self.what)
        return data

    def _fill(self) -> bool:
        if self._damage is None:
            try:
                self._buffer, self._at = next(self._chunks, b""), 0
            except Damaged as e:
                self._damage, self._buffer, self._at = e, b"", 0
        return self._at < len(self._buffer)


def bounded_name(raw: bytes) -> bytes:
    """The name of a member of an archive. Each is looked at many times, and what stands before its last kilobyte says nothing of a log."""
    return raw if len(raw) <= _MAX_NAME_BYTES else b"..." + raw[-_MAX_NAME_BYTES:]


def cut_off(what: str) -> Damaged:
    return Damaged(what, "it is cut off; only what stands before the cut can be read")


class Bytes(Protocol):
    """Bytes that can be read at any place: a file on disk, or what was spooled."""

    what: str
    size_bytes: int

    def read_at(self, offset: int, size: int) -> bytes: ...
    def close(self) -> None: ...


class FileBytes:
    """A file, read with pread. Raises OSError."""

    def __init__(self, path: Path, what: str) -> None:
        self.what = what
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.size_bytes = os.fstat(self._fd).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        os.close(self._fd)


class SpooledBytes:
    """What came through a pipe or out of an archive and must be read at any place: in memory while small, in a nameless file otherwise."""

    IN_MEMORY_BYTES = 8 * 1024**2

    def __init__(self, what: str, read: Callable[[int], bytes], limit_bytes: int) -> None:
        """Reads everything. `stopped` says why, where that was not possible; what was read until then is there."""
        import tempfile

        self.what = what
        self.size_bytes = 0
        self.stopped: str | None = None
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=self.IN_MEMORY_BYTES, dir=spool_folder())  # noqa: SIM115
        try:
            while data := read(CHUNK_BYTES):
                if self.size_bytes + len(data) > limit_bytes:
                    data = data[: limit_bytes - self.size_bytes]
                    self.stopped = "it is longer than what is kept of a stream; the rest was not read"
                self._file.write(data)
                self.size_bytes += len(data)
                if self.stopped:
                    break
        except OSError as e:
            self.stopped = f"the rest was not read: {words(e)}"

    def read_at(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(min(size, max(0, self.size_bytes - offset)))

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


def spool_folder() -> str | None:
    """Where large temporary files go; None for Python's own choice. /tmp is memory on many machines; /var/tmp is not."""
    return "/var/tmp" if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK) else None


def words(error: OSError) -> str:
    """What an error of the system means, as the system says it."""
    return error.strerror or str(error)


def chunks(source: Bytes, *, offset: int = 0, size: int | None = None) -> Iterator[bytes]:
    """A part of it in order, or all. Ends where the bytes end. Raises Damaged."""
    end = None if size is None else offset + size
    while end is None or offset < end:
        try:
            data = source.read_at(offset, CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - offset))
        except (OSError, OverflowError) as e:  # a place beyond what the system can name stands in damaged archives
            raise Damaged(source.what, f"it cannot be read: {words(e) if isinstance(e, OSError) else e}") from e
        if not data:
            return
        offset += len(data)
        yield data
