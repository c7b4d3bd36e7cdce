"""Sentences put together from pieces: what a run or an answer told, said in numbers of that run.

A piece is a template with {names}; what is filled in is of the run, and is never read as a template. Names of ranks, calls, groups, files and
variables are the same in all languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.i18n import AND, COMMA, NOTHING, THEN, Text, joined, msg, same
from unhang.knowledge import words
from unhang.knowledge.words import ranks
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


def at(picture: IncidentView, rank: RankView) -> Text:
    """ " at train.py:88 in evaluate", ", last seen at ... 0.2 s before its end" where only a heartbeat tells, NOTHING where nothing does."""
    where = picture.where(rank)
    if where is None:
        return NOTHING
    if not rank.only_last_seen:
        return msg(" at {at}", at=where)
    return msg(", last seen at {at}{before}", at=where, before=before_its_end(rank))


def last_seen(picture: IncidentView, rank: RankView) -> str | None:
    """ "train.py:88 in evaluate (last seen 0.2 s before its end)": where a rank stood, and whether only a heartbeat tells."""
    at = picture.where(rank)
    if at is None or not rank.only_last_seen:
        return at
    if (before_s := _before_its_end_s(rank)) is None:
        return msg("{at} (last seen)", at=at)
    return msg("{at} (last seen {s} before its end)", at=at, s=words.seconds(before_s))


def _before_its_end_s(rank: RankView) -> float | None:
    ended, beat_s = rank.record.ended, rank.record.last_beat_s
    return None if ended is None or beat_s is None or ended.at_s < beat_s else ended.at_s - beat_s


def before_its_end(rank: RankView) -> Text:
    """ " 0.2 s before its end", by how much a rank that has ended outlived its last heartbeat; NOTHING where that is not known."""
    before_s = _before_its_end_s(rank)
    return NOTHING if before_s is None else msg(" {s} before its end", s=words.seconds(before_s))


def stall(picture: IncidentView) -> Text:
    """ " for 21 s", NOTHING where it is not known."""
    for_s = picture.incident.stalled_for_s
    return msg(" for {s}", "text", s=words.seconds(for_s)) if for_s is not None else NOTHING


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
        op = msg("messages") if messages else msg("a collective")
    at = msg(" ({at})", at=picture.place(first.place)) if first.place is not None else NOTHING
    return msg("{who} {waits} in {op}{at}", who=ranks(front.waiting), waits=words.verb(front.waiting, "waits", "wait"), op=op, at=at)


def while_waiting(picture: IncidentView) -> Text:
    return msg(" while {waiting}", waiting=found) if (found := waiting(picture)) else NOTHING


def possible(causes: Sequence[str]) -> Text:
    """ " (possible: dns-resolution, network-blocked)"."""
    return msg(" (possible: {ids})", ids=", ".join(causes))


def crossed_by(by: str, numbers: Sequence[int], came_to: str, usual: str) -> Text:
    """ "; rank 2 came to group 2 first, where most of the ranks of both came to group 0 first"."""
    how = (
        msg("in earlier rounds it had been group {usual}")
        if by == "history"
        else msg("more than half of the ranks of both came to group {usual} first")
    )
    return msg("; {who} came to group {came_to} first, where {how}", who=ranks(numbers), came_to=came_to, how=how.fill(usual=usual))


def edited(kind: Kind, edit: Edit | None) -> Text:
    """ "; the next two calls are swapped": how the calls of the rank that strayed become those of the others, NOTHING where that is not told."""
    if kind == "order":
        return msg("; the next two calls are swapped")
    if edit is not None and kind in ("extra", "lacking"):
        says = msg("; from there on its calls are those of the others with {many} {how}")
        how = msg("too many") if kind == "extra" else msg("left out")
        return says.fill(many=f"{edit.count} calls" if edit.count > 1 else "one call", n=edit.count, how=how)
    return NOTHING


def slipped(number: int, here: str, there: str) -> Text:
    """Where the calls of a rank that strayed came from other lines already, though they were alike."""
    says = msg("already #{number} came from {here}, where the others were at {there}")
    return says.fill(number=number, here=here, there=there)


def sums(said: str, numbers: Sequence[int]) -> Text:
    """ "rank 1 sends 4 and receives 3 elements", of what was compared of an all_to_all: "all_to_all Float 4>3"."""
    sent, _, got = said.rpartition(" ")[2].partition(">")
    return msg(
        "{who} {sends} {sent} and {receives} {got} elements",
        who=ranks(numbers),
        sends=words.verb(numbers, "sends", "send"),
        sent=sent,
        receives=words.verb(numbers, "receives", "receive"),
        got=got,
    )


def sized(said: str) -> Text:
    """ "8 elements Float", of what was compared of a message: "send 8 Float"."""
    _, elements, dtypes = (*said.split(" "), "")[:3]
    return msg("{n} elements{dtypes}", n=elements, dtypes=f" {dtypes}" if dtypes else "")


def continued(finding: Finding, more: Text) -> Finding:
    """The finding with something put behind what it says."""
    return replace(finding, says=finding.says + more)
