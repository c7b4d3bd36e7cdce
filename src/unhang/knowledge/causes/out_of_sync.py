"""out-of-sync: the ranks do not train the same model, or no longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import unhang_errors
from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.text import NOTHING, Text, same
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.model import Finding
    from unhang.records.incident_view import IncidentView

_WHO = lazily(r" (?:Ranks? (?P<ranks>[\d, ]+) differs? from most|There is no (?:most|majority: which rank is right cannot be told from this))\.?$")


def _found(seen: LogView | IncidentView) -> Finding | None:
    hits = [h for h in seen.hits_of(CAUSE.id) if "what" in h.groups and "step" in h.groups]
    if not hits:
        return CAUSE.of_hits(seen.hits_of(CAUSE.id), seen if isinstance(seen, LogView) else None)
    told = hits[0].groups["what"]
    named = _WHO.search(told)
    odd = unhang_errors.numbers(named["ranks"]) if named is not None else ()
    what = _WHO.sub("", told).rstrip(".")
    line = unhang_errors.line_of(hits, seen)
    who = (
        unhang_errors.differs(odd) + Text(" from most", "（与多数相比）")
        if odd
        else Text("there is no majority, which rank is right is not known", "没有占多数的一方，无法得知哪个 rank 正确")
        if named
        else NOTHING
    )
    who += Text(" ({what})", "（{what}）").fill(what=what) if who else same(what)
    at = hits[0].groups["step"]
    says = Text("at step{s} {step} the ranks do not train the same model: {who}{at}", "第 {step} 步时各 rank 训练的模型不一致：{who}{at}")
    return unhang_errors.finding(
        CAUSE,
        hits,
        says.fill(s="s" if "-" in at[1:] else "", step=at, who=who, at=unhang_errors.at_line(line) if line else NOTHING),
        standing="established",
        ranks=odd or unhang_errors.raisers(hits),
        where=line,
        remedies=("go-back", "find-the-step", "same-start", "examine-the-gpu"),
    )


CAUSE = cause("out-of-sync", in_run=_found, in_logs=_found)
