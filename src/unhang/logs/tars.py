"""A tar archive read once, from front to end: its members as they come. Names stay names; nothing is written anywhere.

Not `tarfile`: it keeps every member, reads extended headers whole whatever size they claim, follows chains of them by recursion, and expands
holes. Here a header is bounded, and sparse members are not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from unhang.logs.streams import CHUNK_BYTES, Damaged, Stream, bounded_name, cut_off
from unhang.model import frozen
from unhang.patterns import lazily

BLOCK_BYTES = 512
# Long names and extended attributes; nothing honest is longer.
MAX_HEADER_BYTES = 1024**2
_OCTAL = lazily(rb"[ \0]*([0-7]*)[ \0]*")
_FILES = (b"\0", b"0", b"7")
# A kind of members that may be logs.
SPARSE = "sparse, which is not read in tars; unpack it first"
_RECORD = lazily(rb"(\d{1,7}) ([^=]{1,200})=")
_WITHOUT_DATA = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"5": "a directory", b"6": "a FIFO"}


@frozen
class Member:
    """`kind` says what it is, where it is no file that can be read."""

    name: str
    size_bytes: int
    mtime: float | None
    kind: str | None


def is_header(block: bytes) -> bool:
    """Whether a tar archive may begin so: the checksum of the header holds."""
    if len(block) < BLOCK_BYTES or not block[0]:
        return False
    said = _OCTAL.fullmatch(block[148:156])
    # The field of the checksum counts as spaces.
    return said is not None and said[1] != b"" and int(said[1], 8) == sum(block[:148]) + sum(block[156:BLOCK_BYTES]) + 8 * ord(" ")


def members(archive: Stream) -> Iterator[tuple[Member, Stream]]:
    """Each member with its data, which is valid until the next one is asked for. Raises Damaged."""
    extended: dict[str, str] = {}
    ended = False
    while block := archive.read(BLOCK_BYTES):
        if not block.strip(b"\0"):
            ended = True  # archives may be appended to one another
            continue
        if len(block) < BLOCK_BYTES:
            raise cut_off(archive.what)
        if not is_header(block):
            raise Damaged(archive.what, "a header in it is damaged, or it goes on with something that is no tar; nothing behind that was read")
        ended = False
        kind = block[156:157]
        size = _number(block[124:136], archive.what)
        if kind in b"LKxgX":
            body = _header(archive, size)
            if kind == b"L":
                extended["path"] = _text(body.partition(b"\0")[0])
            elif kind in b"xX":
                extended |= _records(body)
            continue
        member = _member(block, kind, size, extended)
        extended = {}
        if kind == b"S":
            more = block[482]
            while more:
                more = archive.exactly(BLOCK_BYTES)[504]
        if kind in _WITHOUT_DATA:
            yield member, Stream(iter(()), archive.what)
            continue
        end = archive.position + -(-member.size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        yield member, Stream(_part(archive, member.size_bytes), archive.what)
        left = end - archive.position
        if archive.skip(left) < left:
            raise cut_off(archive.what)
    if not ended:
        raise Damaged(archive.what, "it ends without an end mark: it may be cut off, and members may be missing")


def _member(block: bytes, kind: bytes, size: int, extended: dict[str, str]) -> Member:
    name = _text(block[:100].partition(b"\0")[0])
    if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500].partition(b"\0")[0])):
        name = f"{prefix}/{name}"
    name = extended.get("GNU.sparse.name") or extended.get("path") or name
    what = _WITHOUT_DATA.get(kind)
    if kind == b"S" or "GNU.sparse.name" in extended:
        what = SPARSE
    elif what is None and kind not in _FILES:
        what = "a special member"
    if kind == b"\0" and name.endswith("/"):
        what = "a directory"
    if re.fullmatch(r"[0-9]{1,19}", wide := extended.get("size", "")):
        size = int(wide)
    return Member(name=name, size_bytes=size, mtime=_mtime(block, extended), kind=what)


def _mtime(block: bytes, extended: dict[str, str]) -> float | None:
    try:
        value = float(extended.get("mtime") or _number(block[136:148], ""))
    except (ValueError, OverflowError, Damaged):
        return None
    return value if math.isfinite(value) and value > 0 else None


def _number(field: bytes, what: str) -> int:
    if field[0] == 0x80:  # GNU: too large for octal digits
        return int.from_bytes(field[1:], "big")
    found = _OCTAL.fullmatch(field)
    if found is None:
        raise Damaged(what, "a header in it is damaged; nothing behind that was read")
    return int(found[1] or b"0", 8)


def _header(archive: Stream, size: int) -> bytes:
    if size > MAX_HEADER_BYTES:
        raise Damaged(archive.what, "an extended header in it is too long to be honest; nothing behind that was read")
    body = archive.exactly(size)
    archive.exactly(-size % BLOCK_BYTES)
    return body


def _records(body: bytes) -> dict[str, str]:
    """The records of a pax header: "25 path=some/long/name\\n", one behind the other."""
    found: dict[str, str] = {}
    at = 0
    while record := _RECORD.match(body, at):
        end = at + int(record[1])
        if not record.end() < end <= len(body):
            break
        if record[2] in (b"path", b"size", b"mtime") or record[2].startswith(b"GNU.sparse."):
            found[record[2].decode("ascii", "replace")] = _text(body[record.end() : end - 1])
        at = end
    return found


def _part(archive: Stream, size: int) -> Iterator[bytes]:
    while size > 0:
        data = archive.read(min(size, CHUNK_BYTES))
        if not data:
            raise cut_off(archive.what)
        size -= len(data)
        yield data


def _text(raw: bytes) -> str:
    return bounded_name(raw).decode("utf-8", "replace")
