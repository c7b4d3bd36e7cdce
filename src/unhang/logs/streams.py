"""Bytes in order: from files and spools, unpacked (gzip, bzip2, xz, zstd, UTF-16) in bounded memory; damage is one exception."""

from __future__ import annotations

import codecs
import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal, Protocol

from unhang.model import frozen

CHUNK_BYTES = 256 * 1024
# As much as tells every packing, archive and kind of file apart: a tar header.
HEAD_BYTES = 512
_MAX_NAME_BYTES = 1024


@frozen
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


Packing = Literal["gzip", "bzip2", "xz", "zstd", "deflate", "lz4", "7z", "rar", "compress"]

INPUT_BYTES = 64 * 1024
# The library bounds the memory of its window but not of its answer: 4 bytes may say 128 KiB.
_ZSTD_INPUT_BYTES = 256
# Packings inside others: what a hostile nest of them may add to the memory of the first.
_INNER_WINDOW_BYTES = 16 * 1024**2

_MAGIC: tuple[tuple[bytes, Packing], ...] = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"\x1f\x9d\x90", "compress"),
)


def packing(head: bytes) -> Packing | None:
    """How the data that begins so is packed; None for text and for archives."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    if head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:
        return "zstd"  # a skippable frame: pzstd and seekable zstd begin so
    # .lzma has no magic number: its properties, a dictionary of at least 64 KiB, a size below 2^40 or unknown, and a zero byte.
    if head[:3] == b"]\0\0" and head[3:5] != b"\0\0" and len(head) > 13 and head[13] == 0 and (head[5:13] == b"\xff" * 8 or head[10:13] == b"\0\0\0"):
        return "xz"
    return None


def encoding(head: bytes) -> str | None:
    """The encoding that a byte order mark names, if it is not UTF-8: what PowerShell writes with `>`."""
    return "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else None


def unpacked(kind: Packing, raw: Stream, budget: Budget, *, inner: bool = False) -> Iterator[bytes]:
    """What is packed in `raw`, in chunks of at most CHUNK_BYTES. `inner`: it stands inside other packed data. Raises Damaged."""
    window = min(_INNER_WINDOW_BYTES, budget.limits.window_bytes) if inner else budget.limits.window_bytes
    for chunk in _decoded(kind, raw, window):
        for at in range(0, len(chunk), CHUNK_BYTES):
            part = chunk[at : at + CHUNK_BYTES]
            budget.take(len(part))
            yield part


def utf8(raw: Stream, name: str) -> Iterator[bytes]:
    """Text of another encoding as UTF-8."""
    decoder = codecs.getincrementaldecoder(name)("replace")
    while data := raw.read(CHUNK_BYTES // 2):
        if text := decoder.decode(data):
            yield text.encode("utf-8", "replace")
    if text := decoder.decode(b"", True):
        yield text.encode("utf-8", "replace")


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


class _Zlib:
    """zlib with the interface of bz2 and lzma."""

    def __init__(self, wbits: int) -> None:
        self._inflate = zlib.decompressobj(wbits)
        self._broken: zlib.error | None = None
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes:
        if self._broken:
            raise self._broken
        data = self._inflate.unconsumed_tail + data
        before = self._inflate.copy()
        try:
            out = self._inflate.decompress(data, max_length)
        except zlib.error as e:
            self._broken, self.needs_input = e, False
            return _up_to_damage(before, data)
        # A full answer may leave more in the window of zlib although all input is consumed.
        self.needs_input = not self._inflate.unconsumed_tail and len(out) < max_length
        return out


class _Zstd:
    """zstd with the interface of bz2 and lzma."""

    needs_input = True

    def __init__(self, window: int) -> None:
        import zstandard

        self._inflate = zstandard.ZstdDecompressor(max_window_size=window).decompressobj()

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes:
        return self._inflate.decompress(data)


def _up_to_damage(inflate: zlib._Decompress, data: bytes) -> bytes:
    """What a call that failed would have given before it did: zlib keeps nothing of it."""
    out = bytearray()
    with contextlib.suppress(zlib.error):
        for byte in data:
            out += inflate.decompress(bytes((byte,)))
    return bytes(out)


def _codec(kind: Packing, what: str, window: int) -> tuple[Callable[[], _Decoder], type[Exception]]:
    if kind == "gzip":
        return lambda: _Zlib(31), zlib.error
    if kind == "deflate":
        return lambda: _Zlib(-15), zlib.error
    if kind == "zstd":
        import zstandard

        return lambda: _Zstd(window), zstandard.ZstdError
    if kind == "bzip2":
        import bz2

        return bz2.BZ2Decompressor, OSError
    if kind == "xz":
        import lzma

        # The decoder of `xz -9` needs 65 MiB: its window, and a little more.
        return lambda: lzma.LZMADecompressor(memlimit=window + 4 * 1024**2), lzma.LZMAError
    raise Damaged(what, f"it is packed with {kind}, which is not read here; unpack it first")


def _decoded(kind: Packing, raw: Stream, window: int) -> Iterator[bytes]:
    new, error = _codec(kind, raw.what, window)
    decoder = new()
    at_once = _ZSTD_INPUT_BYTES if kind == "zstd" else INPUT_BYTES
    data = raw.read(at_once)
    while True:
        try:
            out = decoder.decompress(data, CHUNK_BYTES)
        except error as e:
            raise _broken(raw.what, kind, e) from e
        if out:
            yield out
        data = b""
        if decoder.eof:
            if kind == "deflate":
                return
            data = _next_member(raw, decoder.unused_data, at_once)
            if not data:
                return
            if packing(data) != kind:
                raise _tail(raw.what, kind)
            decoder = new()
        elif decoder.needs_input:
            data = raw.read(at_once)
            if not data:
                raise cut_off(raw.what)


def _next_member(raw: Stream, data: bytes, at_once: int) -> bytes:
    """What follows a member, behind padding, enough of it to tell what it is; nothing at the end."""
    while not (data := data.lstrip(b"\0")):
        data = raw.read(at_once)
        if not data:
            return b""
    return data if len(data) >= HEAD_BYTES else data + raw.read(HEAD_BYTES)


def _broken(what: str, kind: Packing, error: Exception) -> Damaged:
    said = str(error).lower()
    if "too much memory" in said or "memory usage limit" in said:
        return Damaged(what, f"its {kind} data asks for more memory to be unpacked than is allowed")
    return Damaged(what, f"its {kind} data is damaged; only what stands before the damage can be read")


def _tail(what: str, kind: Packing) -> Damaged:
    return Damaged(what, f"behind the end of its {kind} data stand bytes that are not {kind}; these were not read")
