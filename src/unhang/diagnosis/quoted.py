"""The calls and lines that an outcome of flight recorders rests on, read again, with their frames, of the few ranks that are quoted; and what calls,
steps and counters of it are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unhang.flight import Call, Flight
from unhang.flight.entries import pending_of
from unhang.flight.mismatch import DIFFERENT
from unhang.flight.outcome import Counted, Outcome, Step
from unhang.flight.read_all import flight
from unhang.flight.recording import Recording
from unhang.frames import Frame, place, user_frame
from unhang.knowledge import words
from unhang.knowledge.words import NOTHING, Text, joined, msg, ranks, same
from unhang.model import Evidence

# How many ranks are quoted, and their frames read.
QUOTED = 6
# Where ranks have issued calls that do not go together: there is no one call that all wait in.
MISMATCHES = (*DIFFERENT, "p2p-both-send", "groups-crossed")
# Of all files that were given.
ALL_COPIES = msg("all dumps are copies of one, equal to the nanosecond")


def named(call: str) -> Text:
    """The operation of a call, or what is sent or received."""
    if not is_message(call):
        return same(call.split("+")[0].split(" ")[0]) if call.split("+")[0].split(" ")[0] else msg("a call")
    kind, _, partner = call.partition(" to " if call.startswith("send") else " from ")
    whom = msg(partner)
    return msg("a {kind} to {whom}", kind=kind, whom=whom) if kind == "send" else msg("a {kind} from {whom}", kind=kind, whom=whom)


def numbered(at: Step) -> Text:
    return msg("{call} #{number} of group {group}", call=named(at.call), number=str(at.number), group=at.group)


def wait(numbers: Sequence[int], where: Text) -> Text:
    """ "ranks 0 and 2 wait in ..."."""
    waits = words.verb(numbers, "waits", "wait")
    return msg("{who} {waits} in {where}", who=ranks(numbers), waits=waits, where=where)


def step(at: Step) -> Text:
    """ "rank 4 waits in all_reduce #2 of group tp2 for rank 5"."""
    waits = wait(at.waiting, this(at))
    return waits if is_message(at.call) else waits + msg(" for {who}", who=ranks(at.lacking))


def this(at: Step) -> Text:
    return named(at.call) if is_message(at.call) else numbered(at)


def path(outcome: Outcome) -> Text:
    """How the chain led there, where it has more than one place."""
    steps = outcome.path
    told = [step(s) for s in steps if s.lacking] if len(steps) > 1 else []
    return msg(" ({told})", told=joined(told)) if told else NOTHING


def seq(outcome: Outcome) -> Text:
    """ "all_reduce #2 of group tp2": where all wait, or part."""
    return msg(
        "{call} #{number} of group {group}",
        call=msg("call") if outcome.kind in MISMATCHES else named(outcome.call),
        number=str(outcome.number),
        group=str(outcome.group),
    )


def counters_say(c: Counted) -> Text:
    """ "#2 of group 1 is not over by the counters of rank 0 (#1 is), and it has been overwritten there; rank 3 has issued none of it"."""
    says = msg(
        "#{n} of group {group} is not over by the counters of {who}{over}, and it has been overwritten there",
        n=str(c.number),
        group=c.group,
        who=ranks(c.ranks),
        over=msg(" (#{n} is)", n=str(c.completed)) if c.completed else NOTHING,
    )
    for rank, newest in c.fewer[:QUOTED]:
        says += msg(
            "; rank {rank} has issued {after}",
            rank=rank,
            after=msg("nothing after #{n} of it", n=newest) if newest else msg("none of it"),
        )
    return says


def issued(call: Call) -> Text:
    """ "all_reduce #3 of group 0"."""
    return msg("{op} #{seq} of group {group}", op=call.op, seq=call.seq, group=call.group)


def what(call: Call) -> Text:
    """ "all_reduce of [8] Float"."""
    return words.call(call)


def is_message(call: str) -> bool:
    return call.startswith(("send to", "receive from"))


def at(call: Call | None) -> Text:
    """ " at train.py:88 in evaluate"."""
    frame = user_frame(call.frames) if call is not None else None
    return msg(" at {place}", place=place(frame, "")) if frame is not None else NOTHING


def line(call: Call) -> Text:
    frame: Frame | None = user_frame(call.frames)
    return msg(", {frame}", frame=words.frame(frame)) if frame is not None else NOTHING


def last(call: Call) -> Text:
    """ "last call #4 all_reduce of [8] Float of group 0, File ..."."""
    return msg("last call #{n} {call} of group {group}{line}", n=call.seq, call=words.call(call), group=call.group, line=line(call))


class Quoted:
    """Of `recordings` what is quoted for an outcome; a rank's frames are read once, and of no more ranks than a few times those that are quoted."""

    def __init__(self, recordings: Mapping[int, Recording], outcome: Outcome) -> None:
        self._recordings, self._outcome = recordings, outcome
        self._flights: dict[int, Flight | None] = {}

    def flight(self, rank: int) -> Flight | None:
        if rank not in self._flights:
            recording = self._recordings.get(rank)
            self._flights[rank] = flight(recording) if recording is not None and len(self._flights) < 4 * QUOTED else None
        return self._flights[rank]

    def calls(self, rank: int) -> Mapping[int, Call]:
        """The calls of a rank in the group, by number; of several launched together the first."""
        found = self.flight(rank)
        calls = found.calls.get(self._outcome.group_name, ()) if found is not None else ()
        return {c.seq: c for c in reversed(calls) if not c.is_p2p}

    def call(self, rank: int) -> Call | None:
        return None if self._outcome.number is None else self.calls(rank).get(self._outcome.number)

    def message(self, rank: int) -> Call | None:
        o = self._outcome
        side = next((s for s in o.sides if s.ranks == (rank,)), None)
        number, kind = (o.number, "") if side is None or side.number is None else (side.number, side.call.split(" ")[0])
        found = pending_of(self.flight(rank), o.group_name, number, is_p2p=True, kind=kind)
        return found if side is not None or (found is not None and not found.done) else None

    def waited(self, rank: int) -> Call | None:
        """The call that the outcome is about, as this rank issued it."""
        return self.message(rank) if is_message(self._outcome.call) or self._outcome.kind == "p2p-size" else self.call(rank)

    def last(self, rank: int) -> Call | None:
        """The newest call of a rank, in any group."""
        found = self.flight(rank)
        calls = [c for of_group in found.calls.values() for c in of_group] if found is not None else []
        return max(calls, key=lambda c: c.created_ns, default=None)

    def oldest(self, rank: int) -> Call | None:
        """The oldest call that a rank has pending, in any group."""
        found = self.flight(rank)
        calls = [c for of_group in found.calls.values() for c in of_group] if found is not None else []
        return min((c for c in calls if not c.done), key=lambda c: c.created_ns, default=None)

    def place(self, rank: int) -> str | None:
        call = self.waited(rank)
        frame = user_frame(call.frames) if call is not None else None
        return place(frame, "") if frame is not None else None

    def evidence(self, rank: int, said: Text) -> Evidence:
        return words.stated(self._recordings[rank].source if rank in self._recordings else "", words.of_rank(rank, said))

    def around(self, rank: int) -> tuple[list[Evidence], list[Evidence]]:
        """What a rank issued at the number; the calls before and behind it."""
        o = self._outcome
        if o.number is None or o.kind == "p2p-size":
            call = self.message(rank)
            return [self.evidence(rank, words.call(call) + line(call))] if call is not None else [], []
        calls, found = self.calls(rank), dict[int, Evidence]()
        for number, word in ((o.number, NOTHING), (o.number - 1, msg("before: ")), (o.number + 1, msg("behind: "))):
            if (call := calls.get(number)) is not None:
                state = self.over() if call.done else msg("not finished")
                said = msg("{word}#{n} {call} ({state}){line}")
                found[number] = self.evidence(rank, said.fill(word=word, n=number, call=words.call(call), state=state, line=line(call)))
        return [e for n, e in found.items() if n == o.number], [e for n, e in found.items() if n != o.number]

    def pending(self, rank: int) -> list[Evidence]:
        """What a rank waits in."""
        here = None if self._outcome.kind in MISMATCHES else self.waited(rank)
        oldest = here or self.oldest(rank)
        if oldest is None:
            return []
        said = msg(
            "#{n} {call} of group {group} ({state}){line}",
            n=oldest.seq,
            call=words.call(oldest),
            group=oldest.group,
            state=self.over() if oldest.done else msg("waits"),
            line=line(oldest),
        )
        return [self.evidence(rank, said)]

    def newest(self, rank: int) -> list[Evidence]:
        c = self.last(rank)
        return [] if c is None else [self.evidence(rank, last(c))]

    def over(self) -> Text:
        return msg("over, well or not") if self.on_gloo() else msg("done", "quoted")

    def on_gloo(self) -> bool:
        return any(t.gloo for r in self._recordings.values() for t in r.tracks)
