"""A summary of the dumps of one host, a few kilobytes for each rank: dumps that lie on a thousand machines are summed up where they lie, and only
the summaries travel.

It holds all that is compared between ranks, and of every call the line of the user's code that issued it; of times only those that are looked at.
A file is `MAGIC`, then one zstd stream of blocks: length and CRC-32, four bytes each, little-endian, and MessagePack. The first block tells of the
host, every other one of one dump, and zstd is made to end a block of its own behind each: a digest that is cut off or damaged gives the dumps before
the damage, and says how many are lost. Long because what is written and how it is read again belong side by side: the two have to change together.
"""

from __future__ import annotations

import contextlib
import filecmp
import io
import os
import re
import secrets
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from unhang import files
from unhang.errors import RecordError
from unhang.model import NotExamined
from unhang.records.flight import operations
from unhang.records.flight.columns import COMPLETED, ENDED, Columns, Recording, What, columns_and_frames, compared
from unhang.records.flight.entries import Call, Flight, Group, in_order, not_understood
from unhang.records.flight.lanes import Lanes, lanes_of
from unhang.records.flight.naming import is_rank
from unhang.records.flight.opening import Opened, bytes_of, head_of, is_dump
from unhang.records.flight.sites import Site, sites_of
from unhang.records.frames import Frame
from unhang.records.incident import Counters
from unhang.records.logs.streams import HEAD_BYTES
from unhang.records.logs.unpacking import packing

if TYPE_CHECKING:
    import zstandard

FORMAT = 1
MAGIC = b"UNHANG-DIGEST" + bytes([FORMAT]) + b"\n"
SUFFIX = ".unhang-digest"
_ANY_FORMAT = re.compile(rb"UNHANG-DIGEST([\x01-\xff])\n", re.DOTALL)
_HEAD = struct.Struct("<II")
# Of so many calls the times are kept in any case.
_NEWEST = 64
_LEVEL = 9
_WINDOW_BYTES = 128 * 1024**2
# A dump of 512 MB, the largest that is read, has fewer entries; one takes some 20 bytes.
_MOST_ENTRIES = 4_000_000
_MOST_BLOCK_BYTES = 256 * 1024**2
# 16,384 ranks of 2,000 calls take 600 MB; they are read one by one.
_MOST_BYTES = 8 * 1024**3
# Of all groups of a digest together, each counted once. 16,384 ranks in six groups each have some 100,000.
_MOST_MEMBERS = 1 << 22

_Kinds = list[tuple[tuple[str, str], str, list[list[int]], list[list[int]], list[str], list[str], bool]]
_Groups = list[tuple[str, str, list[tuple[int, int, int]]]]
_Runs = tuple[tuple[int, int, int], ...]
# What takes credentials out of a text.
Clean = Callable[[str], str]


class _Host(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`dumps` blocks follow; `missed` are the files of this host that are not among them, `beside` what else was there, each with the reason."""

    host: str
    dumps: int
    missed: list[tuple[str, str]]
    beside: list[tuple[str, str]] = []


class _Dump(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One dump. Columns are bytes, little-endian: `kind_of` and `site_of` (0: none) 32 bits an entry, `numbers` as differences 64 bits, `ends` 8.

    `kinds` (`_Kinds`) and `groups` (`_Groups`: names, descriptions and members as runs of (first, count, stride)) are alike on many ranks and decoded
    once. `span_ns` is that of the columns, `times` are (entry, ns behind the oldest).
    """

    rank: int
    told: bool
    said: bool
    name: str
    nth: int
    second: bool
    version: str
    kinds: msgspec.Raw
    kind_of: bytes
    numbers: bytes
    ends: bytes
    sites: list[tuple[str, int, str]]
    site_of: bytes
    span_ns: tuple[int, int, int]
    times: list[tuple[int, int]]
    messages: list[tuple[int, int]]
    groups: msgspec.Raw
    counters: dict[str, int]
    lost: bool
    cut: str | None
    skipped: int
    worlds: int
    untold: str | None = None
    status: dict[str, tuple[int, int]] = {}
    patience_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class Name:
    """Where a dump that was summed up lay: the `nth` of those in the file `name` on `host`. Its rank is `told` by the file, or `said` by its name."""

    host: str
    name: str
    nth: int = 0
    told: bool = False
    said: bool = False


@dataclass(frozen=True, kw_only=True)
class Digest:
    """What a digest tells. `names[i]` is that of `recordings[i]`, `blank` are the files that were no use; `damage` says what of it could not be read.
    `lanes[i]`, where they were asked for: what is drawn of it, without times; None where it cannot be."""

    host: str
    recordings: tuple[Recording, ...]
    names: tuple[Name, ...]
    lanes: tuple[Lanes | None, ...] = ()
    missed: tuple[NotExamined, ...] = ()
    blank: tuple[str, ...] = ()
    damage: str | None = None


@dataclass(frozen=True, kw_only=True)
class Summed:
    """One dump as a block of a digest. `left`: what of the dump is not in it."""

    rank: int
    block: bytes
    left: tuple[str, ...] = ()


def summed(dump: Opened, *, rank: int, where: Name, second: bool, clean: Clean) -> Summed:
    """Raises RecordError where it is no dump."""
    try:
        columns, frames = columns_and_frames(dump)
        return packed(columns, sites_of(frames), rank=rank, where=where, second=second, clean=clean)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as e:
        raise RecordError(f"{where.name} is not a flight-recorder dump that can be understood: {type(e).__name__}: {e}") from e


def packed(columns: Columns, sites: Sequence[Site | None], *, rank: int, where: Name, second: bool, clean: Clean) -> Summed:
    """Columns as a block; `sites[i]` is the user's line that issued entry i. Raises ValueError and the like where they are none."""
    place_of = {site: n for n, site in enumerate(dict.fromkeys(s for s in sites if s is not None), 1)}
    span, times = _times(columns)
    dump = _Dump(
        rank=rank,
        told=where.told,
        said=where.said,
        name=_apart(where.name, clean),
        nth=where.nth,
        second=second,
        version=_text(columns.version, clean),
        kinds=_raw([_plain(what, clean) for what in columns.kinds]),
        kind_of=_le(columns.kind_of),
        numbers=_le(array("q", (b - a for a, b in zip((0, *columns.numbers), columns.numbers, strict=False)))),
        ends=bytes(columns.ends),
        sites=[(_text(file, clean), line, _text(name, clean)) for file, line, name in place_of],
        site_of=_le(array("I", (0 if s is None else place_of[s] for s in sites))),
        span_ns=span,
        times=times,
        messages=sorted(columns.message_numbers.items()),
        groups=_raw([(_apart(g.name, clean), _text(g.desc, clean), _runs(g.members)) for g in columns.configured.values()]),
        counters={_apart(group, clean): n for group, n in columns.counters.items()},
        lost=columns.lost,
        cut=columns.cut,
        skipped=columns.skipped,
        worlds=columns.worlds,
        untold=columns.untold,
        status={_apart(group, clean): (c.enqueued, c.completed) for group, c in columns.status.items()},
        patience_ns=columns.patience_ns,
    )
    # Nothing is written that would be refused when it is read.
    _MostMembers().take(bytes(dump.groups))
    _columns(dump)
    left = (columns.cut, columns.untold, not_understood(columns.skipped))
    return Summed(rank=rank, block=msgspec.msgpack.encode(dump), left=tuple(dict.fromkeys(why for why in left if why is not None)))


def _text(text: str, clean: Clean) -> str:
    return clean(text.encode("utf-8", "replace").decode())


def _apart(text: str, clean: Clean) -> str:
    """A name without what is secret in it; two that differ still do."""
    cleaned = _text(text, clean)
    return cleaned if cleaned == text else f"{cleaned}#{crc32(text.encode('utf-8', 'replace')):08x}"


def _times(columns: Columns) -> tuple[tuple[int, int, int], list[tuple[int, int]]]:
    """The span of the columns, and the times by entry that are looked at.

    Those are of what is pending, of the newest of each group and the last of all that have ended, of the newest entries, and of the first that never
    end, as parts of a call do.
    """
    created, ends = columns.created, columns.ends
    whole = compared(columns, rank=0, source="")
    oldest = whole.oldest_ns
    of_tracks = (ns for t in whole.tracks for times in (t.pending_ns, t.over_ns) for ns in times.values())
    needed = {whole.done_ns, *of_tracks, *(m.created_ns for m in whole.messages)}
    in_order = sorted(range(len(created)), key=created.__getitem__)
    unended = [n for n in in_order if ends[n] not in (COMPLETED, ENDED)]
    kept = {*in_order[-_NEWEST:], *unended[:_NEWEST], *(n for n, ns in enumerate(created) if ns in needed)}
    return (oldest, whole.newest_ns, whole.done_ns), [(n, created[n] - oldest) for n in sorted(kept)]


def _plain(what: What, clean: Clean) -> Any:
    """A kind with plain types, whatever a dump has in it."""
    group, name, sent, got, sent_types, got_types, p2p = what
    name_of, desc = (str(group[0]), str(group[1]) if len(group) > 1 else "") if isinstance(group, (list, tuple)) else (str(group), "")

    def sizes(raw: Any) -> list[list[int]]:
        return [[int(n) for n in size] for size in raw or ()]

    def texts(raw: Any) -> list[str]:
        return [_apart(str(t), clean) for t in raw or ()]

    return (
        (_apart(name_of, clean), _text(desc, clean)),
        _apart(str(name), clean),
        sizes(sent),
        sizes(got),
        texts(sent_types),
        texts(got_types),
        bool(p2p),
    )


def _raw(value: _Kinds | _Groups) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


@lru_cache(maxsize=64)
def _runs(members: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """0, 8, 16, 24 is (0, 4, 8): a list of 16,384 ranks would be larger than all the rest."""
    found: list[tuple[int, int, int]] = []
    for n in members:
        if found:
            first, count, stride = found[-1]
            if count == 1 and n > first:
                found[-1] = (first, 2, n - first)
                continue
            if count > 1 and n == first + count * stride:
                found[-1] = (first, count + 1, stride)
                continue
        found.append((n, 1, 1))
    return found


def _members(runs: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
    if any(count < 1 or stride < 1 or first < 0 or not is_rank(first + (count - 1) * stride) for first, count, stride in runs):
        raise ValueError("a list of members that is none")
    if runs and not is_rank(sum(count for _, count, _ in runs) - 1):
        raise ValueError("more members than ranks")
    return tuple(n for first, count, stride in runs for n in range(first, first + count * stride, stride))


def _le(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def _array(code: str, data: bytes) -> array[int]:
    numbers: array[int] = array(code)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def write(
    folder: Path,
    host: str,
    dumps: Sequence[Summed],
    missed: Sequence[tuple[str, str]] = (),
    beside: Sequence[tuple[str, str]] = (),
    *,
    clean: Clean,
) -> Path:
    """Put the digest of a host into a folder: whole or not at all. Raises OSError, and RecordError where something else is there by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in clean(host)).lstrip(".") or "host"
    path = folder / f"{name}-rank{min((d.rank for d in dumps), default=0)}{SUFFIX}"
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    left, more = ([(_text(what, clean), _text(why, clean)) for what, why in told] for told in (missed, beside))
    head = _Host(host=_text(host, clean), dumps=len(dumps), missed=left, beside=more)
    try:
        with open(temporary, "xb", opener=files.open_private) as f:
            _fill(f, [msgspec.msgpack.encode(head), *(d.block for d in dumps)])
        _put(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _fill(file: IO[bytes], blocks: Sequence[bytes]) -> None:
    import zstandard

    # Until it is whole nobody takes it for a digest.
    file.write(bytes(len(MAGIC)))
    with zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).stream_writer(file, closefd=False) as packed:
        for block in blocks:
            packed.write(_HEAD.pack(len(block), crc32(block)))
            packed.write(block)
            # What is cut off loses what stands in the same block, which may hold 128 KB. It makes a digest a few percent larger.
            packed.flush(zstandard.FLUSH_BLOCK)
    file.seek(0)
    file.write(MAGIC)


def _put(whole: Path, path: Path) -> None:
    """Give a file its name without taking that of another one. Raises OSError, RecordError."""
    try:
        try:
            os.link(whole, path)
        except FileExistsError:
            raise
        except OSError:
            # A file system without hard links.
            with open(path, "xb", opener=files.open_private) as f:
                f.write(whole.read_bytes())
    except FileExistsError as e:
        # Of the same dumps, for the second time.
        if not (path.is_file() and filecmp.cmp(whole, path, shallow=False)):
            raise RecordError(
                f"{path} is there already and holds something else: it was left as it is",
                cause="an earlier digest of this host, or that of another host with the same name",
            ) from e


def is_digest(path: Path) -> bool:
    """By its first bytes, whatever its format, packed or not, or by its name where they are lost; False where it cannot be read."""
    try:
        with path.open("rb") as f:
            head = f.read(HEAD_BYTES)
    except OSError:
        return False
    unpacked = head_of(path) if packing(head) else head
    return _ANY_FORMAT.match(unpacked) is not None or (path.name.endswith(SUFFIX) and not is_dump(unpacked))


def _opened(path: Path) -> IO[bytes]:
    file = path.open("rb")
    if not packing(file.read(HEAD_BYTES)):
        file.seek(0)
        return file
    file.close()
    return io.BytesIO(bytes_of(path)[0])


def read(path: Path, *, drawn: int = 0) -> Digest:
    """All dumps that were summed up, in columns, each one's `place` among them; with what is drawn of so many calls of the file.

    Raises RecordError where nothing of it can be read.
    """
    blocks = _blocks(path)
    host = _host(path, blocks)
    size = path.stat().st_size
    found, names, lanes = list[Recording](), list[Name](), list[Lanes | None]()
    broken, left = 0, _MostMembers()
    for place, block in enumerate(blocks):
        try:
            dump = msgspec.msgpack.decode(block, type=_Dump)
            left.take(bytes(dump.groups))
            columns = _columns(dump)
            recording = compared(columns, rank=dump.rank, source=str(path), size=size)
        except _NONE_OF_OURS:
            broken += 1
            continue
        found.append(replace(recording, place=place, is_second=dump.second))
        lanes += [_lanes(dump, columns, drawn // max(1, host.dumps))] if drawn else []
        names.append(Name(host=host.host, name=dump.name, nth=dump.nth, told=dump.told, said=dump.said))
    if not found and host.dumps:
        raise RecordError(f"{path} is damaged: none of its {host.dumps} dumps can be read; they are of {host.host}", cause=_CUT)
    lost = max(host.dumps - len(found), broken)
    return Digest(
        host=host.host,
        recordings=tuple(found),
        names=tuple(names),
        lanes=tuple(lanes),
        missed=tuple(
            NotExamined(what=f"{what} on {host.host}", why=why, unread=unread)
            for told, unread in ((host.missed, True), (host.beside, False))
            for what, why in told
        ),
        blank=tuple(what for what, _ in host.missed),
        damage=f"it is cut off or damaged: {lost} of its {host.dumps} dumps cannot be read" if lost else None,
    )


def _lanes(dump: _Dump, columns: Columns, most: int) -> Lanes | None:
    try:
        return lanes_of(columns, _sites(dump), timed=False, most=most)
    except _NONE_OF_OURS:
        return None


def _sites(dump: _Dump) -> list[Site | None]:
    """The user's line of each entry."""
    return [dump.sites[s - 1] if s else None for s in _array("I", dump.site_of)]


_NONE_OF_OURS = (msgspec.DecodeError, KeyError, TypeError, ValueError, IndexError, OverflowError)
_CUT = "it was cut off while it was written or copied"


def flight(path: Path, place: int) -> Flight | None:
    """One dump in objects, each call with the user's line alone; None where it is not there. Raises RecordError."""
    blocks = _blocks(path)
    _host(path, blocks)
    for n, block in enumerate(blocks):
        if n == place:
            try:
                dump = msgspec.msgpack.decode(block, type=_Dump)
                _MostMembers().take(bytes(dump.groups))
                return _flight(_columns(dump), _sites(dump))
            except _NONE_OF_OURS as e:
                raise RecordError(f"{path} is damaged: {type(e).__name__}: {e}") from e
    return None


def _host(path: Path, blocks: Iterator[bytes]) -> _Host:
    try:
        return msgspec.msgpack.decode(next(blocks), type=_Host)
    except (StopIteration, *_NONE_OF_OURS) as e:
        raise RecordError(f"{path} is damaged: nothing in it can be read", cause=_CUT) from e


def _blocks(path: Path) -> Iterator[bytes]:
    """The blocks of a digest as far as they are whole. Raises RecordError where it is none that can be read here."""
    import zstandard

    try:
        with _opened(path) as f:
            begins = f.read(len(MAGIC))
            head = _ANY_FORMAT.match(begins)
            if not begins:
                raise RecordError(f"{path} is empty", cause=_CUT)
            # What it begins with is written last.
            if head is None and (MAGIC.startswith(begins) or not any(begins)):
                raise RecordError(f"{path} is damaged: nothing in it can be read", cause=_CUT)
            if head is None:
                raise RecordError(f"{path} is no digest of flight-recorder dumps, though it is called as one")
            if head[1][0] != FORMAT:
                raise RecordError(
                    f"{path} is a digest of format {head[1][0]}, and this unhang reads format {FORMAT}",
                    cause="another version of unhang wrote it: merge with that one, or sum up the dumps again",
                )
            stream = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).stream_reader(f)
            left = _MOST_BYTES
            with contextlib.suppress(zstandard.ZstdError):
                while len(measures := _exactly(stream, _HEAD.size)) == _HEAD.size:
                    size, checksum = _HEAD.unpack(measures)
                    left -= size + _HEAD.size
                    if size > _MOST_BLOCK_BYTES or left < 0:
                        return
                    block = _exactly(stream, size)
                    if len(block) < size or crc32(block) != checksum:
                        return
                    yield block
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e


def _exactly(stream: zstandard.ZstdDecompressionReader, size: int) -> bytes:
    """So many bytes, fewer at the end."""
    parts = list[bytes]()
    while size and (part := stream.read(min(size, 1024**2))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _columns(dump: _Dump) -> Columns:
    """Raises ValueError and the like where the columns do not fit each other."""
    if not (is_rank(dump.rank) and is_rank(dump.nth)):
        raise ValueError("a rank that no job has")
    kind_of, numbers, ends = _array("I", dump.kind_of), _numbers(dump.numbers), bytearray(dump.ends)
    if not len(kind_of) == len(numbers) == len(ends) == len(dump.site_of) // 4 <= _MOST_ENTRIES or ends.translate(None, _ENDS):
        raise ValueError("its columns do not fit each other")
    oldest = dump.span_ns[0]
    created = array("q", [oldest]) * len(kind_of)
    for place, after_ns in dump.times:
        created[place] = oldest + after_ns
    return Columns(
        version=dump.version,
        kinds=_kinds(bytes(dump.kinds)),
        kind_of=kind_of,
        numbers=numbers,
        ends=ends,
        created=created,
        message_numbers=dict(dump.messages),
        configured=_groups(bytes(dump.groups)),
        counters=dump.counters,
        lost=dump.lost,
        cut=dump.cut,
        skipped=dump.skipped,
        worlds=dump.worlds,
        untold=dump.untold,
        status={group: Counters(enqueued=enqueued, completed=completed) for group, (enqueued, completed) in dump.status.items()},
        patience_ns=dump.patience_ns,
        span=dump.span_ns,
    )


_ENDS = bytes(range(ENDED + 1))


@lru_cache(maxsize=256)
def _kinds(raw: bytes) -> tuple[What, ...]:
    return tuple(msgspec.msgpack.decode(raw, type=_Kinds))


@lru_cache(maxsize=16)
def _numbers(raw: bytes) -> array[int]:
    return array("q", accumulate(_array("q", raw)))


@lru_cache(maxsize=256)
def _groups(raw: bytes) -> dict[str, Group]:
    return {name: _group(name, desc, runs) for name, desc, runs in _groups_in_runs(raw)}


@lru_cache(maxsize=256)
def _groups_in_runs(raw: bytes) -> tuple[tuple[str, str, _Runs], ...]:
    return tuple((name, desc, tuple(runs)) for name, desc, runs in msgspec.msgpack.decode(raw, type=_Groups))


class _MostMembers:
    """Counts the members that the groups of a digest ask for, before they are made: runs of a few bytes can ask for any number."""

    def __init__(self) -> None:
        self._left = _MOST_MEMBERS
        self._seen: set[tuple[str, str, _Runs]] = set()

    def take(self, raw: bytes) -> None:
        """Raises ValueError where they are too many."""
        for group in _groups_in_runs(raw):
            if group not in self._seen:
                count = sum(count for _, count, _ in group[2])
                if not 0 <= count <= self._left:
                    raise ValueError("more members than the groups of a job have")
                self._left -= count
                self._seen.add(group)


@lru_cache(maxsize=4096)
def _group(name: str, desc: str, runs: _Runs) -> Group:
    return Group(name=name, desc=desc, members=_members(runs))


def _flight(columns: Columns, sites: Sequence[Site | None]) -> Flight:
    frames = {site: (Frame(file=site[0], line=site[1], name=site[2]),) for site in set(sites) if site is not None}
    calls: dict[str, list[Call]] = {}
    groups = dict(columns.configured)
    for place, (k, number, end, ns, site) in enumerate(zip(columns.kind_of, columns.numbers, columns.ends, columns.created, sites, strict=True)):
        (name, desc), profiling_name, sent, got, sent_types, _, p2p = columns.kinds[k]
        backend, op = operations.split(profiling_name)
        groups.setdefault(name, Group(name=name, desc=desc))
        message = columns.message_numbers.get(place)
        calls.setdefault(name, []).append(
            Call(
                group=name,
                seq=number if message is None else message,
                op=op,
                backend=backend,
                input_sizes=tuple(map(tuple, sent)),
                output_sizes=tuple(map(tuple, got)),
                dtypes=tuple(sent_types),
                done=end == COMPLETED or (end == ENDED and backend == "gloo"),
                is_p2p=p2p or message is not None,
                frames=frames[site] if site is not None else (),
                created_ns=ns,
            )
        )
    return Flight(
        version=columns.version,
        groups=groups,
        calls={name: in_order(found) for name, found in calls.items()},
        lost=columns.lost,
        cut=columns.cut or not_understood(columns.skipped),
        skipped=columns.skipped,
    )
