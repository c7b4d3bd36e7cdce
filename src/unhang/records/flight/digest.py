"""A summary of the dumps of one host, a few kilobytes for each rank: dumps that lie on a thousand machines are summed up where they lie, and only
the summaries travel.

It holds all that is compared between ranks, and of every call the line of the user's code that issued it; of times only those of the newest calls and
of those that are pending. What the dumps of several ranks have in common is held once: training loops repeat themselves, and ranks do the same.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from unhang.errors import RecordError
from unhang.records.flight import operations
from unhang.records.flight.columns import COMPLETED, ENDED, Columns, Recording, What, columns_and_frames, compared
from unhang.records.flight.entries import Call, Flight, Group
from unhang.records.flight.opening import Opened
from unhang.records.frames import Frame, user_frame

MAGIC = b"UNHANG-DIGEST\x01\n"
SUFFIX = ".unhang-digest"
# Of so many calls the times are kept.
_NEWEST = 64
_LEVEL = 9
# 1,024 ranks of 2,000 calls unpack to some 40 MB.
_MOST_BYTES = 1024**3
_WINDOW_BYTES = 128 * 1024**2
_MOST_ENTRIES = 1_000_000


class _Rank(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Columns as bytes, little-endian; numbers as differences from the one before. `kinds`, `sites`: places in the host's tables."""

    rank: int
    source: str
    second: bool
    bytes: int
    version: str
    kinds: list[int]
    kind_of: bytes
    numbers: bytes
    ends: bytes
    sites: bytes
    oldest_ns: int
    times: list[tuple[int, int]]
    messages: list[tuple[int, int]]
    configured: list[int]
    counters: dict[str, int]
    lost: bool
    cut: str | None
    skipped: int


class _Host(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    host: str
    kinds: list[tuple[tuple[str, str], str, list[list[int]], list[list[int]], list[str], list[str], bool]]
    # Name, description, members as runs of (first, count, stride).
    groups: list[tuple[str, str, list[tuple[int, int, int]]]]
    sites: list[tuple[str, int, str]]
    ranks: list[_Rank]


@dataclass(frozen=True, kw_only=True)
class Summed:
    """One dump, to be put into a digest. `sites[i]` is the user's line that issued entry i, None where there is none."""

    rank: int
    source: str
    second: bool
    bytes: int
    columns: Columns
    sites: Sequence[tuple[str, int, str] | None]


def summed(dump: Opened, *, rank: int, source: str, second: bool, size: int) -> Summed:
    """Raises RecordError where it is no dump."""
    try:
        columns, frames = columns_and_frames(dump)
        return Summed(rank=rank, source=source, second=second, bytes=size, columns=columns, sites=tuple(_sites(frames)))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as e:
        raise RecordError(f"{source} is not a flight-recorder dump that can be understood: {type(e).__name__}: {e}") from e


def _sites(frames: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[tuple[str, int, str] | None]:
    known: dict[tuple[int, ...], tuple[str, int, str] | None] = {}
    for stack in frames:
        # In a pickle the very same frames stand in thousands of entries.
        key = tuple(map(id, stack))
        if key not in known:
            found = [Frame(file=str(f.get("filename", "")), line=int(f.get("line") or 0), name=str(f.get("name", ""))) for f in reversed(stack)]
            frame = user_frame(found)
            known[key] = None if frame is None else (frame.file, frame.line, frame.name)
        yield known[key]


def write(folder: Path, host: str, ranks: Sequence[Summed]) -> Path:
    """Put the digest of a host into a folder: whole or not at all. Raises OSError."""
    import zstandard

    data = MAGIC + zstandard.ZstdCompressor(level=_LEVEL).compress(msgspec.msgpack.encode(_packed(host, ranks)))
    folder.mkdir(parents=True, exist_ok=True)
    first = min((r.rank for r in ranks), default=0)
    path = folder / f"{_as_name(host)}-rank{first}{SUFFIX}"
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _as_name(host: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in host).lstrip(".") or "host"


def _packed(host: str, ranks: Sequence[Summed]) -> _Host:
    kinds: dict[Any, int] = {}
    groups: dict[tuple[str, str, tuple[int, ...]], int] = {}
    sites: dict[tuple[str, int, str], int] = {}
    packed = []
    for r in ranks:
        c = r.columns
        newest = sorted(range(len(c.created)), key=c.created.__getitem__)[-_NEWEST:]
        ended = [n for n, end in enumerate(c.ends) if end in (COMPLETED, ENDED)]
        kept = {*newest, *(n for n, end in enumerate(c.ends) if end != COMPLETED), *([max(ended, key=c.created.__getitem__)] if ended else ())}
        oldest = min(c.created, default=0)
        packed.append(
            _Rank(
                rank=r.rank,
                source=r.source,
                second=r.second,
                bytes=r.bytes,
                version=c.version,
                kinds=[kinds.setdefault(_hashable(k), len(kinds)) for k in c.kinds],
                kind_of=_le(array("I", c.kind_of)),
                numbers=_le(array("q", (b - a for a, b in zip((0, *c.numbers), c.numbers, strict=False)))),
                ends=bytes(c.ends),
                # 0 is none.
                sites=_le(array("I", (0 if s is None else 1 + sites.setdefault(s, len(sites)) for s in r.sites))),
                oldest_ns=oldest,
                times=[(n, c.created[n] - oldest) for n in sorted(kept)],
                messages=sorted(c.message_numbers.items()),
                configured=[groups.setdefault((g.name, g.desc, g.members), len(groups)) for g in c.configured.values()],
                counters=dict(c.counters),
                lost=c.lost,
                cut=c.cut,
                skipped=c.skipped,
            )
        )
    return _Host(
        host=host,
        kinds=[_plain(k) for k in kinds],
        groups=[(name, desc, _runs(members)) for name, desc, members in groups],
        sites=list(sites),
        ranks=packed,
    )


def _hashable(what: What) -> Any:
    group, name, sent, got, sent_types, got_types, p2p = what
    name_of, desc = (str(group[0]), str(group[1]) if len(group) > 1 else "") if isinstance(group, (list, tuple)) else (str(group), "")

    def sizes(raw: Any) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(n) for n in size) for size in raw or ())

    return (
        (name_of, desc),
        str(name),
        sizes(sent),
        sizes(got),
        tuple(map(str, sent_types or ())),
        tuple(map(str, got_types or ())),
        bool(p2p),
    )


def _plain(kind: Any) -> Any:
    group, name, sent, got, sent_types, got_types, p2p = kind
    return group, name, [list(s) for s in sent], [list(s) for s in got], list(sent_types), list(got_types), p2p


def _runs(members: Sequence[int]) -> list[tuple[int, int, int]]:
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
    if any(count < 1 or stride < 1 for _, count, stride in runs) or sum(count for _, count, _ in runs) > _MOST_ENTRIES:
        raise ValueError("a list of members that is none")
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


def is_digest(path: Path) -> bool:
    """By its first bytes; False where it cannot be read."""
    try:
        with path.open("rb") as f:
            return f.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def recordings(path: Path) -> list[Recording]:
    """Every dump that was summed up, in columns, its `place` among them. Raises RecordError."""
    host = _read(path)
    size = path.stat().st_size
    found = []
    with _understood(path):
        for place, rank in enumerate(host.ranks):
            recording = compared(_columns(host, rank), rank=rank.rank, source=str(path), size=0 if place else size)
            found.append(replace(recording, place=place, is_second=rank.second))
    return found


def flight(path: Path, place: int) -> Flight:
    """One dump in objects, each call with the user's line alone. Raises RecordError."""
    host = _read(path)
    with _understood(path):
        rank = host.ranks[place]
        return _flight(_columns(host, rank), [host.sites[n - 1] if n else None for n in _array("I", rank.sites)])


def _read(path: Path) -> _Host:
    import zstandard

    try:
        data = path.read_bytes()
        if not data.startswith(MAGIC):
            raise RecordError(f"{path} is no digest of flight-recorder dumps, or of another version of unhang")
        unpacked = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).stream_reader(data[len(MAGIC) :]).read(_MOST_BYTES + 1)
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e
    except zstandard.ZstdError as e:
        raise RecordError(f"{path} is damaged: {e}", cause="it was cut off while it was written or copied") from e
    if len(unpacked) > _MOST_BYTES:
        raise RecordError(f"{path} is refused: it unpacks to more than any digest")
    with _understood(path):
        return msgspec.msgpack.decode(unpacked, type=_Host)


@contextlib.contextmanager
def _understood(path: Path) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, IndexError, OverflowError, MemoryError) as e:
        raise RecordError(f"{path} is damaged: {type(e).__name__}: {e}", cause="it was cut off while it was written or copied") from e


def _columns(host: _Host, rank: _Rank) -> Columns:
    """Raises ValueError and the like where the columns do not fit each other."""
    local = _array("I", rank.kind_of)
    differences, ends = _array("q", rank.numbers), bytearray(rank.ends)
    if not len(local) == len(differences) == len(ends) == len(rank.sites) // 4 <= _MOST_ENTRIES:
        raise ValueError("its columns are not equally long")
    if any(end > ENDED for end in set(ends)) or any(k >= len(rank.kinds) for k in set(local)):
        raise ValueError("a call of no kind")
    created = array("q", [rank.oldest_ns]) * len(local)
    for place, after_ns in rank.times:
        created[place] = rank.oldest_ns + after_ns
    groups = [Group(name=name, desc=desc, members=_members(runs)) for name, desc, runs in (host.groups[n] for n in rank.configured)]
    return Columns(
        version=rank.version,
        kinds=tuple(host.kinds[n] for n in rank.kinds),
        kind_of=local,
        numbers=array("q", accumulate(differences)),
        ends=ends,
        created=created,
        message_numbers=dict(rank.messages),
        configured={g.name: g for g in groups},
        counters=rank.counters,
        lost=rank.lost,
        cut=rank.cut,
        skipped=rank.skipped,
    )


def _flight(columns: Columns, sites: Sequence[tuple[str, int, str] | None]) -> Flight:
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
        calls={name: tuple(sorted(found, key=lambda c: (c.created_ns, c.seq))) for name, found in calls.items()},
        lost=columns.lost,
        cut=columns.cut,
        skipped=columns.skipped,
    )
