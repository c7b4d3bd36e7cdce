"""Collectives across ranks: who waits in which, who is absent from it, and where the ranks parted.

Ranks are aligned per group by sequence number, never by the position in a dump. What may surprise: a size mismatch on Gloo can let
the smaller side finish, so that the ranks that parted need not all be waiting; send and recv are in no Gloo dump, so that a wait may
be known from its stack alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from unhang.records.frames import Frame, inside, other_line, user_frame

if TYPE_CHECKING:
    from unhang.records.flight import Call, Flight
    from unhang.records.incident import RankRecord

# Two ranks that talk to each other make different calls, and which ones depends on their place in a pipeline. Prefixes, for send_object_list.
_P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
# Calls whose sizes legitimately differ between ranks.
_UNEVEN = ("gather", "scatter", "all_to_all", "alltoall", "send", "recv", "coalesced")
_EVEN = ("all_gather", "allgather", "_allgather_base", "reduce_scatter", "_reduce_scatter_base")
# A line is the usual one when it was reached this often, and another one so many times less.
_HABIT = 3
_RARELY = 10
_C10D = "torch/distributed/distributed_c10d"


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One rank inside a collective that has not finished. `group`, `seq` are None where only the stack tells."""

    rank: int
    op: str
    group: str | None = None
    seq: int | None = None
    call: Call | None = None
    frames: tuple[Frame, ...] = ()

    @property
    def place(self) -> Frame | None:
        """The user's line that issued the collective, or, where that is not known, at which the rank waits."""
        return user_frame(self.call.frames if self.call is not None and self.call.frames else self.frames)


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one rank issued at the place where the ranks parted; `call` is None where only its stack tells."""

    rank: int
    op: str
    call: Call | None
    frames: tuple[Frame, ...]
    waiting: bool

    @property
    def place(self) -> Frame | None:
        return user_frame(self.frames)

    @property
    def key(self) -> tuple[object, ...]:
        return (self.op,) if self.call is None else key_of(self.call)


@dataclass(frozen=True, kw_only=True)
class Parting:
    """Ranks of one group issued different calls at one sequence number.

    `odd` are the ranks that did what was not meant, () where that cannot be told; `by` is how that is known. `rare` are the ranks at a line that was
    hardly ever reached before, while the others stand at one that all came to again and again: seen, and no blame. The rank at the new line may be
    the one that rightly went on, and the other one may have had a batch too many.
    """

    group: str | None
    seq: int | None
    sides: tuple[Side, ...]
    odd: tuple[int, ...]
    by: Literal["majority", "history", "nothing"]
    rare: tuple[int, ...] = ()

    def side(self, rank: int) -> Side:
        return next(s for s in self.sides if s.rank == rank)


@dataclass(frozen=True, kw_only=True)
class Front:
    """Where the job stands still.

    `complete`: all who belong to it are known and here. Where it is not, somebody may be missing though nobody is `absent`; of a group whose members
    are not known, the living ranks that wait in nothing are.
    """

    group: str | None
    seq: int | None
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    complete: bool
    parting: Parting | None


def key_of(call: Call) -> tuple[object, ...]:
    """What has to be equal on all ranks."""
    uneven = call.op.startswith(_UNEVEN) and not call.op.startswith(_EVEN)
    return (call.op,) if uneven else (call.op, call.elements, call.dtypes)


def waits_of(record: RankRecord, flight: Flight | None, frames: Sequence[Frame]) -> Wait | None:
    """The collective that a rank is inside of: from its flight recorder, else from its counters, else from its stack."""
    stack = tuple(frames)
    by_stack = _op_of_stack(stack)
    if flight is not None:
        pending = [c for calls in flight.calls.values() for c in calls if not c.done]
        if pending:
            first = min(pending, key=lambda c: (c.created_ns, c.seq))
            return Wait(rank=record.rank, op=first.op, group=first.group, seq=None if first.is_p2p else first.seq, call=first, frames=stack)
        last = max((c for calls in flight.calls.values() for c in calls if not c.is_p2p), key=lambda c: c.created_ns, default=None)
        if last is not None and by_stack and _same_line(last.frames, stack):
            # A collective that has just failed counts as ended in the recorder, while the rank still stands in it.
            return Wait(rank=record.rank, op=last.op, group=last.group, seq=last.seq, call=last, frames=stack)
    else:
        for group, counters in sorted(record.groups.items()):
            if counters.enqueued > counters.completed:
                return Wait(rank=record.rank, op=by_stack or "a collective", group=group, seq=counters.completed + 1, frames=stack)
    return Wait(rank=record.rank, op=by_stack, frames=stack) if by_stack else None


def front_of(records: Mapping[int, RankRecord], dumps: Mapping[int, Flight], waits: Mapping[int, Wait]) -> Front | None:
    """The collective at which the job stands still: of all in which somebody waits, the one whose absentees wait nowhere else."""
    if not waits:
        return None
    groups = sorted({w.group for w in waits.values() if w.group is not None})
    fronts = [f for group in groups if (f := _front(group, records, dumps, waits)) is not None]
    if not fronts:
        return _front_of_stacks(records, waits)
    # Missing here and waiting there: follow it to the group at the end of the chain.
    ends = [f for f in fronts if any(r not in waits for r in f.absent)]
    parted = [f for f in fronts if f.parting is not None]
    return min(ends or parted or fronts, key=lambda f: not f.complete)


def _front(group: str, records: Mapping[int, RankRecord], dumps: Mapping[int, Flight], waits: Mapping[int, Wait]) -> Front | None:
    here = {r: w for r, w in waits.items() if w.group == group and w.seq is not None}
    if not here:
        return None
    seq = min(w.seq for w in here.values() if w.seq is not None)
    parting = _parting(group, seq, dumps, here, whole=_whole_world(records))
    known = _members(group, records, dumps)
    members = set(known or (r for r in records if _reached(group, records[r], dumps.get(r)) >= 0))
    if known is None and parting is None:
        members |= {r for r, record in records.items() if record.ended is None and r not in waits}
    return Front(
        group=group,
        seq=seq,
        waiting=tuple(sorted(r for r, w in here.items() if w.seq == seq)),
        absent=tuple(r for r in sorted(members & records.keys()) if _reached(group, records[r], dumps.get(r)) < seq),
        complete=known is not None and members <= records.keys(),
        parting=parting,
    )


def _front_of_stacks(records: Mapping[int, RankRecord], waits: Mapping[int, Wait]) -> Front:
    parting = None
    ops = {w.op for w in waits.values()}
    comparable = _whole_world(records) and not any(op.startswith(_P2P) for op in ops)
    if comparable and len(ops) > 1 and len(waits) == sum(r.ended is None for r in records.values()):
        sides = tuple(Side(rank=r, op=w.op, call=None, frames=w.frames, waiting=True) for r, w in sorted(waits.items()))
        parting = _judged(None, None, sides, {})
    return Front(
        group=None,
        seq=None,
        waiting=tuple(sorted(waits)),
        absent=tuple(r for r in sorted(records) if r not in waits),
        complete=comparable,
        parting=parting,
    )


def _members(group: str, records: Mapping[int, RankRecord], dumps: Mapping[int, Flight]) -> tuple[int, ...] | None:
    """All ranks of a group, those of other hosts too; None where nothing tells."""
    # Counters of a build with two recorders; in the dump of either, the group has its own name.
    name = group.removeprefix("cpu:")
    told = [known for flight in dumps.values() if (known := flight.groups.get(name)) is not None]
    members = next((g.members for g in told if g.members), None)
    # The default group is the one that torch numbers 0.
    if members is None and (name in ("0", "", "default_pg") or any(g.desc == "default_pg" for g in told)):
        return tuple(range(max(_world_size(records), max(records) + 1)))
    return members


def _world_size(records: Mapping[int, RankRecord]) -> int:
    return max((r.world_size or 1 for r in records.values()), default=1)


def _whole_world(records: Mapping[int, RankRecord]) -> bool:
    """Whether the ranks of all hosts are here."""
    return len(records) >= _world_size(records)


def _reached(group: str, record: RankRecord, flight: Flight | None) -> int:
    """The newest sequence number that a rank issued in a group."""
    reached = -1
    if flight is not None:
        reached = max((c.seq for c in flight.calls.get(group, ()) if not c.is_p2p), default=-1)
        if group in flight.counters:
            reached = max(reached, flight.counters[group].enqueued)
    if group in record.groups:
        reached = max(reached, record.groups[group].enqueued)
    return reached


def _parting(group: str, seq: int, dumps: Mapping[int, Flight], here: Mapping[int, Wait], *, whole: bool) -> Parting | None:
    """The first sequence number, up to the front, at which ranks issued calls that do not fit each other."""
    history = {r: {c.seq: c for c in f.calls.get(group, ()) if not c.is_p2p} for r, f in dumps.items()}
    history = {r: calls for r, calls in history.items() if calls}
    common = sorted(set().union(*(calls.keys() for calls in history.values()))) if history else []
    for s in common:
        if s > seq:
            break
        calls = {r: h[s] for r, h in history.items() if s in h}
        if len({key_of(c) for c in calls.values()}) > 1:
            sides = tuple(Side(rank=r, op=c.op, call=c, frames=c.frames, waiting=not c.done) for r, c in sorted(calls.items()))
            return _judged(group, s, sides, history)
    unseen = [w for w in here.values() if w.call is None]
    if unseen and whole and len(here) > 1:
        # Some rank has no dump: compare what the stacks say, on all of them alike.
        stacks = {r: _op_of_stack(w.frames) for r, w in here.items()}
        if len(set(stacks.values())) > 1 and all(op and not op.startswith(_P2P) for op in stacks.values()):
            sides = tuple(Side(rank=r, op=stacks[r], call=None, frames=here[r].frames, waiting=True) for r in sorted(here))
            return _judged(group, seq, sides, {})
    return None


def _judged(group: str | None, seq: int | None, sides: tuple[Side, ...], history: Mapping[int, Mapping[int, Call]]) -> Parting:
    majority = _unlike_most(sides)
    if majority is not None:
        return Parting(group=group, seq=seq, sides=sides, odd=majority, by="majority")
    changed = _unlike_before(sides, history, seq)
    if changed:
        return Parting(group=group, seq=seq, sides=sides, odd=changed, by="history")
    return Parting(group=group, seq=seq, sides=sides, odd=(), by="nothing", rare=_at_unusual_line(sides, history, seq))


def _unlike_most(sides: Sequence[Side]) -> tuple[int, ...] | None:
    """The ranks outside the majority; None where there is none."""
    votes = Counter(s.key for s in sides)
    (common, count), *_ = votes.most_common(1)
    return tuple(s.rank for s in sides if s.key != common) if count * 2 > len(sides) else None


def _unlike_before(sides: Sequence[Side], history: Mapping[int, Mapping[int, Call]], seq: int | None) -> tuple[int, ...]:
    """The ranks whose line issued something else before; () unless the others did as their lines always did."""
    unusual = tuple(s.rank for s in sides if s.call is not None and _differs_from_history(s.call, history, seq))
    usual = tuple(s.rank for s in sides if s.call is not None and _fits_history(s.call, history, seq))
    return unusual if usual and len(unusual) + len(usual) == len(sides) else ()


def _at_unusual_line(sides: Sequence[Side], history: Mapping[int, Mapping[int, Call]], seq: int | None) -> tuple[int, ...]:
    """The ranks at a line that was hardly ever reached before, while the others are at the line that all ranks were at again and again."""
    if not sides or any(s.call is None or s.place is None for s in sides):
        return ()
    usual = max(sides, key=lambda s: min(_times(s.place, history, seq)))
    odd = tuple(s.rank for s in sides if _is_habit(usual.place, s.place, history, seq))
    return odd if all(s.rank in odd or not other_line(s.place, usual.place) for s in sides) else ()


def _is_habit(line: Frame | None, other: Frame | None, history: Mapping[int, Mapping[int, Call]], seq: int | None) -> bool:
    """Whether every rank reached `line` again and again before, and none of them `other` more than now and then."""
    often = min(_times(line, history, seq))
    return often >= _HABIT and max(_times(other, history, seq)) * _RARELY <= often


def _times(line: Frame | None, history: Mapping[int, Mapping[int, Call]], seq: int | None) -> list[int]:
    """How often each rank was at a line before."""
    if line is None or seq is None or not history:
        return [0]
    at = (line.file, line.line)
    return [
        sum(1 for s, c in calls.items() if s < seq and (u := user_frame(c.frames)) is not None and (u.file, u.line) == at)
        for calls in history.values()
    ]


def _before(call: Call, history: Mapping[int, Mapping[int, Call]], seq: int | None) -> set[tuple[object, ...]]:
    """What the line of this call issued at earlier sequence numbers, on any rank."""
    line = user_frame(call.frames)
    if line is None:
        return set()
    at = (line.file, line.line)
    found = set()
    for calls in history.values():
        for s, c in calls.items():
            if seq is not None and s < seq and (u := user_frame(c.frames)) is not None and (u.file, u.line) == at:
                found.add(key_of(c))
    return found


def _differs_from_history(call: Call, history: Mapping[int, Mapping[int, Call]], seq: int | None) -> bool:
    before = _before(call, history, seq)
    return len(before) == 1 and key_of(call) not in before


def _fits_history(call: Call, history: Mapping[int, Mapping[int, Call]], seq: int | None) -> bool:
    return key_of(call) in _before(call, history, seq)


def _same_line(one: Sequence[Frame], other: Sequence[Frame]) -> bool:
    a, b = user_frame(one), user_frame(other)
    return a is not None and b is not None and (a.file, a.line) == (b.file, b.line)


def _op_of_stack(frames: Sequence[Frame]) -> str:
    """The collective whose function the innermost frames are in, "" where they are in none."""
    op = ""
    for frame in reversed(frames):
        if not (inside(frame, "torch") or inside(frame, "contextlib") or frame.file.startswith("<")):
            break
        if inside(frame, _C10D):
            op = frame.name
    return op
