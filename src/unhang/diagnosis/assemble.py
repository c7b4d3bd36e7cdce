"""From single logs to one view of the job: whose line is it, which attempt, and in what order across hosts.

What the logs do not tell is not guessed: a number that may be a node's, a rank within a part of the job, or the pid of a process on another host
names no rank, and times that cannot be compared order nothing.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from unhang.diagnosis import clocks
from unhang.diagnosis.clocks import Scale, Shared
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, LogRead, Signature, Traceback, alarms, attempts, by_cause, exits, log_facts, nccl_lines, owner_of, watchdog
from unhang.logs.attempts import Failure, Marks
from unhang.logs.line import Readable
from unhang.logs.timestamps import Stamp, resolve
from unhang.logs.tracebacks import BEHIND
from unhang.model import frozen
from unhang.records import stacks_in_logs
from unhang.records.stacks_in_logs import Dumped

Piece = TypeVar("Piece", Hit, Traceback)

CONTEXT: tuple[Signature, ...] = tuple(
    dict.fromkeys(
        (
            *watchdog.SIGNATURES,
            *exits.SIGNATURES,
            *nccl_lines.SIGNATURES,
            *alarms.WORK,
            *alarms.FINISHED,
            *alarms.ENDS,
            *attempts.SIGNATURES,
            *log_facts.SIZES,
            *stacks_in_logs.SIGNATURES,
        )
    )
)
_WATCHDOG, _EXITS, _NCCL = frozenset(watchdog.SIGNATURES), frozenset(exits.SIGNATURES), frozenset(nccl_lines.SIGNATURES)
_AGENTS = frozenset((exits.RANK, exits.CODE, exits.FAILED, exits.DEEPSPEED, *attempts.AGENTS))
# A host alone stands in tables of settings as well.
_FAILED = _EXITS - {exits.HOST}
_ENDED = _FAILED - frozenset(exits.SUBPROCESS)
_TEARDOWN = "launcher-teardown"
# Of what a teardown may look like, this also happens in runs that go on: some tool failed, a data loader was closed.
_NO_END = ("subprocess.CalledProcessError: Command", "is killed by signal: Terminated")
_WORK, _STARTS, _SIZES = frozenset(alarms.WORK), frozenset(attempts.STARTS), frozenset(log_facts.SIZES)
_STACKS = frozenset(stacks_in_logs.SIGNATURES)
_CRASHES, _ENDS = frozenset(alarms.CRASHES), frozenset(alarms.ENDS)
_OVER = _ENDS.union(alarms.FINISHED)
# These tell attempts apart, and nothing else.
_COURSE = frozenset((attempts.GAVE_UP, *attempts.STEPS))


# What launchers raise when a process of theirs has ended.
_OF_LAUNCHERS = (
    "ChildFailedError",
    "CalledProcessError",
    "ProcessRaisedException",
    "ProcessExitedException",
    "SignalException",
    "RendezvousClosedError",
)

# A name of a directory may hold any number.
MAX_ATTEMPTS = 1000


class Process(NamedTuple):
    """A process of one attempt. Pids are unique on a host, or, where lines name none, as far as we know within one log."""

    attempt: int
    host: str | None
    source: str | None
    pid: int


@frozen
class _Times:
    """How a printed time gets onto the scale of the job: zones, the host of each log that names one, and how far clocks are ahead."""

    scale: Scale
    hosts: Mapping[str, str]
    ahead: Mapping[str, float]

    def seconds(self, source: str, time: Stamp) -> float | None:
        at_s = self.scale.seconds(source, time.seconds, time.offset_s)
        return clocks.corrected(at_s, self.hosts.get(source, source), self.ahead)


@frozen
class Attempt:
    """One attempt of the job: what its logs hold, and every hit of it in order (context among them). `times` places others of its times.

    `dumped` are the stacks of all its threads.
    """

    number: int
    view: LogView
    hits: tuple[Hit, ...]
    times: _Times | None = None
    dumped: Dumped = field(default_factory=Dumped)


def assemble(reads: Sequence[LogRead], causes: Mapping[Signature, str]) -> tuple[Attempt, ...]:
    """The attempts of the job, oldest first; at least one. `causes` maps each signature of a cause to its id."""
    hits = [*exits.bounded(h for read in reads for h in read.hits if h.signature not in _COURSE)]
    marks = [h for read in reads for h in read.hits if h.signature in _COURSE]
    backs = [t for read in reads for t in read.tracebacks]
    pieces: list[Hit | Traceback] = [*hits, *backs]
    scale = clocks.scale_of((p.source, p.utc_offset_s) for p in pieces if p.at_s is not None)
    hosts = _only_hosts(pieces)
    hits = [_on_scale(h, scale) for h in hits]
    marks = [_on_scale(h, scale) for h in marks]
    backs = [_on_scale(t, scale) for t in backs]
    if ahead := clocks.offsets(_shared(hits, hosts)):
        hits = [replace(h, at_s=clocks.corrected(h.at_s, _clock(h, hosts), ahead)) for h in hits]
        marks = [replace(h, at_s=clocks.corrected(h.at_s, _clock(h, hosts), ahead)) for h in marks]
        backs = [replace(t, at_s=clocks.corrected(t.at_s, _clock(t, hosts), ahead)) for t in backs]
    order = {r.source: n for n, r in enumerate(reads)}
    course = _course(list(order), hits, marks, backs, causes)
    steps = Marks(course.placed(marks))
    hits = [h for h in _with_later_steps(course.placed(hits), steps, course.total) if not (h.signature in _OVER and steps.count_on(h))]
    backs = course.placed(backs)
    if not _labels_are_nodes(hits, backs):
        hits = [_with_label(h) for h in hits]
        backs = [_with_label(t) for t in backs]
    ranks = _ranks_of_processes(hits)
    hits = _ordered([_with_rank(h, ranks) for h in hits], order)
    hits = _with_gpus(hits)
    backs = _ordered([_with_rank(t, ranks) for t in backs], order)
    for number in range(1, course.total + 1):
        hits, backs = _as_launchers_say(number, hits, backs)
    printed = frozenset(n for r in reads for n in r.ranks)
    lines = {r.source: r.lines for r in reads}
    times = _Times(scale=scale, hosts=hosts, ahead=ahead)
    return tuple(_attempt(n, hits, backs, causes, printed, lines, times) for n in range(1, course.total + 1))


def with_stacks(
    attempts: Sequence[Attempt], paths: Mapping[str, Path], again: Callable[[Set[str]], Iterable[tuple[str, Readable]]] = lambda names: ()
) -> tuple[tuple[Attempt, ...], tuple[str, ...]]:
    """The attempts with the stacks that their logs hold, and the logs in which those could not be read.

    `paths` are files to be opened again, `again` gives the streams of other logs.
    """
    found: list[Attempt] = []
    left: list[str] = []
    for n, attempt in enumerate(attempts):
        if any(h.signature in _STACKS for h in attempt.hits):
            from unhang.knowledge import collective_waits

            spans = _spans(attempts[:n], attempts[n + 1 :])
            told = stacks_in_logs.read(
                attempt.hits, paths, again=again, spans=spans, failed=collective_waits.failing(attempt.view), seconds=partial(_seconds, attempt)
            )
            attempt = replace(attempt, view=replace(attempt.view, stacks=told.standing), dumped=told)
            left += told.left
        found.append(attempt)
    return tuple(found), tuple(dict.fromkeys(left))


def _spans(earlier: Iterable[Attempt], later: Iterable[Attempt]) -> dict[str, range]:
    """The lines of each log between those of earlier attempts and those of later ones."""
    found: dict[str, range] = {}
    whole = range(1, sys.maxsize)
    for h in (h for attempt in earlier for h in attempt.hits if h.line is not None):
        known = found.get(h.source, whole)
        found[h.source] = range(max(known.start, (h.line or 0) + 1), known.stop)
    for h in (h for attempt in later for h in attempt.hits if h.line is not None):
        known = found.get(h.source, whole)
        found[h.source] = range(known.start, min(known.stop, h.line or 0))
    return found


def _seconds(attempt: Attempt, source: str, time: Stamp) -> float | None:
    """A time that a log prints, as those of hits are; the year of one without is that of its attempt."""
    known = next((h.at_s for h in attempt.hits if h.at_s is not None), None)
    placed = resolve((None if known is None else Stamp(seconds=known), time))[1]
    return None if placed is None or not placed.has_year or attempt.times is None else attempt.times.seconds(source, placed)


def _attempt(
    number: int,
    hits: Iterable[Hit],
    backs: Iterable[Traceback],
    causes: Mapping[Signature, str],
    printed: frozenset[int],
    lines: Mapping[str, int],
    times: _Times,
) -> Attempt:
    own = tuple(h for h in hits if h.attempt == number)
    view = LogView(
        hits=by_cause((h for h in own if h.signature in causes), causes),
        tracebacks=tuple(t for t in backs if t.attempt == number),
        timeouts=watchdog.timeouts(h for h in own if h.signature in _WATCHDOG),
        statuses=watchdog.statuses(h for h in own if h.signature in _WATCHDOG),
        exits=exits.read(h for h in own if h.signature in _EXITS),
        nccl=nccl_lines.read(h for h in own if h.signature in _NCCL),
        work=tuple(h for h in own if h.signature in _WORK),
        printed=printed | {h.rank for h in own if h.rank is not None},
        world_size=log_facts.world_size(h for h in own if h.signature in _SIZES or h.signature in _NCCL),
        lines=lines,
        finished=any(h.signature in alarms.FINISHED for h in own),
        ends=tuple(h for h in own if h.signature in _ENDS),
        crashed=tuple(h for h in own if h.signature in _CRASHES),
    )
    return Attempt(number=number, view=view, hits=own, times=times)


@frozen
class _Course:
    """How the attempts of a job are told apart.

    `named` are the attempts that names of directories tell. `starts` are the places of the other logs at which their later attempts begin. `restarts`
    are the times of attempts 2, 3, ..., () where some are not known; `times` are those of each log, with their places.
    """

    total: int
    named: Mapping[str, int]
    starts: Mapping[str, tuple[int, ...]]
    restarts: tuple[float, ...]
    times: Mapping[str, Sequence[tuple[int, float]]]

    def placed(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Each piece with its attempt, in the order given."""
        return [replace(p, attempt=self._attempt(p)) for p in pieces] if self.total > 1 else list(pieces)

    def _attempt(self, piece: Hit | Traceback) -> int:
        """What the name tells; else the starts in the log; else the time; else the last, for a log that begins late holds the later attempts."""
        if piece.source in self.named:
            return self.named[piece.source]
        starts = self.starts[piece.source]
        if not starts and self.restarts and (times := self.times.get(piece.source)):
            # A line without a time was printed behind the one before it that has one.
            before = bisect_right(times, piece.place, key=lambda t: t[0]) - 1
            return attempts.attempt_of(times[max(before, 0)][1], self.restarts)
        return self.total - len(starts) - 1 + attempts.attempt_of(piece.place, starts)


def _course(
    sources: Sequence[str], hits: Sequence[Hit], marks: Sequence[Hit], backs: Sequence[Traceback], causes: Mapping[Signature, str]
) -> _Course:
    of_source: dict[str, list[Hit]] = {s: [] for s in sources}
    for h in hits:
        of_source[h.source].append(h)
    times: dict[str, list[tuple[int, float]]] = {}
    for p in (*((h.source, h.place, h.at_s) for h in hits), *((t.source, t.place, t.at_s) for t in backs)):
        if p[2] is not None:
            times.setdefault(p[0], []).append((p[1], p[2]))
    told = {s: owner_of(s).attempt for s in of_source}
    named = {s: n for s, n in told.items() if n is not None and n <= MAX_ATTEMPTS}
    by_mark = Marks(marks)
    begun = {s: _starts(found, by_mark, causes) for s, found in of_source.items() if s not in named}
    total = max((*named.values(), *(len(b) + 1 for b in begun.values())), default=1)
    restarts = next((b for b in begun.values() if len(b) == total - 1 and all(h.at_s is not None for h in b)), ())
    return _Course(
        total=total,
        named=named,
        starts={s: tuple(h.place for h in b) for s, b in begun.items()},
        restarts=tuple(h.at_s for h in restarts if h.at_s is not None),
        times={s: sorted(found) for s, found in times.items()},
    )


def _with_later_steps(hits: Sequence[Hit], marks: Marks, total: int) -> list[Hit]:
    """The roots and alarms with the steps of their own attempt that follow them."""
    ends: dict[tuple[str, int], int] = {}
    for h in hits:
        ends[h.source, h.attempt] = max(ends.get((h.source, h.attempt), 0), h.line or 0)

    def told(h: Hit) -> tuple[str, ...]:
        # Those near the end of an attempt may be of the next one.
        near = h.attempt == total or ends[h.source, h.attempt] - (h.line or 0) > BEHIND
        return tuple(dict.fromkeys((*(h.steps if near else ()), *marks.behind(h))))

    return [replace(h, steps=told(h)) if h.signature.role in ("root", "alarm") else h for h in hits]


def _starts(hits: Sequence[Hit], marks: Marks, causes: Mapping[Signature, str]) -> tuple[Hit, ...]:
    failures = (Failure(place=h.place, at_s=h.at_s, ended=_has_ended(h, causes), gone=h.signature in _ENDED) for h in hits if _has_failed(h, causes))
    found = attempts.starts_of((h for h in hits if h.signature in _STARTS), failures)
    unsaid = attempts.unsaid_start(hits, found, marks)
    return found if unsaid is None else (*found, unsaid)


def _has_failed(hit: Hit, causes: Mapping[Signature, str]) -> bool:
    """Whether a run may have failed by what this line says: exceptions may be caught, and a possible root may be none."""
    cause = causes.get(hit.signature)
    return (
        hit.signature in _FAILED
        or cause == _TEARDOWN
        or (cause is not None and hit.signature.role == "root" and hit.signature.standing == "established")
    )


def _has_ended(hit: Hit, causes: Mapping[Signature, str]) -> bool:
    return hit.signature in _ENDED or (causes.get(hit.signature) == _TEARDOWN and hit.signature.needle not in _NO_END)


def _labels_are_nodes(hits: Sequence[Hit], backs: Sequence[Traceback]) -> bool:
    """srun and mpirun number their tasks: ranks, unless each task is a launcher that starts several.

    That is proven by words of such a launcher, and by a line that has another number beside the task's: a local rank, or a rank of its own.
    """
    if any(h.signature in _AGENTS for h in hits):
        return True
    pieces: list[Hit | Traceback] = [*hits, *backs]
    return any(p.local_rank is not None or p.rank not in (None, p.label) for p in pieces if p.label is not None and not _is_about_others(p))


def _is_about_others(piece: Hit | Traceback) -> bool:
    return isinstance(piece, Hit) and "rank" in piece.groups


def _with_gpus(hits: list[Hit]) -> list[Hit]:
    """What the driver says of a GPU is of the rank that NCCL says uses it: on the same host, for the GPUs of all hosts have the same addresses."""
    users: dict[tuple[int, str | None, str], set[int]] = {}
    for h in hits:
        if h.rank is not None and (address := nccl_lines.gpu_of(h)) is not None:
            users.setdefault((h.attempt, h.host, address), set()).add(h.rank)
    hosts = {host for _, host, _ in users}
    return [_with_gpu(h, users, hosts) if h.rank is None and {"xid", "bus"} <= h.groups.keys() else h for h in hits]


def _with_gpu(hit: Hit, users: Mapping[tuple[int, str | None, str], set[int]], hosts: set[str | None]) -> Hit:
    from unhang.kernel_lines import device_of

    host = hit.host if hit.host is not None or len(hosts) != 1 else next(iter(hosts))
    try:
        address = device_of(hit.groups["bus"])
    except ValueError:
        return hit
    found = users.get((hit.attempt, host, address), set()) if address is not None else set()
    return replace(hit, rank=next(iter(found)), host=host) if len(found) == 1 else hit


def _ranks_of_processes(hits: Sequence[Hit]) -> dict[Process, int]:
    """Process to rank, as lines that name both tell: by host, and by log for lines that name no host."""
    told = [(h.attempt, h.host, h.source, h.pid, h.rank) for h in hits if h.signature not in _STARTS]
    for attempt in {h.attempt for h in hits}:
        own = [h for h in hits if h.attempt == attempt]
        # torchrun names rank and process in two lines.
        ended = exits.read(h for h in own if h.signature in _EXITS and h.signature != exits.SRUN)
        told += [(attempt, e.at.host, e.at.source, e.at.pid, e.at.rank) for e in ended]
        told += [(attempt, h.host, h.source, h.pid, rank) for h, rank in _ranks_of_communicators(own)]
    found: dict[Process, int] = {}
    contested: set[Process] = set()
    for attempt, host, source, pid, rank in told:
        if rank is None or pid is None:
            continue
        keys = [Process(attempt, None, source, pid)]
        if host is not None:
            keys.append(Process(attempt, host, None, pid))
        for key in keys:
            if found.setdefault(key, rank) != rank:
                contested.add(key)
    return {k: v for k, v in found.items() if k not in contested}


def _ranks_of_communicators(hits: Sequence[Hit]) -> list[tuple[Hit, int]]:
    """Ranks in communicators of the whole job: those of its size, or the largest where that is not told. Each rank then is one process.

    Where two processes have one rank, the communicators were parts of a larger job.
    """
    size = log_facts.world_size(h for h in hits if h.signature in _SIZES or h.signature in _NCCL)
    found = [
        (h, int(h.groups["comm_rank"])) for h in hits if h.signature in (nccl_lines.START, nccl_lines.COMPLETE) and int(h.groups["nranks"]) == size
    ]
    holders: dict[int, set[tuple[str | None, int | None]]] = {}
    for h, rank in found:
        holders.setdefault(rank, set()).add((h.host, h.pid))
    return [] if any(len(who) > 1 for who in holders.values()) else found


def _on_scale(piece: Piece, scale: Scale) -> Piece:
    at_s = scale.seconds(piece.source, piece.at_s, piece.utc_offset_s)
    if at_s == piece.at_s:
        return piece
    return replace(piece, at_s=at_s, utc_offset_s=0 if at_s is not None else piece.utc_offset_s)


def _only_hosts(pieces: Iterable[Hit | Traceback]) -> dict[str, str]:
    """The host of each log whose lines name one and no other: its other lines are of that host as well."""
    found: dict[str, set[str]] = {}
    for p in pieces:
        if p.host is not None and not (isinstance(p, Hit) and p.signature == exits.HOST):
            found.setdefault(p.source, set()).add(p.host)
    return {s: next(iter(h)) for s, h in found.items() if len(h) == 1}


def _clock(piece: Hit | Traceback, hosts: Mapping[str, str]) -> str:
    return piece.host or hosts.get(piece.source, piece.source)


def _with_label(piece: Piece) -> Piece:
    return piece if piece.rank is not None or piece.label is None else replace(piece, rank=piece.label)


def _with_rank(piece: Piece, ranks: Mapping[Process, int]) -> Piece:
    if piece.rank is not None or piece.pid is None:
        return piece
    # Pids are the same in all pods: without a host one speaks for its own log only.
    source = piece.source if piece.host is None else None
    rank = ranks.get(Process(piece.attempt, piece.host, source, piece.pid))
    return piece if rank is None else replace(piece, rank=rank)


def _as_launchers_say(attempt: int, hits: list[Hit], backs: list[Traceback]) -> tuple[list[Hit], list[Traceback]]:
    """What launchers say of the processes that ended: the hosts of ranks; and whose an error is that nobody put a name to.

    It is that of the only rank that ended by itself, if the log holds one such error and the end of one such rank.
    """
    ended = [e for e in exits.read(h for h in hits if h.attempt == attempt and h.signature in _EXITS) if e.at.rank is not None]
    hosts: dict[int | None, set[str]] = {}
    for e in ended:
        if e.at.host is not None:
            hosts.setdefault(e.at.rank, set()).add(e.at.host)
    of_rank = {rank: next(iter(names)) for rank, names in hosts.items() if len(names) == 1}
    owners: dict[str, tuple[Traceback, int]] = {}
    for source in {e.at.source for e in ended}:
        # Signals come from others, mostly.
        ranks = {e.at.rank for e in ended if e.at.source == source and e.code > 0}
        nameless = [t for t in backs if t.source == source and t.attempt == attempt and _is_nobodys(t)]
        if len(nameless) == 1 and len(ranks) == 1 and (rank := next(iter(ranks))) is not None:
            owners[source] = (nameless[0], rank)

    def named(piece: Piece, line: int | None) -> Piece:
        if piece.attempt != attempt:
            return piece
        if piece.rank is None and piece.source in owners and line is not None:
            back, rank = owners[piece.source]
            if back.line <= line <= back.end:
                piece = replace(piece, rank=rank)
        if piece.host is None and piece.rank in of_rank:
            piece = replace(piece, host=of_rank[piece.rank])
        return piece

    return [named(h, h.line) for h in hits], [named(t, t.end) for t in backs]


def _is_nobodys(back: Traceback) -> bool:
    """Whether no line tells who printed a traceback, and it is none of a launcher's own."""
    return back.rank is None and back.pid is None and not back.ignored and not back.logged and back.type.rpartition(".")[2] not in _OF_LAUNCHERS


def _shared(hits: Iterable[Hit], hosts: Mapping[str, str]) -> Iterable[Shared]:
    """Events that every host sees at one moment: a communicator is complete on all of its ranks at once."""
    for h in hits:
        if h.at_s is not None and h.signature == nccl_lines.COMPLETE and "comm_id" in h.groups:
            yield Shared(key=("init", h.groups["comm_id"]), clock=_clock(h, hosts), at_s=h.at_s)


def _ordered(pieces: Iterable[Piece], order: Mapping[str, int]) -> list[Piece]:
    """By time where there is one; a line without takes that of the line before it in its file, and without any stands where its file stands."""
    found: list[tuple[float, int, int, Piece]] = []
    last: dict[str, float] = {}
    for piece in sorted(pieces, key=lambda p: (order[p.source], p.place)):
        if piece.at_s is not None:
            last[piece.source] = piece.at_s
        found.append((last.get(piece.source, float("-inf")), order[piece.source], piece.place, piece))
    timed = [f for f in found if f[0] != float("-inf")]
    # Where no log has times, or only some have, nothing can be said across files but their order.
    if len(timed) < len(found) and len({f[1] for f in found}) > 1:
        found.sort(key=lambda f: (f[1], f[2]))
    else:
        found.sort(key=lambda f: f[:3])
    return [f[3] for f in found]
