"""A summary of the dumps of one host, some kilobytes for each rank: dumps on a thousand machines are summed up where they are, and only the summaries
travel.

A dump in it has all that is compared between ranks, and as the stack of each call one frame, the line of the user's code. Entries that differ only in
numbers are kept once, with a column for each number, as `repeats` reads them. A file is `MAGIC`, then MessagePack in zstd with a checksum: it is read
as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from unhang import fsio
from unhang.errors import RecordError
from unhang.flight.dump_file import MAX_BYTES, DumpFile, bytes_of, head_of, is_dump
from unhang.flight.entries import not_understood, sites_of
from unhang.flight.pickle_columns import Repeats
from unhang.flight.rank_from_name import is_rank
from unhang.flight.reader_processes import extend_budget
from unhang.flight.recording import FIELDS, recording_of
from unhang.logs.streams import Budget, Damaged, Limits, Stream, unpacked
from unhang.model import frozen

FORMAT = 2
MAGIC = b"UNHANG-DIGEST" + bytes([FORMAT]) + b"\n"
SUFFIX = ".unhang-digest"
_ANY_FORMAT = re.compile(rb"UNHANG-DIGEST([\x01-\xff])\n", re.DOTALL)
_OF_DUMP = ("version", "pg_config", "pg_status", "members")
_OF_ENTRY = (*FIELDS, "pg_id", "state", "retired", "timeout_ms")
_NUMBERS = ("record_id", "collective_seq_id", "seq_id", "p2p_seq_id", "time_created_ns")
_UNREADABLE = (msgspec.MsgspecError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)
# Removes credentials from a text.
Clean = Callable[[str], str]


@frozen
class Name:
    """Where a dump was: number `nth` of those in the file `name` on `host`. Its rank is `told` by the file, or `said` by its name, or was counted.
    `second`: it is of the second recorder of its process."""

    host: str = ""
    rank: int
    name: str
    nth: int = 0
    told: bool = False
    said: bool = False
    second: bool = False


class _Dump(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Entry i is `forms[form_of[i]]`, but for its `numbers`, which are differences."""

    where: Name
    raw: dict[str, Any]
    forms: list[Any]
    form_of: list[int]
    numbers: dict[str, list[int]]
    cut: str | None


class _Host(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`missed`: files of this host that could not be read, `beside`: what else was there, each with the reason."""

    host: str
    missed: list[tuple[str, str]]
    beside: list[tuple[str, str]]
    dumps: list[msgspec.Raw]


class Digest:
    """What a file holds. `missed` and `beside` are as `write` was given them."""

    def __init__(self, path: Path, host: _Host) -> None:
        self.host, self.missed, self.beside = host.host, host.missed, host.beside
        self._path, self._blocks = path, host.dumps

    def __len__(self) -> int:
        return len(self._blocks)

    def dump(self, place: int) -> tuple[DumpFile, Name]:
        """Raises RecordError if the digest is damaged."""
        with _damage(self._path):
            dump = msgspec.msgpack.decode(self._blocks[place], type=_Dump)
            return _opened(dump), replace(dump.where, host=self.host)


@frozen
class Summed:
    """One dump for a digest. `left`: what of the dump is not in it."""

    rank: int
    block: bytes
    left: tuple[str, ...]


def summed(dump: DumpFile, *, where: Name, clean: Clean) -> Summed:
    """Raises RecordError if it is no dump, or none that could be read again."""
    # Says why it is none.
    recording_of(dump, rank=where.rank, source=where.name)
    try:
        block = _packed(dump, where, clean)
        again = _opened(msgspec.msgpack.decode(block, type=_Dump))
    except _UNREADABLE as e:
        raise RecordError(f"{where.name} is not a flight-recorder dump that can be understood: {type(e).__name__}: {e}") from e
    found = recording_of(again, rank=where.rank, source=where.name)
    left = (found.cut, found.untold, not_understood(found.skipped))
    return Summed(rank=where.rank, block=block, left=tuple(dict.fromkeys(why for why in left if why is not None)))


def _packed(dump: DumpFile, where: Name, clean: Clean) -> bytes:
    entries = [e if isinstance(e, Mapping) else {} for e in dump.raw.get("entries") or ()]
    known, forms, form_of = dict[bytes, int](), list[dict[str, Any]](), list[int]()
    for entry, site in zip(entries, sites_of(entries), strict=True):
        form = {name: entry[name] for name in _OF_ENTRY if name in entry}
        if site is not None:
            form["frames"] = [{"filename": site[0], "line": site[1], "name": site[2]}]
        numbers = {name: entry[name] for name in _NUMBERS if name in entry}
        key = marshal.dumps((form, {name: 0 if type(n) is int else n for name, n in numbers.items()}), 2)
        if key not in known:
            known[key] = len(forms)
            forms.append({**form, **numbers})
        form_of.append(known[key])
    if (of := dump.repeats) is not None:
        form_of = [form_of[n] for n in of.form_of]
    columns = {name: [_number(e.get(name)) for e in entries] if of is None else of.numbers(name) for name in _NUMBERS}
    return msgspec.msgpack.encode(
        _Dump(
            where=replace(where, name=_cleaned(where.name, clean)),
            raw=_cleaned({name: dump.raw[name] for name in _OF_DUMP if name in dump.raw}, clean),
            forms=_cleaned(forms, clean),
            form_of=form_of,
            numbers={name: [b - a for a, b in pairwise((0, *column))] for name, column in columns.items() if any(column)},
            cut=dump.cut,
        )
    )


def _number(value: Any) -> int:
    return value if type(value) is int else 0


def _cleaned(value: Any, clean: Clean) -> Any:
    """The same without credentials; two texts that differ still do."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()
        cleaned = clean(text)
        return cleaned if cleaned == text else f"{cleaned}#{crc32(text.encode()):08x}"
    if isinstance(value, (list, tuple)):
        return [_cleaned(v, clean) for v in value]
    return {_cleaned(k, clean): _cleaned(v, clean) for k, v in value.items()} if isinstance(value, Mapping) else value


def write(
    folder: Path,
    host: str,
    dumps: Sequence[Summed],
    missed: Sequence[tuple[str, str]] = (),
    beside: Sequence[tuple[str, str]] = (),
    *,
    clean: Clean,
) -> Path:
    """Write the digest of a host into a folder: `missed` are its files that could not be read, `beside` is what else was there, each with the reason.

    Raises OSError, and RecordError if another file has its name, or if it would be too large to be read.
    """
    import zstandard

    left, more, (named,) = (_cleaned(told, clean) for told in (missed, beside, [host]))
    whole = msgspec.msgpack.encode(_Host(host=named, missed=left, beside=more, dumps=[msgspec.Raw(d.block) for d in dumps]))
    if len(whole) > MAX_BYTES:
        raise RecordError(f"{len(dumps):,} dumps are too many for one digest", cause="a digest is read as a whole, in bounded memory")
    data = MAGIC + zstandard.ZstdCompressor(level=9, write_checksum=True).compress(whole)
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in clean(host)).lstrip(".") or "host"
    path = folder / f"{name}-rank{min((d.rank for d in dumps), default=0)}{SUFFIX}"
    try:
        with open(path, "xb", buffering=0, opener=fsio.open_private) as f:
            try:
                if f.write(data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                path.unlink()
                raise
    except FileExistsError as e:
        # Of the same dumps, for the second time.
        if not path.is_file() or path.read_bytes() != data:
            raise RecordError(
                f"{path} is there already and holds something else: it was left as it is",
                cause="an earlier digest of this host, or that of another host with the same name",
            ) from e
    return path


def is_digest(path: Path) -> bool:
    """By its first bytes, whatever its format, packed or not, or by its name if they are lost."""
    head = head_of(path)
    return _ANY_FORMAT.match(head) is not None or (path.name.endswith(SUFFIX) and not is_dump(head))


def read(path: Path) -> Digest:
    """Raises RecordError if it is missing, of another version, or damaged: nothing of it can be read then."""
    data, damage = bytes_of(path)
    head = _ANY_FORMAT.match(data)
    if head is not None and head[1][0] != FORMAT:
        raise RecordError(
            f"{path} is a digest of format {head[1][0]}, and this unhang reads format {FORMAT}",
            cause="another version of unhang wrote it: merge with that one, or sum up the dumps again",
        )
    with _damage(path):
        if head is None or damage is not None:
            raise ValueError(damage)
        packed = Stream(iter((data[len(MAGIC) :],)), str(path))
        limits = Limits(always_bytes=MAX_BYTES, unpacked_bytes=MAX_BYTES)
        whole = b"".join(unpacked("zstd", packed, Budget(str(path), len(data), limits)))
        extend_budget(len(whole))
        return Digest(path, msgspec.msgpack.decode(whole, type=_Host))


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (Damaged, *_UNREADABLE) as e:
        raise RecordError(f"{path} is damaged: nothing in it can be read", cause="it was cut off while it was written or copied") from e


def _opened(dump: _Dump) -> DumpFile:
    if not (is_rank(dump.where.rank) and is_rank(dump.where.nth)):
        raise ValueError("a rank that no job has")
    columns = {name: array("q", accumulate(of)) for name, of in dump.numbers.items()}
    return DumpFile(raw={**dump.raw, "entries": dump.forms}, cut=dump.cut, repeats=Repeats(dump.form_of, columns))
