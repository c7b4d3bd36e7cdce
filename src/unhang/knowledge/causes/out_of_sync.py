"""out-of-sync: the ranks do not train the same model, or no longer."""

from __future__ import annotations

from unhang.knowledge import unhang_errors
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, LogView, RunView
from unhang.patterns import lazily

CAUSE = cause("out-of-sync")

_WHO = lazily(r" (?:Ranks? (?P<ranks>[\d, ]+) differs? from most|There is no (?:most|majority: which rank is right cannot be told from this))\.?$")


def in_logs(seen: LogView | RunView) -> Answer:
    hits = [h for h in seen.hits_of(CAUSE.id) if "what" in h.groups and "step" in h.groups]
    if not hits:
        return CAUSE.of_hits(seen.hits_of(CAUSE.id), seen)
    told = hits[0].groups["what"]
    named = _WHO.search(told)
    odd = unhang_errors.numbers(named["ranks"]) if named is not None else ()
    what = _WHO.sub("", told).rstrip(".")
    at = hits[0].groups["step"]
    return unhang_errors.found(
        "unequal",
        hits,
        seen,
        ranks=odd or unhang_errors.raisers(hits),
        who="odd" if odd else "no-majority" if named else "what",
        odd=odd,
        what=what,
        step=at,
        steps="-" in at[1:],
    )


in_run = in_logs
