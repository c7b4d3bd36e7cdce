"""Packed bytes unpacked: gzip, bzip2, xz, zstd, UTF-16; streamed, told apart by their first bytes, in bounded memory.

Nothing here needs more than a few hundred KiB and the window that the packed data itself asks for, which `Limits.window_bytes` bounds.
"""

from __future__ import annotations

import codecs
import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from unhang.logs.streams import CHUNK_BYTES, HEAD_BYTES, Budget, Damaged, Stream, cut_off

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
            data = _next_member(raw, decoder.unused_data)
            if not data:
                return
            if packing(data) != kind:
                raise _tail(raw.what, kind)
            decoder = new()
        elif decoder.needs_input:
            data = raw.read(at_once)
            if not data:
                raise cut_off(raw.what)


def _next_member(raw: Stream, data: bytes) -> bytes:
    """What follows a member, behind padding, enough of it to tell what it is; nothing at the end."""
    while not (data := data.lstrip(b"\0")):
        data = raw.read(INPUT_BYTES)
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
