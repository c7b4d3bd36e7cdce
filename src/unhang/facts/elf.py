"""What a shared library says of itself: what it needs, where it looks, and its constants. Only headers and what is asked for are read."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from unhang.facts import paths
from unhang.facts.host import Host
from unhang.model import frozen

T = TypeVar("T")

_NEEDED, _STRTAB, _RPATH, _RUNPATH, _LOAD, _DYNAMIC = 1, 5, 15, 29, 1, 2
_MAX_TABLE_BYTES = 1 << 20
_MAX_CONSTANTS_BYTES = 64 << 20


@frozen
class Links:
    """`rpath` is searched before LD_LIBRARY_PATH, `runpath` after it."""

    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]


@frozen
class Section:
    name: bytes
    kind: int
    flags: int
    offset: int
    size: int


def links(host: Host, path: str) -> Links:
    """Raises OSError, and ValueError for what is no 64-bit library of this byte order."""
    return _opened(host, path, _links)


def constants(host: Host, path: str) -> bytes:
    """The section .rodata, where a library has its texts. Raises as `links` does."""
    return _opened(host, path, lambda file: _content(file, b".rodata"))


def glibc(host: Host, path: str) -> tuple[int, int] | None:
    """The newest version of glibc that a library asks for; None if it asks for none. Raises as `links` does."""
    asked = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", _opened(host, path, lambda file: _content(file, b".dynstr")))
    return max(((int(major), int(minor)) for major, minor in asked), default=None)


def sections(file: BinaryIO) -> Iterator[Section]:
    """Raises ValueError and struct.error for what is no 64-bit library of this byte order."""
    _, shoff, _, _, _, _, shsize, shnum, shstrndx = _header(file)
    rows = [struct.unpack_from("<IIQQQQ", row) for row in _rows(file, shoff, shsize, shnum)]
    if shstrndx >= len(rows):
        raise ValueError("it has no section names")
    texts = _at(file, rows[shstrndx][4], min(rows[shstrndx][5], _MAX_TABLE_BYTES))
    for name, kind, flags, _, offset, size in rows:
        yield Section(name=texts[name:].partition(b"\0")[0], kind=kind, flags=flags, offset=offset, size=size)


def _opened(host: Host, path: str, read: Callable[[BinaryIO], T]) -> T:
    with host.path(paths.real(host, path)).open("rb") as file:
        try:
            return read(file)
        except struct.error as e:
            raise ValueError(f"{path} is cut short: {e}") from e


def _header(file: BinaryIO) -> tuple[int, ...]:
    start = file.read(64)
    if start[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file")
    # e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
    return struct.unpack_from("<QQIHHHHHH", start, 32)


def _links(file: BinaryIO) -> Links:
    phoff, _, _, _, phsize, phnum, *_ = _header(file)
    segments = [struct.unpack_from("<IIQQQQ", row) for row in _rows(file, phoff, phsize, phnum)]
    dynamic = next(((offset, size) for kind, _, offset, _, _, size in segments if kind == _DYNAMIC), None)
    found: list[tuple[int, int]] = []
    if dynamic is not None:
        table = _at(file, dynamic[0], min(dynamic[1], _MAX_TABLE_BYTES))
        found = list(struct.iter_unpack("<QQ", table[: len(table) // 16 * 16]))
    address = next((value for tag, value in found if tag == _STRTAB), 0)
    texts = next((offset + address - start for kind, _, offset, start, _, size in segments if kind == _LOAD and start <= address < start + size), 0)

    def said(tag: int) -> tuple[str, ...]:
        return tuple(_text(file, texts + value) for t, value in found if t == tag)

    def where(tag: int) -> tuple[str, ...]:
        return tuple(p for text in said(tag) for p in text.split(":") if p)

    return Links(needed=said(_NEEDED), rpath=where(_RPATH), runpath=where(_RUNPATH))


def _content(file: BinaryIO, wanted: bytes) -> bytes:
    found = next((s for s in sections(file) if s.name == wanted), None)
    return b"" if found is None else _at(file, found.offset, min(found.size, _MAX_CONSTANTS_BYTES))


def _rows(file: BinaryIO, offset: int, size: int, count: int) -> Iterator[bytes]:
    if size < 40:
        return
    table = _at(file, offset, min(size * count, _MAX_TABLE_BYTES))
    for i in range(len(table) // size):
        yield table[i * size : (i + 1) * size]


def _text(file: BinaryIO, offset: int) -> str:
    return _at(file, offset, 16384).partition(b"\0")[0].decode(errors="replace")


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    try:
        file.seek(offset)
        return file.read(size)
    except (OverflowError, OSError) as e:
        raise ValueError(f"it leads outside itself: {e}") from e
