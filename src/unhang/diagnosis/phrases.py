"""What calls, steps and counters of a comparison of flight recorders are called."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.flight import Call
from unhang.flight.mismatch import DIFFERENT
from unhang.flight.outcome import Counted, Outcome, Step
from unhang.knowledge import words
from unhang.knowledge.text import NOTHING, Text, joined, msg, ranks, same

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
