"""Sentences in both languages, put together from pieces that have both: what a run or an answer told, said in numbers of that run.

A piece is a template with {names}; what is filled in is of the run, and is never read as a template. Names of ranks, calls, groups, files and
variables are the same in both languages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.i18n import AND, COMMA, NOTHING, THEN, Text, joined, msg, same
from unhang.knowledge import words
from unhang.model import Finding

if TYPE_CHECKING:
    from unhang.flight.outcome import Kind
    from unhang.flight.voting import Edit
    from unhang.records.incident_view import IncidentView, RankView

__all__ = [
    "AND",
    "COMMA",
    "NOTHING",
    "THEN",
    "Text",
    "at",
    "before_its_end",
    "continued",
    "crossed_by",
    "edited",
    "joined",
    "msg",
    "possible",
    "ranks",
    "same",
    "sized",
    "stall",
    "sums",
    "waiting",
    "while_waiting",
]


def ranks(numbers: Iterable[int]) -> Text:
    """ "ranks 0 to 6", "rank 0 到 6"."""
    found = sorted(set(numbers))
    return Text(words.ranks(found), _ranks_zh(found))


def at(picture: IncidentView, rank: RankView) -> Text:
    """ " at train.py:88 in evaluate", ", last seen at ... 0.2 s before its end" where only a heartbeat tells, NOTHING where nothing does."""
    where = picture.where(rank)
    if where is None:
        return NOTHING
    if not rank.only_last_seen:
        return Text(" at {at}", "，位于 {at}").fill(at=where)
    return Text(", last seen at {at}{before}", "，最后见于 {at}{before}").fill(at=where, before=before_its_end(rank))


def before_its_end(rank: RankView) -> Text:
    """ " 0.2 s before its end", by how much a rank that has ended outlived its last heartbeat; NOTHING where that is not known."""
    ended, beat_s = rank.record.ended, rank.record.last_beat_s
    if ended is None or beat_s is None or ended.at_s < beat_s:
        return NOTHING
    return Text(" {s} before its end", "（结束前 {s}）").fill(s=words.seconds(ended.at_s - beat_s))


def stall(picture: IncidentView) -> Text:
    """ " for 21 s", NOTHING where it is not known."""
    for_s = picture.incident.stalled_for_s
    return Text(" for {s}", "，已有 {s}").fill(s=words.seconds(for_s)) if for_s is not None else NOTHING


def waiting(picture: IncidentView) -> Text:
    """ "rank 0 waits in all_reduce (train.py:30 in step)"; NOTHING where nobody waits."""
    front = picture.front
    if front is None or not front.waiting:
        return NOTHING
    first = picture.waits[front.waiting[0]]
    ops = {picture.waits[r].op for r in front.waiting}
    op = same(first.op)
    if len(ops) > 1:
        messages = all(op.startswith(("send", "recv")) for op in ops)
        op = Text("messages", "消息") if messages else Text("a collective", "集合通信")
    at = Text(" ({at})", "（{at}）").fill(at=picture.place(first.place)) if first.place is not None else NOTHING
    return Text("{who} {waits} in {op}{at}", "{who} 在 {op}{at} 中等待").fill(
        who=ranks(front.waiting), waits=words.verb(front.waiting, "waits", "wait"), op=op, at=at
    )


def while_waiting(picture: IncidentView) -> Text:
    return Text(" while {waiting}", "，而 {waiting}").fill(waiting=found) if (found := waiting(picture)) else NOTHING


def possible(causes: Sequence[str]) -> Text:
    """ " (possible: dns-resolution, network-blocked)"."""
    return Text(" (possible: {ids})", "（可能是：{ids}）").fill(ids=", ".join(causes))


def crossed_by(by: str, numbers: Sequence[int], came_to: str, usual: str) -> Text:
    """ "; rank 2 came to group 2 first, where most of the ranks of both came to group 0 first"."""
    how = (
        Text("in earlier rounds it had been group {usual}", "而此前各轮先到的是组 {usual}")
        if by == "history"
        else Text("more than half of the ranks of both came to group {usual} first", "而同属两组的 rank 中一半以上先到的是组 {usual}")
    )
    return Text("; {who} came to group {came_to} first, where {how}", "；{who} 先到了组 {came_to}，{how}").fill(
        who=ranks(numbers), came_to=came_to, how=how.fill(usual=usual)
    )


def edited(kind: Kind, edit: Edit | None) -> Text:
    """ "; the next two calls are swapped": how the calls of the rank that strayed become those of the others, NOTHING where that is not told."""
    if kind == "order":
        return Text("; the next two calls are swapped", "；接下来的两次调用次序颠倒")
    if edit is not None and kind in ("extra", "lacking"):
        says = Text("; from there on its calls are those of the others with {many} {how}", "；从那里起，它的调用与其他进程的相比{how}了 {n} 次")
        how = Text("too many", "多") if kind == "extra" else Text("left out", "少")
        return says.fill(many=f"{edit.count} calls" if edit.count > 1 else "one call", n=edit.count, how=how)
    return NOTHING


def slipped(number: int, here: str, there: str) -> Text:
    """Where the calls of a rank that strayed came from other lines already, though they were alike."""
    says = Text("already #{number} came from {here}, where the others were at {there}", "早在 #{number} 时它就来自 {here}，而其他进程在 {there}")
    return says.fill(number=number, here=here, there=there)


def sums(said: str, numbers: Sequence[int]) -> Text:
    """ "rank 1 sends 4 and receives 3 elements", of what was compared of an all_to_all: "all_to_all Float 4>3"."""
    sent, _, got = said.rpartition(" ")[2].partition(">")
    return Text("{who} {sends} {sent} and {receives} {got} elements", "{who} 发送 {sent} 个、接收 {got} 个元素").fill(
        who=ranks(numbers),
        sends=words.verb(numbers, "sends", "send"),
        sent=sent,
        receives=words.verb(numbers, "receives", "receive"),
        got=got,
    )


def sized(said: str) -> Text:
    """ "8 elements Float", of what was compared of a message: "send 8 Float"."""
    _, elements, dtypes = (*said.split(" "), "")[:3]
    return Text("{n} elements{dtypes}", "{n} 个元素{dtypes}").fill(n=elements, dtypes=f" {dtypes}" if dtypes else "")


def continued(finding: Finding, more: Text) -> Finding:
    """The finding with something put behind what it says, in each language that it has."""
    return replace(finding, says=finding.says + more.en, says_zh=finding.says_zh and finding.says_zh + more.zh)


def _ranks_zh(found: Sequence[int]) -> str:
    if not found:
        return "没有任何 rank"
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"rank {found[0]} 到 {found[-1]}"
    shown = "、".join(map(str, found[:8]))
    return f"rank {shown} 等 {len(found)} 个" if len(found) > 8 else f"rank {shown}"
