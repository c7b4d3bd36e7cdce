"""out-of-sync: the ranks do not train the same model, or no longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import unhang_errors
from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.judge import Found
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.model import Finding
    from unhang.records.incident_view import IncidentView

_WHO = lazily(r" (?:Ranks? (?P<ranks>[\d, ]+) differs? from most|There is no (?:most|majority: which rank is right cannot be told from this))\.?$")


def _found(seen: LogView | IncidentView) -> Found | Finding | None:
    hits = [h for h in seen.hits_of(CAUSE.id) if "what" in h.groups and "step" in h.groups]
    if not hits:
        return CAUSE.of_hits(seen.hits_of(CAUSE.id), seen if isinstance(seen, LogView) else None)
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


CAUSE = cause("out-of-sync", in_run=_found, in_logs=_found)
