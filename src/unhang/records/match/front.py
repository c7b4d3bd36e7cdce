"""Collectives across ranks: who waits in which, who is absent from it, and where the ranks parted.

Ranks are aligned per group by sequence number, never by the position in a dump. What may surprise: a size mismatch on Gloo can let
the smaller side finish, so that the ranks that parted need not all be waiting; send and recv are in no Gloo dump, so that a wait may
be known from its stack alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from unhang.records.flight import operations
from unhang.records.flight.entries import COALESCED
from unhang.records.frames import Frame, inside, other_line, user_frame

if TYPE_CHECKING:
    from unhang.records.flight import Call, Flight
    from unhang.records.incident import RankRecord

# Two ranks that talk to each other make different calls, and which ones depends on their place in a pipeline. Prefixes, for send_object_list.
_P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
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

    `complete`: all who belong to it are known, here, and seen to be in it. Where it is not, somebody may be missing though nobody is `absent`; of a
    group whose members are not known, the living ranks that wait in nothing are. `unseen` are members of whom nothing tells whether they came,
    `disputed` those of whom two sources tell different things, `lost` those that came, but whose recorder has overwritten with what. `crossed` are
    ranks that wait for each other in several groups, each of which it entered in another order than the others.
    """

    group: str | None
    seq: int | None
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    complete: bool
    parting: Parting | None
    unseen: tuple[int, ...] = ()
    disputed: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    crossed: tuple[int, ...] = ()


def key_of(call: Call) -> tuple[object, ...]:
    """What has to be equal on all ranks."""
    return (operations.key(call.op, call.input_sizes, call.output_sizes, call.dtypes, ()),)


def waits_of(record: RankRecord, flight: Flight | None, frames: Sequence[Frame], *, messages: frozenset[str] = frozenset()) -> Wait | None:
    """The collective that a rank is inside of: from its flight recorder, else from its counters, else from its stack.

    `messages`: the groups whose counters count more than collectives (`counting_messages`); those have no sequence numbers.
    """
    stack = tuple(frames)
    by_stack = op_of_stack(stack)
    if flight is not None:
        pending = [c for calls in flight.calls.values() for c in calls if not c.done]
        if pending:
            first = min(pending, key=lambda c: (c.created_ns, c.seq))
            return Wait(rank=record.rank, op=first.op, group=first.group, seq=None if first.is_p2p else first.seq, call=first, frames=stack)
        last = max((c for calls in flight.calls.values() for c in calls if not c.is_p2p), key=lambda c: c.created_ns, default=None)
        if last is not None and last.backend != "nccl" and by_stack and _same_line(last.frames, stack):
            # On Gloo a collective that has just failed counts as ended, too, while the rank still stands in it. On NCCL the rank is in the next one.
            return Wait(rank=record.rank, op=last.op, group=last.group, seq=last.seq, call=last, frames=stack)
    else:
        for group, counters in sorted(record.groups.items()):
            if counters.enqueued > counters.completed:
                seq = None if group in messages else counters.completed + 1
                return Wait(rank=record.rank, op=by_stack or "a collective", group=group, seq=seq, frames=stack)
    return Wait(rank=record.rank, op=by_stack, frames=stack) if by_stack else None


def counting_messages(dumps: Mapping[int, Flight]) -> frozenset[str]:
    """The groups whose counters are seen to count sends and receives with the collectives."""
    return frozenset(group for group in {g for f in dumps.values() for g in f.calls} if _counts_messages(group, dumps))


def front_of(records: Mapping[int, RankRecord], dumps: Mapping[int, Flight], waits: Mapping[int, Wait]) -> Front | None:
    """The collective at which the job stands still: of all in which somebody waits, the one whose absentees wait nowhere else."""
    if not waits:
        return None
    groups = sorted({(w.group, _among(w.group, w.rank, dumps)) for w in waits.values() if w.group is not None}, key=str)
    fronts = [f for group, among in groups if (f := _front(group, among, records, dumps, waits)) is not None]
    if not fronts:
        return _front_of_stacks(records, waits)
    # Missing here and waiting there: follow it to the group at the end of the chain.
    ends = [f for f in fronts if any(r not in waits for r in f.absent)]
    parted = [f for f in fronts if f.parting is not None]
    # A member whose oldest call is in another group has issued this one behind it, or not at all.
    met = [f for f in fronts if not any(waits[r].group not in (None, f.group) for r in _behind(f, records, dumps, waits))]
    crossed = tuple(sorted({r for f in fronts for r in f.waiting})) if len(fronts) > 1 and not (ends or parted or met) else ()
    return replace(min(ends or parted or met or fronts, key=lambda f: not f.complete), crossed=crossed)


def _among(group: str, rank: int, dumps: Mapping[int, Flight]) -> tuple[int, ...]:
    """The members of a group as this rank's dump has them: names repeat where torch splits a group. () where that is not told."""
    known = dumps[rank].groups.get(group.removeprefix("cpu:")) if rank in dumps else None
    if known is None or not known.members:
        told = {g.members for f in dumps.values() if (g := f.groups.get(group.removeprefix("cpu:"))) is not None and rank in g.members}
        return next(iter(told)) if len(told) == 1 else ()
    return known.members


def _behind(front: Front, records: Mapping[int, RankRecord], dumps: Mapping[int, Flight], waits: Mapping[int, Wait]) -> tuple[int, ...]:
    """The members of a front's group that wait elsewhere."""
    among = _among(front.group or "", front.waiting[0], dumps) or _members(front.group or "", records, dumps) or ()
    return tuple(r for r in among if r in waits and r not in front.waiting)


def _front(
    group: str, among: tuple[int, ...], records: Mapping[int, RankRecord], dumps: Mapping[int, Flight], waits: Mapping[int, Wait]
) -> Front | None:
    if among:
        dumps = {r: f for r, f in dumps.items() if r in among}
        here = {r: w for r, w in waits.items() if w.group == group and w.seq is not None and r in among}
    else:
        here = {r: w for r, w in waits.items() if w.group == group and w.seq is not None}
    if not here:
        return None
    seq = min(w.seq for w in here.values() if w.seq is not None)
    parting = _parting(group, seq, dumps, here, whole=_whole_world(records))
    known = among or _members(group, records, dumps)
    reached = {r: _reached(group, record, dumps.get(r), messages=_counts_messages(group, dumps)) for r, record in records.items()}
    members = set(known or (r for r, reach in reached.items() if reach.least >= 0))
    if not known and parting is None:
        members |= {r for r, record in records.items() if record.ended is None and r not in waits}
    ops = {w.op for w in here.values() if w.seq == seq}
    came_by_stack = {r for r, w in waits.items() if w.group is None and w.op in ops}
    present = sorted(members & records.keys())
    absent = [r for r in present if reached[r].most < seq]
    disputed = [r for r in present if reached[r].disputed or (r in absent and r in came_by_stack)]
    unseen = [r for r in present if reached[r].least < seq <= reached[r].most and r not in here]
    lost = [r for r in present if reached[r].least >= seq and r in dumps and not _holds(dumps[r], group, seq)]
    return Front(
        group=group,
        seq=seq,
        waiting=tuple(sorted(r for r, w in here.items() if w.seq == seq)),
        absent=tuple(r for r in absent if r not in disputed),
        complete=bool(known) and members <= records.keys() and not (disputed or unseen or lost),
        parting=parting,
        unseen=tuple(r for r in unseen if r not in disputed),
        disputed=tuple(disputed),
        lost=tuple(lost),
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


@dataclass(frozen=True, kw_only=True)
class _Reach:
    """The newest sequence number that a rank issued in a group lies in `least`..`most`; `disputed`: its counters contradict its dump."""

    least: int
    most: int
    disputed: bool = False


_NOWHERE = _Reach(least=-1, most=-1)
_ANYWHERE = _Reach(least=-1, most=1 << 62)


def _reached(group: str, record: RankRecord, flight: Flight | None, *, messages: bool) -> _Reach:
    """How far a rank came in a group. Its own entries are the truth where it has any."""
    beats = record.groups.get(group)
    seqs = [c.seq for c in flight.calls.get(group, ()) if not c.is_p2p] if flight is not None else []
    if seqs:
        newest = max(seqs)
        if flight is not None and flight.cut is not None:
            return _Reach(least=newest, most=_ANYWHERE.most)
        # A heartbeat is older than the dump: it cannot know of more.
        return _Reach(least=newest, most=newest, disputed=not messages and beats is not None and beats.enqueued > newest)
    told = [c for c in (beats, flight.counters.get(group) if flight is not None else None) if c is not None]
    if told:
        issued = max(c.enqueued for c in told)
        return _Reach(least=-1 if messages else issued, most=issued)
    if flight is not None and not flight.lost and flight.cut is None:
        return _NOWHERE
    seen = record.last_beat_s is not None or record.stacks is not None or record.ended is not None or record.raised is not None
    return _NOWHERE if seen and flight is None else _ANYWHERE


def _counts_messages(group: str, dumps: Mapping[int, Flight]) -> bool:
    """Whether the counters of a group count sends and receives too: on Gloo they count operations, and those are in no entry."""
    return any(
        c.is_p2p or c.op_id not in (None, c.seq) for f in dumps.values() for c in f.calls.get(group, ()) if c.is_p2p or c.backend == "gloo"
    ) or any(
        (told := f.counters.get(group)) is not None and told.enqueued > max(c.op_id or c.seq for c in calls)
        for f in dumps.values()
        if (calls := [c for c in f.calls.get(group, ()) if c.backend == "gloo"])
    )


def _holds(flight: Flight, group: str, seq: int) -> bool:
    """Whether a dump still has the entry of a call, or none at all of its group: then its counters have told."""
    seqs = [c.seq for c in flight.calls.get(group, ()) if not c.is_p2p]
    return not seqs or seq in seqs


def _parting(group: str, seq: int, dumps: Mapping[int, Flight], here: Mapping[int, Wait], *, whole: bool) -> Parting | None:
    """The first sequence number, up to the front, at which ranks issued calls that do not fit each other."""
    history = {r: calls for r, f in dumps.items() if (calls := _by_number(group, f))}
    common = sorted(set().union(*(calls.keys() for calls in history.values()))) if history else []
    for s in common:
        if s > seq:
            break
        calls = {r: h[s] for r, h in history.items() if s in h}
        if any(_untyped(c) for c in calls.values()):
            calls = {r: replace(c, op=operations.without_dtypes(c.op) if "+" in c.op else c.op, dtypes=()) for r, c in calls.items()}
        if len({key_of(c) for c in calls.values()}) > 1:
            sides = tuple(Side(rank=r, op=c.op, call=c, frames=c.frames, waiting=not c.done) for r, c in sorted(calls.items()))
            return _judged(group, s, sides, history)
    unseen = [w for w in here.values() if w.call is None]
    if unseen and whole and len(here) > 1:
        # Some rank has no dump: compare what the stacks say, on all of them alike.
        stacks = {r: op_of_stack(w.frames) for r, w in here.items()}
        if len(set(stacks.values())) > 1 and all(op and not op.startswith(_P2P) for op in stacks.values()):
            sides = tuple(Side(rank=r, op=stacks[r], call=None, frames=here[r].frames, waiting=True) for r in sorted(here))
            return _judged(group, seq, sides, {})
    return None


def _by_number(group: str, flight: Flight) -> dict[int, Call]:
    """The collectives of a group that can be compared; those that were launched together are one, named by all of them.

    Of a launch at the edge of the ring entries may be lost, and it is not complete before its last entry, "coalesced".
    """
    parts: dict[int, list[Call]] = {}
    for call in flight.calls.get(group, ()):
        if not call.is_p2p:
            parts.setdefault(call.seq, []).append(call)
    oldest, newest = min(parts, default=0), max(parts, default=0)
    found = {}
    for seq, calls in parts.items():
        ends = calls[-1].op == COALESCED
        if (seq == oldest and flight.lost and ends) or (seq == newest and (flight.cut is not None or (len(calls) > 1 and not ends))):
            continue
        found[seq] = calls[0]
        if len(calls) > 1:
            op = "+".join(operations.key(c.op, c.input_sizes, c.output_sizes, c.dtypes, ()) for c in calls)
            found[seq] = replace(calls[0], op=op, input_sizes=(), output_sizes=(), dtypes=())
    return found


def _untyped(call: Call) -> bool:
    """Whether dtypes of a call that has them are not told: not every version does."""
    if "+" in call.op:
        return any(operations.without_dtypes(part) == part for part in call.op.split("+") if operations.has_dtypes(part))
    return not call.dtypes and operations.has_dtypes(call.op)


def parting_at(group: str, seq: int, dumps: Mapping[int, Flight]) -> Parting | None:
    """The first number up to `seq` at which the calls of some dumps do not fit each other, and what that tells of who went astray."""
    return _parting(group, seq, dumps, {}, whole=False)


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


def op_of_stack(frames: Sequence[Frame]) -> str:
    """The collective of torch.distributed whose function the innermost frames are in, "" where they are in none."""
    op = ""
    for frame in reversed(frames):
        if not (inside(frame, "torch") or inside(frame, "contextlib") or frame.file.startswith("<")):
            break
        if inside(frame, _C10D):
            op = frame.name
    return op
