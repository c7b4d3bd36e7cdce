"""Where a supervised job stands still: `outcome` judges the recorders, and what they do not hold is joined to it here.

Of a rank without a dump its heartbeats tell how far it came; where they have stopped coming, how far at least. What may surprise: on Gloo a
collective that has just failed counts as ended while the rank still stands in it, which its stack tells; send and recv are in no Gloo dump, so that a
wait may be known from its stack alone; a rank that has ended waits in nothing, whatever its recorder holds.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar

from unhang.flight import operations
from unhang.flight.entries import Group, pending_of
from unhang.flight.job_groups import align
from unhang.flight.messages import settled
from unhang.flight.mismatch import DIFFERENT, Mismatch, MismatchSide, parting_of
from unhang.flight.outcome import By, Outcome, Place
from unhang.flight.recording import COMPLETED, ENDED, ISSUED, LiveCounters, Recording, Track
from unhang.flight.wait_graph import Judge
from unhang.frames import OURS, Frame, op_of_stack, user_frame
from unhang.model import frozen
from unhang.records.incident import is_own

if TYPE_CHECKING:
    from unhang.flight import Call, Flight
    from unhang.flight.dump import Dump
    from unhang.records.incident import RankRecord

T = TypeVar("T")

# Two ranks that talk to each other make different calls, and which ones depends on their place in a pipeline. Prefixes, for send_object_list.
_P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
_ANY = 1 << 62
# Of so many calls that heartbeats count as issued and not completed.
_MOST_PENDING = 4096


@frozen
class CollectiveWait:
    """One rank inside a collective that has not finished. `group`, `seq` are None where only the stack tells; `seq` also of a message."""

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


@frozen
class Stall:
    """Where the job stands still.

    `complete`: all who belong to it are known, here, and seen to be in it. Where it is not, somebody may be missing though nobody is `absent`; of a
    group whose members are not known, the living ranks that wait in nothing are. `unseen` are members of whom nothing tells whether they came,
    `disputed` those of whom two sources tell different things, `lost` those that came, but whose recorder has overwritten with what. `crossed` are
    ranks that wait for each other in a circle, `strayed` those of them that came to two groups in the wrong order, as `by` tells. `finished` are
    those for whom the call is over while it is not for the others.
    """

    group: str | None
    seq: int | None
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    complete: bool
    parting: Mismatch | None
    unseen: tuple[int, ...] = ()
    disputed: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    crossed: tuple[int, ...] = ()
    strayed: tuple[int, ...] = ()
    by: By = "nothing"
    finished: tuple[int, ...] = ()


@frozen
class Waits:
    """Who waits in what, by rank, and where the job stands still: None where nobody waits."""

    waits: Mapping[int, CollectiveWait] = field(default_factory=dict)
    front: Stall | None = None


def standstill(
    records: Mapping[int, RankRecord],
    dumps: Mapping[int, Dump],
    frames: Mapping[int, Sequence[Frame]],
    *,
    at_s: float,
    alive: Collection[int] | None = None,
) -> Waits:
    """What all ranks tell together. `frames`: their main threads; `at_s`: when they stood still, seconds since the start of the run; `alive`: those
    that can wait in something at all, by default all."""
    return _Watched(records, dumps, frames, records.keys() if alive is None else alive, at_s).standstill()


def counting_messages(dumps: Mapping[int, Flight]) -> frozenset[str]:
    """The groups whose counters are seen to count sends and receives with the collectives."""
    return frozenset(group for group in {g for f in dumps.values() for g in f.calls} if _counts_messages(group, dumps))


class _Watched:
    """All that is known of the ranks of one job."""

    def __init__(
        self,
        records: Mapping[int, RankRecord],
        dumps: Mapping[int, Dump],
        frames: Mapping[int, Sequence[Frame]],
        alive: Collection[int],
        at_s: float,
    ) -> None:
        self.records = {r: replace(record, groups=_without_own(record.groups)) for r, record in records.items()}
        # Only how far they came at least is known of them.
        self.silent = frozenset(r for r, record in records.items() if r not in dumps and record.silent(at_s))
        self.flights = {r: d.flight for r, d in dumps.items() if r in records}
        self.frames = {r: tuple(frames.get(r, ())) for r in records}
        self.messages = counting_messages(self.flights)
        self.recordings: dict[int, Recording] = {}
        self.alive = frozenset(alive)
        gone = {r for r in records if r not in self.alive}
        for rank, record in self.records.items():
            if rank in dumps:
                recording = dumps[rank].recording
                tracks = tuple(t for t in recording.tracks if not is_own(t.group.name))
                self.recordings[rank] = self._with_stack(replace(recording, tracks=tracks, heard=self._heard(record)))
            elif _was_seen(record):
                self.recordings[rank] = self._of_counters(record)
            if rank in dumps and not _pending(self.recordings[rank]):
                gone.add(rank)
        self.judge = Judge(align(self.recordings, world_size=self._world_size()), gone=gone)

    def standstill(self) -> Waits:
        places = self.judge.places()
        waits = {r: w for r in sorted(self.alive) if r in self.records and (w := self._wait(self.records[r], places.get(r))) is not None}
        if not waits:
            return Waits()
        outcome = settled(self.judge.outcome(), self.flights.get)
        at_one_place = outcome.waiting or outcome.kind in DIFFERENT or outcome.kind in ("groups-crossed", "p2p-both-send")
        return Waits(waits=waits, front=self._front(outcome, waits) if at_one_place else self._front_of_stacks(waits))

    def _heard(self, record: RankRecord) -> dict[str, LiveCounters]:
        return {
            group: LiveCounters(least=-1, most=c.enqueued, done=-1)
            if group in self.messages
            else LiveCounters(least=c.enqueued, most=_ANY, done=min(c.enqueued, c.completed))
            if record.rank in self.silent
            else LiveCounters(least=c.enqueued, most=c.enqueued, done=min(c.enqueued, c.completed))
            for group, c in record.groups.items()
        }

    def _of_counters(self, record: RankRecord) -> Recording:
        """A rank without a dump: what its heartbeats counted as issued and not completed."""
        tracks = []
        for group, c in sorted(record.groups.items()):
            if group in self.messages:
                continue
            pending = 0 if record.rank in self.silent else min(max(c.enqueued - c.completed, 0), _MOST_PENDING)
            first = c.completed + 1 if pending else c.completed
            tracks.append(
                Track(
                    group=self._group(group, record.rank),
                    first=first,
                    ids=array("I", bytes(4 * max(pending, 1))),
                    ends=bytearray([ISSUED if pending else COMPLETED]) * max(pending, 1),
                    pending_ns=dict.fromkeys(range(first, first + pending), 0),
                )
            )
        return Recording(rank=record.rank, source="", tracks=tuple(tracks), heard=self._heard(record))

    def _group(self, name: str, rank: int) -> Group:
        """A group as the dumps of others have it: Gloo's part of one that has both backends has the same members."""
        told = [g for f in self.flights.values() for n in (name, name.removeprefix("cpu:")) if (g := f.groups.get(n)) is not None]
        members = {g.members for g in told if rank in g.members}
        return Group(name=name, desc=next((g.desc for g in told if g.desc), ""), members=next(iter(members)) if len(members) == 1 else ())

    def _with_stack(self, recording: Recording) -> Recording:
        """With the call in which a rank stands although it counts as ended."""
        rank = recording.rank
        last = max(
            (c for calls in _without_own(self.flights[rank].calls).values() for c in calls if not c.is_p2p), key=lambda c: c.created_ns, default=None
        )
        if last is None or last.backend == "nccl" or _pending(recording):
            return recording
        # What autograd reduces has no Python frame: whoever raised because of others was in its newest call.
        op = op_of_stack(self.frames[rank]) or (last.op if self.records[rank].raised is not None and rank in self.alive else "")
        if not op or op.startswith(_P2P) or not _same_line(last.frames, self.frames[rank]):
            return recording
        return replace(recording, tracks=tuple(_still_in(t, last) if t.group.name == last.group else t for t in recording.tracks))

    def _world_size(self) -> int:
        return max((r.world_size or 1 for r in self.records.values()), default=1)

    @property
    def _whole_world(self) -> bool:
        """Whether the ranks of all hosts are here."""
        return len(self.records) >= self._world_size()

    def _wait(self, record: RankRecord, place: Place | None) -> CollectiveWait | None:
        """What a rank is inside of: as the recorders have it, else its counters, else its stack."""
        rank, stack = record.rank, self.frames[record.rank]
        by_stack = op_of_stack(stack)
        flight = self.flights.get(rank)
        if place is not None:
            call = pending_of(flight, place.group, place.number, is_p2p=place.is_message)
            op = call.op if call is not None else by_stack or "a collective"
            return CollectiveWait(rank=rank, op=op, group=place.group, seq=None if place.is_message else place.number, call=call, frames=stack)
        if flight is None and rank not in self.silent:
            for group, counters in sorted(record.groups.items()):
                if group in self.messages and counters.enqueued > counters.completed:
                    return CollectiveWait(rank=rank, op=by_stack or "a collective", group=group, frames=stack)
        return CollectiveWait(rank=rank, op=by_stack, frames=stack) if by_stack else None

    def _front(self, outcome: Outcome, waits: Mapping[int, CollectiveWait]) -> Stall:
        o = outcome
        parting = _still_waited(parting_of(o, self.flights), waits)
        crossed = o.waiting if o.kind in ("groups-crossed", "p2p-both-send") else self._crossed_unrecorded(o, waits)
        # Of a message both sides wait, where both have posted theirs.
        there = o.ranks if o.kind == "transport" else o.waiting
        waiting = tuple(r for r in there if r in waits) or tuple(sorted(waits))
        if parting is None and not crossed and o.kind != "p2p-alone":
            parting = self._parted_stacks(o, waits) or _of_arguments(o, waits)
        here = [r for r in o.members if r in self.records]
        absent = [r for r in (o.ranks if o.kind in ("missing", "p2p-alone") else ()) if r in self.records]
        if not o.known and parting is None and not crossed:
            absent += [r for r, record in self.records.items() if record.ended is None and r not in waits and r not in (*o.members, *absent)]
        ops = {waits[r].op for r in waiting}
        # Who has told nothing since was not there when it was last heard of, and now its stack is seen to be elsewhere.
        absent += [r for r in o.unseen if r in self.silent and r not in waits and self.frames[r] and self._was_behind(r, o)]
        disputed = [r for r in here if self._disputes(r, o) or (r in absent and r in waits and waits[r].group is None and waits[r].op in ops)]
        unseen = tuple(r for r in o.unseen if r in self.records and r not in (*disputed, *absent))
        lost = tuple(r for r in o.ahead if r in self.records)
        everybody = o.known and set(o.members) <= self.records.keys() and not (disputed or unseen or lost)
        return Stall(
            group=o.group_name,
            seq=None if o.call.startswith(("send to", "receive from")) else o.number,
            waiting=waiting,
            absent=tuple(r for r in sorted(absent) if r not in disputed),
            complete=everybody and o.kind != "cannot-tell",
            parting=parting,
            unseen=unseen,
            disputed=tuple(disputed),
            lost=lost,
            crossed=crossed,
            strayed=o.ranks if o.kind == "groups-crossed" and o.by != "nothing" else (),
            by=o.by,
            finished=o.finished if o.kind == "finished-on-some" else (),
        )

    def _crossed_unrecorded(self, outcome: Outcome, waits: Mapping[int, CollectiveWait]) -> tuple[int, ...]:
        """Ranks that never came because they are in messages, which Gloo records nowhere, or in calls of unhang's library, which are in no group of
        the training's, while all that could be their partners wait for them.
        """
        if outcome.kind != "missing" or not self._whole_world or not operations.needs_all(outcome.call):
            return ()
        everybody = all(r in waits and (r in outcome.ranks or r in outcome.waiting) for r, record in self.records.items() if record.ended is None)
        elsewhere = all(waits[r].group is None and waits[r].op.startswith((*_P2P, OURS)) for r in outcome.ranks if r in waits)
        living = all(self.records[r].ended is None for r in outcome.ranks if r in self.records)
        return tuple(sorted({*outcome.ranks, *outcome.waiting})) if everybody and elsewhere and living else ()

    def _was_behind(self, rank: int, outcome: Outcome) -> bool:
        """Whether the last heartbeat of a rank knew nothing of a call yet."""
        told = self.records[rank].groups.get(outcome.group_name)
        return outcome.number is not None and (told is None or told.enqueued < outcome.number)

    def _disputes(self, rank: int, outcome: Outcome) -> bool:
        """Whether the heartbeats of a rank know of a newer call than its dump, which was taken after them."""
        flight, beats = self.flights.get(rank), self.records[rank].groups.get(outcome.group_name)
        if flight is None or beats is None or flight.cut is not None or outcome.group_name in self.messages:
            return False
        return (newest := _newest(flight, outcome.group_name)) is not None and beats.enqueued > newest

    def _parted_stacks(self, outcome: Outcome, waits: Mapping[int, CollectiveWait]) -> Mismatch | None:
        """Where some rank has no dump: what the stacks of all that wait in one group say, on all of them alike."""
        here = {r: w for r, w in waits.items() if w.group == outcome.group_name and w.seq is not None and r in outcome.members}
        if not self._whole_world or len(here) < 2 or all(w.call is not None for w in here.values()):
            return None
        return _of_stacks(outcome.group_name, outcome.number, {r: (op_of_stack(w.frames), w.frames) for r, w in here.items()})

    def _front_of_stacks(self, waits: Mapping[int, CollectiveWait]) -> Stall:
        parting = None
        ops = {w.op for w in waits.values()}
        comparable = self._whole_world and not any(op.startswith(_P2P) for op in ops)
        if comparable and len(waits) == sum(r.ended is None for r in self.records.values()):
            parting = _of_stacks(None, None, {r: (w.op, w.frames) for r, w in waits.items()})
        return Stall(
            group=None,
            seq=None,
            waiting=tuple(sorted(waits)),
            absent=tuple(r for r in sorted(self.records) if r not in waits),
            complete=comparable,
            parting=parting,
        )


def _still_waited(parting: Mismatch | None, waits: Mapping[int, CollectiveWait]) -> Mismatch | None:
    """A call that has failed is over in Gloo's recorder: the rank that raised there has waited in it to the end, and did not complete it."""
    if parting is None or parting.seq is None:
        return parting
    there = {r for r, w in waits.items() if (w.group, w.seq) == (parting.group, parting.seq)}
    return replace(parting, sides=tuple(replace(s, waiting=s.waiting or s.rank in there) for s in parting.sides))


def _of_arguments(outcome: Outcome, waits: Mapping[int, CollectiveWait]) -> Mismatch | None:
    """Where ranks wait in one call: its roots and reductions, which their stacks tell and no recorder."""
    o, sides = outcome, list[MismatchSide]()
    for w in (waits[r] for r in o.waiting if r in waits and o.kind in ("transport", "finished-on-some")):
        arguments = next((f.arguments for f in reversed(w.frames) if f.arguments), "")
        if arguments and w.call is not None and _same_line(w.call.frames, w.frames):
            says = f"{operations.of(w.call)} {arguments}"
            sides.append(MismatchSide(rank=w.rank, op=w.call.op, says=says, call=w.call, frames=w.call.frames, waiting=True))
    return _of_sides(o.group_name, o.number, sides, of=len(o.members), whole=o.known and len(sides) == len(o.members))


def _of_stacks(group: str | None, seq: int | None, stacks: Mapping[int, tuple[str, tuple[Frame, ...]]]) -> Mismatch | None:
    """None where they stand in the same operation, in messages, or in none."""
    if any(not op or op.startswith(_P2P) for op, _ in stacks.values()):
        return None
    sides = [MismatchSide(rank=r, op=op, says=op, call=None, frames=frames, waiting=True) for r, (op, frames) in sorted(stacks.items())]
    return _of_sides(group, seq, sides, of=len(stacks))


def _of_sides(group: str | None, seq: int | None, sides: Sequence[MismatchSide], *, of: int, whole: bool = False) -> Mismatch | None:
    """None where they do not differ; those outside the majority of so many are odd."""
    ((most, count), *others) = Counter(s.says for s in sides).most_common() or [("", 0)]
    odd = tuple(s.rank for s in sides if s.says != most) if 2 * count > of else ()
    return Mismatch(group=group, seq=seq, sides=tuple(sides), odd=odd, by="majority" if odd else "nothing", whole=whole) if others else None


def _was_seen(record: RankRecord) -> bool:
    """Whether anything is known of a rank."""
    told = record.last_beat_s is not None or record.stacks is not None or record.ended is not None or record.raised is not None
    return told or bool(record.groups)


def _pending(recording: Recording) -> bool:
    """Whether a rank has a call or a message that is surely not over."""
    return bool(recording.messages) or any(t.end(n) != ENDED or not t.gloo for t in recording.tracks for n in t.pending_ns)


def _still_in(track: Track, call: Call) -> Track:
    if (place := call.seq - track.first) not in range(len(track.ends)):
        return track
    ends = bytearray(track.ends)
    ends[place] = ISSUED
    return replace(track, ends=ends, pending_ns={**track.pending_ns, call.seq: call.created_ns})


def _without_own(groups: Mapping[str, T]) -> dict[str, T]:
    """What is known of the training's groups: in unhang's own nobody waits beyond a call's deadline, and a broken one stays as it was left."""
    return {name: told for name, told in groups.items() if not is_own(name)}


def _newest(flight: Flight, group: str) -> int | None:
    return max((c.seq for c in flight.calls.get(group, ()) if not c.is_p2p), default=None)


def _counts_messages(group: str, dumps: Mapping[int, Flight]) -> bool:
    """Whether the counters of a group count sends and receives too: on Gloo they count operations, and those are in no entry."""
    return any(
        c.is_p2p or c.op_id not in (None, c.seq) for f in dumps.values() for c in f.calls.get(group, ()) if c.is_p2p or c.backend == "gloo"
    ) or any(
        (told := f.counters.get(group)) is not None and told.enqueued > max(c.op_id or c.seq for c in calls)
        for f in dumps.values()
        if (calls := [c for c in f.calls.get(group, ()) if c.backend == "gloo"])
    )


def _same_line(one: Sequence[Frame], other: Sequence[Frame]) -> bool:
    a, b = user_frame(one), user_frame(other)
    return a is not None and b is not None and (a.file, a.line) == (b.file, b.line)
