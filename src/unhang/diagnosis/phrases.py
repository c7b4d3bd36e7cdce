"""What calls, steps and counters of a comparison of flight recorders are called, in both languages."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.flight import Call
from unhang.flight.mismatch import DIFFERENT
from unhang.flight.outcome import Counted, Outcome, Step
from unhang.knowledge import words
from unhang.knowledge.text import NOTHING, Text, joined, ranks, same

# How many ranks are quoted, and their frames read.
QUOTED = 6
# Where ranks have issued calls that do not go together: there is no one call that all wait in.
MISMATCHES = (*DIFFERENT, "p2p-both-send", "groups-crossed")
# Of all files that were given.
ALL_COPIES = Text("all dumps are copies of one, equal to the nanosecond", "所有转储都是同一份的副本，逐纳秒相同")


def named(call: str) -> Text:
    """The operation of a call, or what is sent or received."""
    if not is_message(call):
        return same(call.split("+")[0].split(" ")[0]) if call.split("+")[0].split(" ")[0] else Text("a call", "一次调用")
    kind, _, partner = call.partition(" to " if call.startswith("send") else " from ")
    zh = "任意 rank" if partner == "any rank" else partner
    return Text(f"a {call}", f"发往 {zh} 的 {kind}" if kind == "send" else f"来自 {zh} 的 {kind}")


def numbered(at: Step) -> Text:
    return Text("{call} #{number} of group {group}", "组 {group} 的 {call} #{number}").fill(
        call=named(at.call), number=str(at.number), group=at.group
    )


def wait(numbers: Sequence[int], where: Text) -> Text:
    """ "ranks 0 and 2 wait in ..."."""
    waits = words.verb(numbers, "waits", "wait")
    return Text("{who} {waits} in {where}", "{who} 在{where} 中等待").fill(who=ranks(numbers), waits=waits, where=where)


def step(at: Step) -> Text:
    """ "rank 4 waits in all_reduce #2 of group tp2 for rank 5"."""
    waits = wait(at.waiting, this(at))
    return waits if is_message(at.call) else waits + Text(" for {who}", "，等的是 {who}").fill(who=ranks(at.lacking))


def this(at: Step) -> Text:
    return named(at.call) if is_message(at.call) else numbered(at)


def path(outcome: Outcome) -> Text:
    """How the chain led there, where it has more than one place."""
    steps = outcome.path
    told = [step(s) for s in steps if s.lacking] if len(steps) > 1 else []
    return Text(" ({told})", "（{told}）").fill(told=joined(told)) if told else NOTHING


def seq(outcome: Outcome) -> Text:
    """ "all_reduce #2 of group tp2": where all wait, or part."""
    return Text("{call} #{number} of group {group}", "组 {group} 的 {call} #{number}").fill(
        call=Text("call", "调用") if outcome.kind in MISMATCHES else named(outcome.call), number=str(outcome.number), group=str(outcome.group)
    )


def counters_say(c: Counted) -> Text:
    """ "#2 of group 1 is not over by the counters of rank 0 (#1 is), and it has been overwritten there; rank 3 has issued none of it"."""
    says = Text(
        "#{n} of group {group} is not over by the counters of {who}{over}, and it has been overwritten there",
        "按 {who} 的计数器，组 {group} 的 #{n} 没有结束{over}，而那里的记录已被覆盖",
    ).fill(
        n=str(c.number),
        group=c.group,
        who=ranks(c.ranks),
        over=Text(" (#{n} is)", "（#{n} 已结束）").fill(n=str(c.completed)) if c.completed else NOTHING,
    )
    for rank, newest in c.fewer[:QUOTED]:
        says += Text("; rank {rank} has issued {after}", "；rank {rank} {after}").fill(
            rank=rank,
            after=Text("nothing after #{n} of it", "在 #{n} 之后没有再发出").fill(n=newest)
            if newest
            else Text("none of it", "没有发出过其中任何一次"),
        )
    return says


def issued(call: Call) -> Text:
    """ "all_reduce #3 of group 0"."""
    return Text("{op} #{seq} of group {group}", "组 {group} 的 {op} #{seq}").fill(op=call.op, seq=call.seq, group=call.group)


def what(call: Call) -> Text:
    """ "all_reduce of [8] Float"."""
    en = words.call(call)
    return Text(en, en.replace(" of ", " ", 1))


def is_message(call: str) -> bool:
    return call.startswith(("send to", "receive from"))
