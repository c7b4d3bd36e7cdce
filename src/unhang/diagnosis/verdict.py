"""From findings to one verdict: roots over symptoms, the better established over the guessed, the earlier over the later.

A cause whose check breaks is named under `not_examined`; the others still speak, because this runs inside the supervisor of a live training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from unhang.diagnosis.precedence import SAME_EVENT_S, ranked
from unhang.knowledge import catalogue, environments
from unhang.model import Finding, NotExamined, Verdict

if TYPE_CHECKING:
    from unhang.knowledge.cause import Cause
    from unhang.records.incident_view import IncidentView


def of_picture(picture: IncidentView) -> Verdict:
    """The verdict on one incident, as the evidence has it: credentials are still in it."""
    # Of no use to logs, which need the rest of this module.
    from unhang.diagnosis import contradictions, interrupted
    from unhang.diagnosis.unknown import unknown_in_run

    not_examined = list(picture.not_examined)
    roots: list[Finding] = []
    symptoms: list[Finding] = []
    for cause in catalogue.load().values():
        found = ask(cause, lambda c: c.in_run(picture) if c.in_run else c.of_hits(picture.hits_of(c.id)), not_examined)
        if found is not None:
            (roots if cause.role == "root" else symptoms).append(found)
    disagreeing = contradictions.of_picture(picture)
    roots, symptoms = ([contradictions.lowered(f, disagreeing) for f in found] for found in (roots, symptoms))
    onset = {id(f): _onset(picture, f) for f in roots}
    roots = ranked(roots, not_later=lambda a, b: onset[id(a)] <= onset[id(b)] + SAME_EVENT_S, place=lambda f: onset[id(f)])
    blamed = _blamed_by_nccl(picture)
    roots, symptoms = ([interrupted.lowered(f, picture) for f in found] for found in (roots, symptoms))
    primary = roots[0] if roots else blamed[0] if blamed else unknown_in_run(picture, symptoms)
    # What NCCL says against somebody else is shown, never averaged away.
    others = [*roots[1:], *(f for f in blamed if f is not primary and primary is not None and set(f.ranks) - set(primary.ranks))]
    verdict = Verdict(
        primary=interrupted.told(primary, picture),
        contributing=tuple(others),
        symptoms=besides(primary, symptoms),
        contradictions=disagreeing,
        not_examined=tuple(not_examined),
        inputs=picture.inputs,
    )
    hits = [h for of in picture.hits.values() for h in of]
    raised = (r.raised.text for r in picture.raised if r.raised is not None)
    where = environments.seen_in([*(h.text for h in hits), *raised, "nccl" if picture.on_nccl else ""])
    return verdict.each(lambda f: environments.fitted(f, where))


def _blamed_by_nccl(picture: IncidentView) -> list[Finding]:
    if picture.ras is None or picture.incident.kind not in ("hang", "interrupted"):
        return []
    from unhang.diagnosis import ras

    return ras.blames(picture.ras, stands_for_s=picture.incident.stalled_for_s)


def besides(primary: Finding | None, symptoms: Sequence[Finding]) -> tuple[Finding, ...]:
    """The symptoms that are not told already: one that speaks for want of a cause is the primary."""
    return tuple(s for s in symptoms if primary is None or s.cause != primary.cause)


def ask(cause: Cause, check: Callable[[Cause], Finding | None], not_examined: list[NotExamined]) -> Finding | None:
    """One cause's answer; a broken check is recorded, never taken for "not found"."""
    try:
        return check(cause)
    except Exception as e:
        not_examined.append(NotExamined(what=f"the cause {cause.id}", why=f"its check is broken: {type(e).__name__}: {e}"))
        return None


def _onset(picture: IncidentView, finding: Finding) -> float:
    known = {r.number for r in picture.ranks}
    return min((picture.onset(picture.rank(n)) for n in finding.ranks if n in known), default=picture.incident.at_s)
