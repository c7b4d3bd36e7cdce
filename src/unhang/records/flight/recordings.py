"""All dumps of a job in columns, read by as many processes as there are cores. What cannot be read is told, and the rest is used."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from unhang.errors import RecordError, UnhangError
from unhang.model import NotExamined
from unhang.records.flight import digest
from unhang.records.flight.columns import Recording, recording_of, with_second
from unhang.records.flight.entries import Flight, Group, flight_of, together
from unhang.records.flight.naming import is_second, ranks_of
from unhang.records.flight.opening import Opened, opened
from unhang.records.logs.readers import Readers

T = TypeVar("T")

# Below it a process is not worth its start.
_FEW_BYTES = 4 * 1024**2
# A digest unpacks to so many times its size.
_PACKED = 50
# What a process may take beside what it has: unpickled, a dump is some 20 times its size.
_ROOM_BYTES = 1024**3
_GROWTH = 40


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Every rank's recording, and the file it stands in. `unsure`: ranks were numbered in order of name."""

    recordings: Mapping[int, Recording]
    not_examined: tuple[NotExamined, ...] = ()
    unsure: bool = False


def record_all(paths: Sequence[Path], *, progress: Callable[[int, int], None] = lambda done, total: None) -> Recorded:
    """Read all dumps. Of two of one rank the one with more entries is taken."""
    digests = {p for p in paths if digest.is_digest(p)}
    named = ranks_of([str(p) for p in paths if p not in digests])
    sizes = [_size(p) for p in paths]
    work = sum(size * (_PACKED if path in digests else 1) for path, size in zip(paths, sizes, strict=True))
    missed: list[NotExamined] = []
    found: dict[int, Recording] = {}
    seconds: dict[int, Recording] = {}
    groups: dict[Group, Group] = {}
    texts: dict[tuple[str, ...], tuple[str, ...]] = {}
    done = 0
    with Readers(None, parallel=work > _FEW_BYTES) as readers:
        futures = [readers.submit(_read, str(path), named.ranks.get(str(path), 0), readers.forked) for path in paths]
        for path, size, future in zip(paths, sizes, futures, strict=True):
            recordings, why = readers.result(future)
            done += size
            progress(done, sum(sizes))
            if why is not None:
                missed.append(NotExamined(what=str(path), why=why, unread=True))
            for recording in (_shared(r, groups, texts) for r in recordings):
                missed += _left_out(recording)
                if recording.is_second:
                    seconds[recording.rank] = recording
                    continue
                known = found.get(recording.rank)
                if known is None or recording.entries > known.entries:
                    found[recording.rank] = recording
                if known is not None:
                    less = min(recording, known, key=lambda r: r.entries)
                    missed.append(NotExamined(what=less.source, why=f"another dump of rank {less.rank} with more entries was taken"))
    for rank, second in seconds.items():
        found[rank] = with_second(found[rank], second) if rank in found else second
    return Recorded(recordings=dict(sorted(found.items())), not_examined=tuple(missed), unsure=named.unsure)


@dataclass(frozen=True, kw_only=True)
class SummedUp:
    """A digest that was written, and what is not in it. `dumps` are those that are."""

    path: Path
    dumps: int
    ranks: tuple[int, ...]
    not_examined: tuple[NotExamined, ...] = ()


def sum_up(paths: Sequence[Path], folder: Path, host: str, *, progress: Callable[[int, int], None] = lambda done, total: None) -> SummedUp:
    """Write the digest of these dumps into a folder. Raises UnhangError where none of them can be read, OSError where it cannot be written."""
    named = ranks_of([str(p) for p in paths])
    sizes = [_size(p) for p in paths]
    missed: list[NotExamined] = []
    found: list[digest.Summed] = []
    done = 0
    with Readers(None, parallel=sum(sizes) > _FEW_BYTES) as readers:
        futures = [readers.submit(_sum, str(path), named.ranks[str(path)], readers.forked) for path in paths]
        for path, size, future in zip(paths, sizes, futures, strict=True):
            summed, why = readers.result(future)
            done += size
            progress(done, sum(sizes))
            found += summed
            if why is not None:
                missed.append(NotExamined(what=str(path), why=why, unread=True))
    if named.unsure:
        missed.append(NotExamined(what="which dump is of which rank", why="their names do not tell: they were numbered in order of name"))
    if not found:
        told = "; ".join(f"{n.what}: {n.why}" for n in missed[:3])
        raise UnhangError("none of the flight-recorder dumps could be read", cause=told)
    written = digest.write(folder, host, found)
    return SummedUp(path=written, dumps=len(found), ranks=tuple(sorted({s.rank for s in found})), not_examined=tuple(missed))


def flight(recording: Recording) -> Flight | None:
    """The dump of a rank once more, in objects and with its frames; None where it has gone."""
    try:
        first = _flight(Path(recording.source), recording.rank, recording.place)
        if first is None or recording.second is None:
            return first
        second = _flight(Path(recording.second), recording.rank, recording.second_place)
        return first if second is None else together(first, second)
    except (RecordError, OSError):
        return None


def _flight(path: Path, rank: int, place: int) -> Flight | None:
    if digest.is_digest(path):
        return digest.flight(path, place)
    dumps = opened(path)
    told = [d for d in dumps if d.rank == rank]
    alone = told[0] if told else dumps[place] if place < len(dumps) else None
    return None if alone is None else flight_of(alone, source=str(path))


def _shared(recording: Recording, groups: dict[Group, Group], texts: dict[tuple[str, ...], tuple[str, ...]]) -> Recording:
    """The same with what other ranks have, too, held once: of 1,024 ranks each one tells the 1,024 members of the default group."""
    return replace(
        recording,
        calls=texts.setdefault(recording.calls, recording.calls),
        tracks=tuple(replace(t, group=groups.setdefault(t.group, t.group)) for t in recording.tracks),
        groups=tuple(groups.setdefault(g, g) for g in recording.groups),
        messages=tuple(replace(m, group=groups.setdefault(m.group, m.group)) for m in recording.messages),
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _left_out(recording: Recording) -> list[NotExamined]:
    found = []
    if recording.cut:
        found.append(NotExamined(what=recording.source, why=recording.cut, unread=True))
    if recording.skipped:
        found.append(NotExamined(what=recording.source, why=f"{recording.skipped} of its entries could not be understood", unread=True))
    return found


def _read(_needles: Any, _stop: Any, path: str, rank: int, forked: bool) -> tuple[list[Recording], str | None]:
    return _carefully(_recordings, path, rank, forked=forked)


def _sum(_needles: Any, _stop: Any, path: str, rank: int, forked: bool) -> tuple[list[digest.Summed], str | None]:
    return _carefully(_summed, path, rank, forked=forked)


def _carefully(read: Callable[..., list[T]], path: str, rank: int, *, forked: bool) -> tuple[list[T], str | None]:
    """One file. Never raises: what a process raises ends the reading of all."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        if forked:
            # A packed one may be worth more memory than that.
            with contextlib.suppress(MemoryError), _bounded(_size(Path(path))) as bounded:
                return read(path, rank, guard=not bounded), None
        return read(path, rank, guard=True), None
    except RecordError as e:
        return [], str(e).removeprefix(f"{path} ").replace(path, "it") + (f" ({e.cause})" if e.cause else "")
    except MemoryError:
        return [], "there is not enough memory for it"
    finally:
        if collecting:
            gc.enable()


def _recordings(path: str, rank: int, *, guard: bool) -> list[Recording]:
    if digest.is_digest(Path(path)):
        return digest.recordings(Path(path))
    size = _size(Path(path))
    return [
        replace(recording_of(dump, rank=number, source=path, size=size), place=n, is_second=is_second(path))
        for n, (number, dump) in enumerate(_ranked(path, rank, guard=guard))
    ]


def _summed(path: str, rank: int, *, guard: bool) -> list[digest.Summed]:
    size = _size(Path(path))
    return [digest.summed(dump, rank=number, source=path, second=is_second(path), size=size) for number, dump in _ranked(path, rank, guard=guard)]


def _ranked(path: str, rank: int, *, guard: bool) -> Iterator[tuple[int, Opened]]:
    dumps = opened(Path(path), guard=guard)
    for n, dump in enumerate(dumps):
        yield dump.rank if dump.rank is not None else rank + n if len(dumps) > 1 else rank, dump


@contextlib.contextmanager
def _bounded(size: int) -> Iterator[bool]:
    """Whether this process is kept from taking more memory than a file of this size can be worth."""
    try:
        with open("/proc/self/statm", "rb") as f:  # noqa: PTH123
            now = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = now + _ROOM_BYTES + _GROWTH * size
        if soft != resource.RLIM_INFINITY:
            limit = min(limit, soft)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (OSError, ValueError):
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
