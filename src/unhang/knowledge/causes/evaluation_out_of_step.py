"""evaluation-out-of-step: an evaluation left a group of torch's with more calls on some ranks than on others."""

from __future__ import annotations

from unhang.knowledge import unhang_errors
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, LogView, RunView
from unhang.patterns import lazily

CAUSE = cause("evaluation-out-of-step")

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


def in_logs(seen: LogView | RunView) -> Answer:
    hits = seen.hits_of(CAUSE.id)
    groups = list(_OF_GROUP.finditer(hits[0].groups["what"])) if hits else []
    if not groups:
        return None
    told, odd = [], set[int]()
    silent = list(_SILENT.finditer(hits[0].groups["what"]))
    missing = tuple(n for one in silent for n in unhang_errors.numbers(one["ranks"]))
    for found in groups[:3]:
        counts = {int(one["rank"]): int(one["count"]) for one in _COUNT.finditer(found["counts"] or "")}
        odd |= set(unhang_errors.fewest(counts)) if len(counts) > 1 and not found["unsure"] else set()
        told.append((found, list(counts.items())[:8]))
    return unhang_errors.found(
        "counts",
        hits,
        seen,
        standing="likely" if all(found["unsure"] for found in groups) else "established",
        ranks=tuple(sorted(odd)) or missing or unhang_errors.raisers(hits),
        where=next((one["at"] for one in silent if one["at"]), None),
        told=told,
        missing=missing,
    )


in_run = in_logs
