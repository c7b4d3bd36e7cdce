"""A zip archive, read in the order of its directory: members as packed ranges of the file. Names stay names; nothing is written anywhere.

Not `zipfile`: it holds the whole directory as objects. Members packed with bzip2 or LZMA, which hardly any tool writes, are refused.
"""

from __future__ import annotations

import itertools
import stat
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from unhang.logs.streams import Budget, Bytes, Damaged, Stream, bounded_name, chunks
from unhang.model import frozen

if TYPE_CHECKING:
    from unhang.logs.streams import Packing

# PKZIP APPNOTE 6.3.10: 4.3.7, 4.3.12, 4.3.14 to 4.3.16.
_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_STORED = 0
_PACKINGS: dict[int, Packing] = {8: "deflate", 93: "zstd"}
_ENCRYPTED, _REFUSED = "encrypted", "packed with bzip2, LZMA or another method that is not read in zips; unpack it first"
# Kinds of members that may be logs.
CLOSED = (_ENCRYPTED, _REFUSED)


@frozen
class Entry:
    """`kind` says what it is, where it is no file that can be read. `packing` None: it is stored."""

    name: str
    kind: str | None
    packing: Packing | None
    crc: int
    packed_bytes: int
    offset: int
    mtime: float | None


def entries(archive: Bytes, budget: Budget) -> Iterator[Entry]:
    """The members in the order of the directory. Raises Damaged, before the first one where members overlap (checked up to the limit of members)."""
    start, size, before = _directory(archive)
    starts, ends = array("Q"), array("Q")
    for entry in itertools.islice(_entries(archive, start, size, before), budget.limits.members + 1):
        budget.check_time()
        if entry.packed_bytes or entry.kind is None:
            starts.append(entry.offset)
            ends.append(entry.offset + _LOCAL.size + entry.packed_bytes)
    order = sorted(range(len(starts)), key=starts.__getitem__)
    if any(ends[a] > starts[b] for a, b in itertools.pairwise(order)):
        raise Damaged(archive.what, "its members overlap, as in an archive bomb; it was not opened")
    yield from _entries(archive, start, size, before)


def packed(archive: Bytes, entry: Entry) -> Stream:
    """The data of a member, still packed. Raises Damaged."""
    head = Stream(chunks(archive, offset=entry.offset, size=_LOCAL.size), archive.what).exactly(_LOCAL.size)
    magic, *_, name_bytes, extra_bytes = _LOCAL.unpack(head)
    if magic != b"PK\3\4":
        raise _damaged(archive.what)
    offset = entry.offset + _LOCAL.size + name_bytes + extra_bytes
    return Stream(chunks(archive, offset=offset, size=entry.packed_bytes), archive.what)


def checked(data: Iterator[bytes], entry: Entry, what: str) -> Iterator[bytes]:
    """Unpacked data; Damaged at its end where it is not what was packed."""
    crc = 0
    for chunk in data:
        crc = zlib.crc32(chunk, crc)
        yield chunk
    if crc != entry.crc:
        raise Damaged(what, "its checksum is wrong: it was read, and a part of it is damaged or missing")


def _directory(archive: Bytes) -> tuple[int, int, int]:
    """Where the directory stands, its size, and how many bytes stand before the archive (what offsets do not count)."""
    tail_at = max(0, archive.size_bytes - _END.size - 0xFFFF)
    tail = b"".join(chunks(archive, offset=tail_at))
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END.size:
        raise Damaged(archive.what, "it has no directory at its end: it is cut off, or no zip archive; it was not opened")
    _, disk, _, _, _, size, offset, _ = _END.unpack_from(tail, at)
    end = tail_at + at
    if at >= _LOCATOR_64.size and (offset == 0xFFFFFFFF or size == 0xFFFFFFFF or tail[at - _LOCATOR_64.size :][:4] == b"PK\6\7"):
        magic, _, _, _ = _LOCATOR_64.unpack_from(tail, at - _LOCATOR_64.size)
        end -= _LOCATOR_64.size + _END_64.size
        record = b"".join(chunks(archive, offset=max(0, end), size=_END_64.size)) if magic == b"PK\6\7" and end >= 0 else b""
        if len(record) < _END_64.size or not record.startswith(b"PK\6\6"):
            raise _damaged(archive.what)
        size, offset = _END_64.unpack(record)[-2:]
        disk = 0
    before = end - size - offset
    if disk or before < 0:
        raise _damaged(archive.what)
    return end - size, size, before


def _entries(archive: Bytes, start: int, size: int, before: int) -> Iterator[Entry]:
    directory = Stream(chunks(archive, offset=start, size=size), archive.what)
    while head := directory.read(_ENTRY.size):
        if len(head) < _ENTRY.size or not head.startswith(b"PK\1\2"):
            raise _damaged(archive.what)
        fields = _ENTRY.unpack(head)
        flags, method, crc, packed_bytes, unpacked_bytes = fields[3], fields[4], *fields[7:10]
        name_bytes, extra_bytes, comment_bytes, _, _, attributes, offset = fields[10:]
        raw = directory.exactly(name_bytes)
        extra = _extra(directory.exactly(extra_bytes))
        directory.skip(comment_bytes)
        if wide := extra.get(1):
            numbers: Callable[[], int] = iter(int.from_bytes(wide[i : i + 8], "little") for i in range(0, len(wide) - 7, 8)).__next__
            try:
                _ = numbers() if unpacked_bytes == 0xFFFFFFFF else 0
                packed_bytes = numbers() if packed_bytes == 0xFFFFFFFF else packed_bytes
                offset = numbers() if offset == 0xFFFFFFFF else offset
            except StopIteration:
                raise _damaged(archive.what) from None
        if offset + before + packed_bytes > archive.size_bytes:
            raise _damaged(archive.what)
        name = _text(bounded_name(raw))
        yield Entry(
            name=name,
            kind=_kind(name, flags, method, attributes >> 16),
            packing=_PACKINGS.get(method),
            crc=crc,
            packed_bytes=packed_bytes,
            offset=offset + before,
            mtime=_mtime(extra),
        )


def _kind(name: str, flags: int, method: int, mode: int) -> str | None:
    if name.endswith("/"):
        return "a directory"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "a symbolic link" if stat.S_ISLNK(mode) else "a special member"
    if flags & 1:
        return _ENCRYPTED
    return None if method == _STORED or method in _PACKINGS else _REFUSED


def _extra(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        kind, size = struct.unpack_from("<2H", data, at)
        found.setdefault(kind, data[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def _mtime(extra: dict[int, bytes]) -> float | None:
    # The DOS time of an entry has no zone; the extended timestamp is UTC.
    times = extra.get(0x5455, b"")
    return float(int.from_bytes(times[1:5], "little")) if len(times) >= 5 and times[0] & 1 else None


def _text(raw: bytes) -> str:
    # The flag for UTF-8 is often missing where the name is UTF-8.
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("cp437")


def _damaged(what: str) -> Damaged:
    return Damaged(what, "it is damaged, or no zip archive; nothing behind the damage was read")
