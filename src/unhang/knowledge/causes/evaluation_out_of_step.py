"""evaluation-out-of-step: an evaluation left a group of torch's with more calls on some ranks than on others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import text, unhang_errors
from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.text import Text, same
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.model import Finding
    from unhang.records.incident_view import IncidentView

_OF_GROUP = lazily(
    r"(?:^|; )(?P<group>[^;]{1,400}?) (?:is|(?P<unsure>may be)) out of step: in this evaluation "
    r"(?:its ranks made different numbers of collectives|it was used, and how many collectives some of its ranks made is not known)"
    r"(?: \((?P<counts>[^)]*)\))?"
)
# Who did not come to its end, and where such a one stands.
_SILENT = lazily(
    r"\b[Rr]anks? (?P<ranks>[\d, ]+)"
    r"(?: did not answer within [\d.e+-]+ s(?: \((?:\d+: )?at (?P<at>[^(),]{1,300}))?|: (?:its process has|their processes have) ended)"
)
_COUNT = lazily(r"rank (?P<rank>\d+) (?P<count>\d+)")
_UNLIKE = Text("{group} saw different numbers of collectives ({counts})", "{group} 的集合通信次数不一致（{counts}）")
_UNSURE = Text(
    "{group} was used, and how many collectives some of its ranks made is not known (known: {counts})",
    "{group} 被使用过，其部分 rank 发出了多少次集合通信不得而知（已知：{counts}）",
)


def _found(seen: LogView | IncidentView) -> Finding | None:
    hits = seen.hits_of(CAUSE.id)
    groups = list(_OF_GROUP.finditer(hits[0].groups["what"])) if hits else []
    if not groups:
        return None
    line = unhang_errors.line_of(hits, seen)
    told, odd = [], set[int]()
    silent = list(_SILENT.finditer(hits[0].groups["what"]))
    missing = tuple(n for one in silent for n in unhang_errors.numbers(one["ranks"]))
    stood = next((one["at"] for one in silent if one["at"]), None)
    for found in groups[:3]:
        counts = {int(one["rank"]): int(one["count"]) for one in _COUNT.finditer(found["counts"] or "")}
        odd |= set(unhang_errors.fewest(counts)) if len(counts) > 1 and not found["unsure"] else set()
        calls = text.joined((same(f"rank {rank}: {count}") for rank, count in list(counts.items())[:8]), text.COMMA)
        told.append((_UNSURE if found["unsure"] else _UNLIKE).fill(group=found["group"], counts=calls))
    what = text.joined(told)
    if missing:
        at = Text(" (at {at})", "（停在 {at}）").fill(at=stood) if stood else text.NOTHING
        what += Text("; {who} did not come to its end{at}", "；{who} 没有来到评估结尾{at}").fill(who=text.ranks(missing), at=at)
    return unhang_errors.finding(
        CAUSE,
        hits,
        Text("in an evaluation {what}{at}", "一次评估中，{what}{at}").fill(what=what, at=unhang_errors.at_line(line)),
        standing="likely" if all(found["unsure"] for found in groups) else "established",
        ranks=tuple(sorted(odd)) or missing or unhang_errors.raisers(hits),
        where=stood or line,
    )


CAUSE = cause("evaluation-out-of-step", in_run=_found, in_logs=_found)
