"""All dumps of a job in columns, read by as many processes as there are cores. What cannot be read is told, and the rest is used."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TypeVar

from unhang.errors import RecordError, UnhangError
from unhang.flight import digest, dump_selection
from unhang.flight.dump import flight_of
from unhang.flight.dump_file import DumpFile, opened, size_of
from unhang.flight.dump_selection import Placed
from unhang.flight.entries import NOT_UNDERSTOOD, Flight, Group, Site, not_understood, sites_of, together
from unhang.flight.rank_from_name import closed_ranks, is_rank, is_second, ranks_of
from unhang.flight.reader_processes import map_bounded, run_bounded
from unhang.flight.recording import Recording, columns_of, compared, recording_of, with_second
from unhang.flight.timeline_rows import CallKind, Lanes, lanes_of
from unhang.logs.readers import cores
from unhang.model import NotExamined, frozen

T = TypeVar("T")

# A digest takes so much longer for each byte.
_DENSE = 4
# Below it a second process is not worth its start.
_FEW_BYTES = 4 * 1024**2
# Of so many calls of all dumps together, 16 bytes each, and of so many of each file in any case.
_MOST_DRAWN = 16_000_000
_LEAST_DRAWN = 1_000
_SECOND_OF = re.compile(r"(?:^|/)cpu$")
# CPU time that reading a file once has left for `flight`, which reads it again.
_left_s = dict[Path, float]()


@frozen
class JobRecordings:
    """Every rank's recording, and the file it stands in. `unsure`: ranks were numbered in order of name.

    Files of ranks that are no use: `closed` may not be read, `blank` are empty or damaged, `copied` hold the dump of another rank, or of one of
    several. `all_copies`: all files hold one dump.

    `lanes`, where they were asked for: what is drawn of each rank, of its second recorder behind that of the first. `hosts`: where digests tell them.
    """

    recordings: Mapping[int, Recording]
    not_examined: tuple[NotExamined, ...] = ()
    unsure: bool = False
    lanes: Mapping[int, tuple[Lanes, ...]] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    closed: Mapping[int, str] = field(default_factory=dict)
    blank: Mapping[int, str] = field(default_factory=dict)
    copied: Mapping[int, str] = field(default_factory=dict)
    all_copies: bool = False

    @property
    def without(self) -> frozenset[int]:
        """The ranks whose files were given and are no use."""
        return frozenset({*self.closed, *self.blank, *self.copied})

    @property
    def unnumbered(self) -> bool:
        """Whether it is one dump alone, of a rank that nobody tells."""
        return self.unsure and self.recordings.keys() == {0}


def record_all(
    paths: Sequence[Path],
    *,
    drawn: bool = False,
    closed: Sequence[Path] = (),
    blank: Sequence[Path] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> JobRecordings:
    """Read all dumps, and digests of dumps; `drawn`: with what a timeline draws of them. Beside them lie files that may not be read (`closed`), or in
    which no dump is (`blank`).

    Of two folders with different dumps of one rank, two attempts, the newer one is taken; so it is of two dumps of one rank in a folder, unless they
    are of one time: then it is the one with more entries, and of two with as many the newer one.
    """
    are_digests = {p: digest.is_digest(p) for p in paths}
    digests, dumps = [p for p in paths if are_digests[p]], [p for p in paths if not are_digests[p]]
    named = ranks_of([str(p) for p in dumps])
    sizes = {p: size_of(p) for p in paths}
    total = sum(sizes.values())
    missed: list[NotExamined] = []
    of_files, of_digests = list[Placed](), list[tuple[Recording, digest.Name]]()
    shared = _Shared()
    # By where the dump lies: the file, and which one in it.
    lanes, hosts = dict[tuple[str, int], Lanes](), dict[tuple[str, int], str]()
    share = max(_LEAST_DRAWN, _MOST_DRAWN // max(1, len(paths))) if drawn else 0
    done = 0
    unread, lost = [str(path) for path in blank], dict[int, str]()

    def ready(path: Path, why: str | None, *, nothing: bool = False) -> None:
        nonlocal done
        done += sizes[path]
        progress(done, total)
        if why is not None:
            missed.append(NotExamined(what=str(path), why=why, unread=True))
        if nothing:
            unread.append(str(path))

    with contextlib.closing(_each(lambda path: _read(str(path), named.ranks[str(path)], share), dumps)) as answers:
        for path, (found_in, why) in zip(dumps, answers, strict=True):
            read = found_in or []
            ready(path, why, nothing=not read)
            of_files += [(shared.of(r), told, (str(path), r.place)) for r, told, _ in read]
            lanes |= {(str(path), r.place): shared.drawn(of) for r, _, of in read if of is not None}
            missed += [n for r, _, _ in read for n in _left_out(r)]
    with contextlib.closing(_each(lambda path: _read_digest(path, share), digests)) as parts:
        for path, (part, why) in zip(digests, parts, strict=True):
            ready(path, why)
            if part is None:
                continue
            of_digests += [(shared.of(r), name) for r, name, _ in part.dumps]
            lanes |= {(str(path), r.place): shared.drawn(of) for r, _, of in part.dumps if of is not None}
            hosts |= {(str(path), r.place): part.host for r, _, _ in part.dumps}
            names = [name.name for _, name, _ in part.dumps]
            lost |= {rank: f"{name} on {part.host}" for rank, name in closed_ranks([what for what, _ in part.missed], names).items()}
            missed += [NotExamined(what=f"{what} on {part.host}", why=why, unread=True) for what, why in part.missed]
            missed += [NotExamined(what=f"{what} on {part.host}", why=why) for what, why in part.beside]
            missed += [n for r, _, _ in part.dumps for n in _left_out(r, of_digest=True)]
    of_files, copies = dump_selection.without_copies(of_files, named.guessed)
    if copies:
        named = ranks_of([str(p) for p in dumps if str(p) not in {n.what for n in copies}])
        of_files = [(r if told else replace(r, rank=named.ranks[path] + nth), told, (path, nth)) for r, told, (path, nth) in of_files]
    of_files, strangers = dump_selection.of_the_job(of_files, named.guessed)
    missed += [*copies, *strangers]
    of_dumps, unsure_files = _one_behind_another(of_files, unsure=any(path in named.guessed and not told for _, told, (path, _) in of_files))
    of_dumps, older = _newest_attempt(of_dumps)
    missed += older
    ranked, unsure = _ranked_together(of_digests)
    told = dump_selection.told_apart([*of_dumps, *ranked])
    missed += told.missed
    taken = _one_of_each_rank((r for r in told.found if not r.is_second), missed)
    for rank, second in _one_of_each_rank((r for r in told.found if r.is_second), missed).items():
        taken[rank] = with_second(taken[rank], second) if rank in taken else second
    unsure |= unsure_files
    if told.unknown is not None:
        taken, unsure = {0: told.unknown}, True
    if not unsure:
        taken, unsure, strangers = dump_selection.at_home(taken)
        missed += strangers
    elif len(taken) == 1 and (own := dump_selection.of_messages(*taken.values())) is not None:
        taken, unsure = {own: replace(next(iter(taken.values())), rank=own)}, False
    whole = [str(p) for p in dumps if str(p) not in unread]

    def beside(files: Sequence[str]) -> dict[int, str]:
        return {} if unsure else {rank: file for rank, file in closed_ranks(files, whole).items() if rank not in taken}

    return JobRecordings(
        recordings=dict(sorted(taken.items())),
        not_examined=tuple(missed),
        unsure=unsure,
        closed=beside([str(p) for p in closed]),
        blank={} if unsure else {rank: file for rank, file in {**lost, **beside(unread)}.items() if rank not in taken},
        copied={} if unsure else {rank: file for rank, file in told.copied.items() if rank not in taken},
        all_copies=told.unknown is not None,
        lanes={rank: of for rank, r in sorted(taken.items()) if (of := _lanes(r, lanes))},
        hosts={rank: hosts[at] for rank, r in taken.items() if (at := (r.source, r.place)) in hosts},
    )


def _lanes(recording: Recording, lanes: Mapping[tuple[str, int], Lanes]) -> tuple[Lanes, ...]:
    first = lanes.get((recording.source, recording.place))
    second = lanes.get((recording.second, recording.second_place)) if recording.second is not None else None
    return tuple(found for found in (first, second and second.of_second()) if found is not None)


def _one_behind_another(found: Sequence[Placed], *, unsure: bool) -> tuple[list[Recording], bool]:
    """The recordings with their ranks, and whether these are `unsure`.

    Where files hold several dumps that tell no rank, one file for each host, all dumps are numbered.
    """
    if not any(nth and not told for _, told, (_, nth) in found):
        return [r for r, _, _ in found], unsure
    taken = {r.rank for r, told, _ in found if told}
    free = (n for n in itertools.count() if n not in taken)
    in_order = sorted((each for each in found if not each[1]), key=lambda each: (each[0].is_second, each[0].rank - each[2][1], each[2]))
    return [*(r for r, told, _ in found if told), *(replace(r, rank=next(free)) for r, _, _ in in_order)], True


def _newest_attempt(found: Sequence[Recording]) -> tuple[list[Recording], list[NotExamined]]:
    """The recordings without those of folders of which another folder has newer ones: ranks of two attempts do not fit each other."""
    by_folder: dict[str, list[Recording]] = {}
    for recording in found:
        by_folder.setdefault(_SECOND_OF.sub("", str(Path(recording.source).parent)), []).append(recording)
    newest = sorted(by_folder, key=lambda f: (max(r.newest_ns for r in by_folder[f]), len(by_folder[f]), f), reverse=True)
    of_rank: dict[tuple[int, bool], list[tuple[int, ...]]] = {}
    kept, left = list[Recording](), list[NotExamined]()
    for folder in newest:
        here = by_folder[folder]
        older = [r for r in here if (of := of_rank.get((r.rank, r.is_second))) and _extent(r) not in of]
        if older:
            ranks = sorted({r.rank for r in older})
            told = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{', …' if len(ranks) > 8 else ''}"
            left.append(NotExamined(what=folder, why=f"newer dumps of {told} are in another folder: all of this one were left out"))
            continue
        for recording in here:
            of_rank.setdefault((recording.rank, recording.is_second), []).append(_extent(recording))
        kept += here
    return kept, left


def _one_of_each_rank(recordings: Iterable[Recording], missed: list[NotExamined]) -> dict[int, Recording]:
    """Of dumps of one time the one with most entries, of several times, two runs, the newest one; `missed` is told what was left out."""
    of_rank: dict[int, list[Recording]] = {}
    for recording in recordings:
        of_rank.setdefault(recording.rank, []).append(recording)
    taken, left = dict[int, Recording](), dict[tuple[str, str], list[tuple[int, str]]]()
    for rank, found in of_rank.items():
        newest = found if len(found) == 1 else _of_newest_time(found)
        best = taken[rank] = max(newest, key=_extent)
        for other in found:
            if other is best:
                continue
            why = "older" if not any(other is r for r in newest) else "equal" if _extent(other) == _extent(best) else "less"
            left.setdefault((other.source, why), []).append((rank, best.source))
    for (source, kind), others in sorted(left.items()):
        ranks = sorted({rank for rank, _ in others})
        whose = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        files = sorted({taken_from for _, taken_from in others})
        where = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        says = {
            "older": f"a newer dump of {whose} was taken, whose calls were all made later: {where}",
            "equal": f"the dump of {whose} in it stands in {where}, too",
            "less": f"another dump of {whose} was taken, of the same time and with more or newer entries: {where}",
        }
        missed.append(NotExamined(what=source, why=says[kind]))
    return taken


def _of_newest_time(found: Sequence[Recording]) -> list[Recording]:
    """Those whose calls were made at about the time of the newest. A dump without calls is of any time."""
    timed = sorted((r for r in found if r.oldest_ns), key=lambda r: r.newest_ns, reverse=True)
    newest = timed[:1]
    since = min((r.oldest_ns for r in newest), default=0)
    for recording in timed[1:]:
        if recording.newest_ns < since:
            break
        newest.append(recording)
        since = min(since, recording.oldest_ns)
    return [*newest, *(r for r in found if not r.oldest_ns)]


def _extent(recording: Recording) -> tuple[int, int, int, int]:
    return recording.entries, recording.newest_ns, recording.done_ns, recording.oldest_ns


def _ranked_together(found: Sequence[tuple[Recording, digest.Name]]) -> tuple[list[Recording], bool]:
    """The recordings out of digests with their ranks, and whether those were numbered in order of name.

    Each host has seen its own names alone. Where they do not say "rank", or two hosts have different dumps of one rank, all names together tell; what
    a file itself tells stays.
    """
    claims: dict[tuple[int, bool], dict[str, tuple[int, ...]]] = {}
    for recording, name in found:
        claims.setdefault((recording.rank, recording.is_second), {})[name.host] = _extent(recording)
    if all(name.told or name.said for _, name in found) and all(len(set(of_hosts.values())) == 1 for of_hosts in claims.values()):
        return [recording for recording, _ in found], False
    paths = {name: f"{name.host}/{name.name}" for _, name in found}
    named = ranks_of(sorted(set(paths.values())))
    unsure = any(paths[name] in named.guessed and not name.told for _, name in found)
    ranked = [(r if name.told else replace(r, rank=named.ranks[paths[name]] + name.nth), name) for r, name in found]
    return _one_behind_another([(r, name.told, (paths[name], name.nth)) for r, name in ranked], unsure=unsure)


@frozen
class SummedUp:
    """A digest that was written, and what is not in it. `dumps` are those that are."""

    path: Path
    dumps: int
    ranks: tuple[int, ...]
    not_examined: tuple[NotExamined, ...] = ()


def sum_up(
    paths: Sequence[Path],
    folder: Path,
    host: str,
    *,
    clean: digest.Clean,
    called: Callable[[str], str] = str,
    lost: Sequence[NotExamined] = (),
    beside: Sequence[NotExamined] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SummedUp:
    """Write the digest of these dumps into a folder. `clean` takes credentials out of a text, `called` gives the name of a file that was unpacked;
    `lost` are dumps by their names that are none by what is in them, `beside` is what lies there that no digest holds.

    Raises UnhangError where none of them can be read, OSError where it cannot be written, RecordError where another one is there by its name.
    """
    already = [p for p in paths if digest.is_digest(p)]
    paths = [p for p in paths if p not in already]
    named = ranks_of([str(p) for p in paths])
    sizes = [size_of(p) for p in paths]
    missed = [NotExamined(what=called(str(p)), why="it is a digest, which is not summed up again") for p in already]
    unread = [(n.what, n.why) for n in lost]
    found: list[digest.Summed] = []
    done = 0
    with contextlib.closing(_each(lambda path: _sum(str(path), called(str(path)), named.ranks[str(path)], named.said, clean), paths)) as answers:
        for path, size, (summed, why) in zip(paths, sizes, answers, strict=True):
            done += size
            progress(done, sum(sizes))
            summed = summed or []
            found += summed
            missed += [NotExamined(what=called(str(path)), why=called(left), unread=True) for s in summed for left in s.left]
            if why is not None:
                unread.append((called(str(path)), called(why)))
    missed += [NotExamined(what=what, why=why, unread=True) for what, why in unread]
    if named.unsure:
        missed.append(NotExamined(what="which dump is of which rank", why="their names do not tell: they are numbered when all digests are merged"))
    if not found:
        told = "; ".join(f"{n.what}: {n.why}" for n in missed[:3])
        raise UnhangError("none of the flight-recorder dumps could be read", cause=told)
    found.sort(key=lambda s: s.rank)
    written = digest.write(folder, host, found, unread, [(n.what, n.why) for n in beside], clean=clean)
    return SummedUp(path=written, dumps=len(found), ranks=tuple(sorted({s.rank for s in found})), not_examined=(*missed, *beside))


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
    def read(path: Path) -> Flight | None:
        if digest.is_digest(path):
            read = digest.read(path)
            return flight_of(read.dump(place)[0], source=str(path)) if place < len(read) else None
        dumps = opened(path)
        told = [d for d in dumps if d.rank == rank]
        alone = told[0] if told else dumps[place] if place < len(dumps) else None
        return None if alone is None else flight_of(alone, source=str(path))

    return run_bounded(read, path, _worth(path), left_s=_left_s)


class _Shared:
    """What ranks have in common, held once: of 1,024 ranks each one tells the 1,024 members of the default group."""

    def __init__(self) -> None:
        self._groups: dict[Group, Group] = {}
        # Those of them by identity, which is quicker than 1,024 numbers.
        self._held: set[int] = set()
        self._texts: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._drawn: dict[tuple[CallKind, ...], tuple[CallKind, ...]] = {}
        self._sites: dict[tuple[Site | None, ...], tuple[Site | None, ...]] = {}
        self._columns: dict[bytes, bytes] = {}

    def of(self, recording: Recording) -> Recording:
        return replace(
            recording,
            calls=self._texts.setdefault(recording.calls, recording.calls),
            tracks=tuple(replace(t, group=self._group(t.group)) for t in recording.tracks),
            groups=tuple(map(self._group, recording.groups)),
            messages=tuple(replace(m, group=self._group(m.group)) for m in recording.messages),
        )

    def drawn(self, lanes: Lanes) -> Lanes:
        def once(columns: bytes) -> bytes:
            return self._columns.setdefault(columns, columns)

        return replace(
            lanes,
            calls=self._drawn.setdefault(lanes.calls, lanes.calls),
            sites=self._sites.setdefault(lanes.sites, lanes.sites),
            lanes=tuple(
                replace(lane, group=self._group(lane.group), ops=once(lane.ops), sites=once(lane.sites), ends=once(lane.ends)) for lane in lanes.lanes
            ),
        )

    def _group(self, group: Group) -> Group:
        if id(group) in self._held:
            return group
        found = self._groups.setdefault(group, group)
        self._held.add(id(found))
        return found


def _worth(path: Path) -> int:
    """The size of a dump that takes as long to read."""
    return size_of(path) * (_DENSE if digest.is_digest(path) else 1)


def _left_out(recording: Recording, *, of_digest: bool = False) -> list[NotExamined]:
    what = f"{recording.source}: the dump of rank {recording.rank} in it" if of_digest else recording.source
    found = []
    if recording.cut:
        found.append(NotExamined(what=what, why=recording.cut, unread=True))
    if recording.untold:
        found.append(NotExamined(what=what, why=recording.untold, unread=True))
    if (skipped := not_understood(recording.skipped)) is not None and skipped != recording.cut:
        found.append(NotExamined(what=what, why=skipped, unread=True))
    return found


def _each(task: Callable[[Path], T], paths: Sequence[Path]) -> Generator[tuple[T | None, str | None]]:
    """What a task returns of each file, or why nothing; by so many processes as these are worth."""
    sizes = list(map(_worth, paths))
    processes = cores() if sum(sizes) > _FEW_BYTES else 1
    for path in paths:
        _left_s.pop(path, None)
    with contextlib.closing(map_bounded(task, paths, sizes, processes=processes, left_s=_left_s)) as answers:
        for path, answer in zip(paths, answers, strict=True):
            if isinstance(answer, RecordError):
                yield None, str(answer).removeprefix(f"{path} ").replace(str(path), "it") + (f" ({answer.cause})" if answer.cause else "")
            else:
                yield answer, None


def _read(path: str, rank: int, drawn: int) -> list[tuple[Recording, bool, Lanes | None]]:
    """`drawn`: what is drawn of so many calls is wanted, too."""
    size = size_of(Path(path))
    found = []
    for n, number, told, dump in _ranked(path, rank):
        recording, lanes = _recorded(dump, number, path, size, drawn)
        found.append((replace(recording, place=n, is_second=is_second(path)), told, lanes))
    return found


@frozen
class _Host:
    """What a digest tells; `missed` and `beside` as in `digest.write`."""

    host: str
    dumps: Sequence[tuple[Recording, digest.Name, Lanes | None]]
    missed: Sequence[tuple[str, str]]
    beside: Sequence[tuple[str, str]]


def _read_digest(path: Path, drawn: int) -> _Host:
    read, size, dumps = digest.read(path), size_of(path), list[tuple[Recording, digest.Name, Lanes | None]]()
    for place in range(len(read)):
        dump, name = read.dump(place)
        recording, lanes = _recorded(dump, name.rank, str(path), size, drawn // len(read))
        dumps.append((replace(recording, place=place, is_second=name.second), name, lanes))
    return _Host(host=read.host, dumps=dumps, missed=read.missed, beside=read.beside)


def _recorded(dump: DumpFile, rank: int, path: str, size: int, drawn: int) -> tuple[Recording, Lanes | None]:
    """A dump in columns, and what is drawn of it; that it cannot be drawn costs nothing else. Raises RecordError where it is none."""
    if not drawn:
        return recording_of(dump, rank=rank, source=path, size=size), None
    try:
        columns, entries = columns_of(dump)
        recording = compared(columns, rank=rank, source=path, size=size)
    except NOT_UNDERSTOOD:
        # Says why it is none.
        return recording_of(dump, rank=rank, source=path, size=size), None
    try:
        return recording, lanes_of(columns, sites_of(entries), most=drawn)
    except NOT_UNDERSTOOD:
        return recording, None


def _sum(path: str, name: str, rank: int, said: bool, clean: digest.Clean) -> list[digest.Summed]:
    found = []
    for n, number, told, dump in _ranked(path, rank):
        where = digest.Name(rank=number, name=name, nth=n, told=told, said=said, second=is_second(path))
        found.append(digest.summed(dump, where=where, clean=clean))
    return found


def _ranked(path: str, rank: int) -> Iterator[tuple[int, int, bool, DumpFile]]:
    """The dumps in a file: place, rank, whether the file itself tells that, dump."""
    dumps = opened(Path(path), shorter=True)
    if not is_rank(rank) and any(dump.rank is None for dump in dumps):
        raise RecordError(f"{path} is named as the dump of rank {rank}, and no job has that many")
    for n, dump in enumerate(dumps):
        yield n, dump.rank if dump.rank is not None else rank + n if len(dumps) > 1 else rank, dump.rank is not None, dump
