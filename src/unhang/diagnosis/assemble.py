"""From single logs to one view of the job: whose line is it, which attempt, and in what order across hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from unhang.diagnosis import clocks
from unhang.diagnosis.clocks import Shared
from unhang.knowledge.cause import LogView
from unhang.records.logs import Hit, LogRead, Signature, Traceback, attempts, by_cause, exits, job_size, nccl, watchdog, work

Piece = TypeVar("Piece", Hit, Traceback)

CONTEXT: tuple[Signature, ...] = tuple(
    dict.fromkeys((*watchdog.SIGNATURES, *exits.SIGNATURES, *nccl.SIGNATURES, *work.SIGNATURES, *attempts.SIGNATURES, *job_size.SIGNATURES))
)
_WATCHDOG, _EXITS, _NCCL = frozenset(watchdog.SIGNATURES), frozenset(exits.SIGNATURES), frozenset(nccl.SIGNATURES)
_AGENTS = frozenset((exits.RANK, exits.CODE, exits.FAILED, exits.DEEPSPEED, *attempts.AGENTS))
_WORK, _STARTS, _SIZES = frozenset(work.SIGNATURES), frozenset(attempts.SIGNATURES), frozenset(job_size.SIGNATURES)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt of the job: what its logs hold, and every hit of it in order (context among them)."""

    number: int
    view: LogView
    hits: tuple[Hit, ...]


def assemble(reads: Sequence[LogRead], causes: Mapping[Signature, str]) -> tuple[Attempt, ...]:
    """The attempts of the job, oldest first; at least one. `causes` maps each signature of a cause to its id."""
    order = {r.source: n for n, r in enumerate(reads)}
    hits: list[Hit] = []
    backs: list[Traceback] = []
    starts: dict[str, tuple[int, ...]] = {}
    for read in reads:
        starts[read.source] = _starts(read, causes)
        hits += read.hits
        backs += read.tracebacks
    # A log that begins late holds the later attempts: counted from the end, they are the same ones.
    total = max((len(s) + 1 for s in starts.values()), default=1)
    if total > 1:
        hits = [_with_attempt(h, starts[h.source], total) for h in hits]
        backs = [_with_attempt(t, starts[t.source], total) for t in backs]
    if not any(h.signature in _AGENTS for h in hits):
        # srun and mpirun number their tasks: ranks, unless each task is a launcher that starts several.
        hits = [_with_label(h) for h in hits]
        backs = [_with_label(t) for t in backs]
    ranks = _ranks_of_processes(hits)
    hits = [_with_rank(h, ranks) for h in hits]
    backs = [_with_rank(t, ranks) for t in backs]
    ahead = clocks.offsets(_shared(hits))
    if ahead:
        hits = [replace(h, at_s=clocks.corrected(h.at_s, h.host or h.source, ahead)) for h in hits]
        backs = [replace(t, at_s=clocks.corrected(t.at_s, t.host or t.source, ahead)) for t in backs]
    hits = _ordered(hits, order)
    backs = _ordered(backs, order)
    printed = frozenset(n for r in reads for n in r.ranks)
    return tuple(_attempt(n, hits, backs, causes, printed) for n in range(1, total + 1))


def _attempt(number: int, hits: Iterable[Hit], backs: Iterable[Traceback], causes: Mapping[Signature, str], printed: frozenset[int]) -> Attempt:
    own = tuple(h for h in hits if h.attempt == number)
    view = LogView(
        hits=by_cause((h for h in own if h.signature in causes), causes),
        tracebacks=tuple(t for t in backs if t.attempt == number),
        timeouts=watchdog.timeouts(h for h in own if h.signature in _WATCHDOG),
        statuses=watchdog.statuses(h for h in own if h.signature in _WATCHDOG),
        exits=exits.read(h for h in own if h.signature in _EXITS),
        nccl=nccl.read(h for h in own if h.signature in _NCCL),
        work=tuple(h for h in own if h.signature in _WORK),
        printed=printed | {h.rank for h in own if h.rank is not None},
        world_size=job_size.read(h for h in own if h.signature in _SIZES or h.signature in _NCCL),
    )
    return Attempt(number=number, view=view, hits=own)


def _starts(read: LogRead, causes: Mapping[Signature, str]) -> tuple[int, ...]:
    failures = [(h.place, h.at_s) for h in read.hits if h.signature in causes] + [(t.place, t.at_s) for t in read.tracebacks]
    return attempts.starts_of((h for h in read.hits if h.signature in _STARTS), failures)


def _ranks_of_processes(hits: Sequence[Hit]) -> dict[tuple[int, str | None, int], int]:
    """(attempt, host, pid) to rank, as lines that name both tell; a host that no line names stands for itself."""
    found: dict[tuple[int, str | None, int], int] = {}
    contested: set[tuple[int, str | None, int]] = set()
    told = [(h.attempt, h.host, h.pid, h.rank) for h in hits if h.signature not in _STARTS]
    for attempt in {h.attempt for h in hits}:
        # torchrun names rank and process in two lines.
        ended = exits.read(h for h in hits if h.attempt == attempt and h.signature in _EXITS)
        told += [(attempt, e.at.host, e.at.pid, e.at.rank) for e in ended]
    for attempt, host, pid, rank in told:
        if rank is None or pid is None:
            continue
        for key in ((attempt, host, pid), (attempt, None, pid)):
            if found.setdefault(key, rank) != rank:
                contested.add(key)
    return {k: v for k, v in found.items() if k not in contested}


def _with_attempt(piece: Piece, starts: Sequence[int], total: int) -> Piece:
    return replace(piece, attempt=total - len(starts) - 1 + attempts.attempt_of(piece.place, starts))


def _with_label(piece: Piece) -> Piece:
    return piece if piece.rank is not None or piece.label is None else replace(piece, rank=piece.label)


def _with_rank(piece: Piece, ranks: Mapping[tuple[int, str | None, int], int]) -> Piece:
    if piece.rank is not None or piece.pid is None:
        return piece
    rank = ranks.get((piece.attempt, piece.host, piece.pid))
    if rank is None and piece.host is None:
        rank = ranks.get((piece.attempt, None, piece.pid))
    return piece if rank is None else replace(piece, rank=rank)


def _shared(hits: Iterable[Hit]) -> Iterable[Shared]:
    """Events that every host sees at one moment: a communicator is complete on all of its ranks at once."""
    for h in hits:
        if h.at_s is None:
            continue
        clock = h.host or h.source
        if h.signature == nccl.COMPLETE and "comm_id" in h.groups:
            yield Shared(key=("init", h.attempt, h.groups["comm_id"]), clock=clock, at_s=h.at_s)


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
