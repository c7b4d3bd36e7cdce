"""From findings to one verdict: roots over symptoms, the better established over the guessed, the earlier over the later, and none that follows from
another one.

A cause whose check breaks is named under `not_examined`; the others still speak, because this runs inside the supervisor of a live training.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.knowledge import catalogue, environments
from unhang.knowledge.cause import STANDINGS
from unhang.knowledge.kernel_pids import pid_of, short
from unhang.logs import Hit, Traceback
from unhang.model import Finding, NotExamined, Verdict

if TYPE_CHECKING:
    from unhang.knowledge.cause import Cause
    from unhang.records.incident_view import IncidentView


# What one event prints stands this close together: a consequence may be printed before its cause.
SAME_EVENT_LINES = 60
SAME_EVENT_S = 5.0
# The remedy of a finding that tells only that a process was ended, not by whom.
_BY_WHOM = "find-the-killer"


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


class Order:
    """Where findings stand in the course of the job, by the earliest line of their evidence."""

    def __init__(self, hits: Sequence[Hit], backs: Iterable[Traceback]) -> None:
        causes = catalogue.signatures()
        # By which local ranks each cause was printed; None among them where a line names none.
        self._printed_by: dict[str, set[int | None]] = {}
        self._raised_by: dict[tuple[str, int | None], int | None] = {}
        self._pids: dict[tuple[str, int | None], set[str]] = {}
        self._at: dict[tuple[str, int | None], tuple[int, float | None]] = {}
        of_source: dict[str, list[tuple[int, int]]] = {}
        for index, hit in enumerate(hits):
            self._at.setdefault((hit.source, hit.line), (index, hit.at_s))
            of_source.setdefault(hit.source, []).append((hit.place, index))
            if (pid := pid_of(hit)) is not None:
                self._pids.setdefault((hit.source, hit.line), set()).add(pid)
            if (cause := causes.get(hit.signature)) is not None:
                self._printed_by.setdefault(cause, set()).add(hit.local_rank)
        for places in of_source.values():
            places.sort()
        for back in backs:
            places = of_source.get(back.source, [])
            behind = bisect_left(places, (back.place, 0))
            place = (places[behind][1] if behind < len(places) else len(hits), back.at_s)
            for line in (back.line, back.end):
                self._at.setdefault((back.source, line), place)
            self._raised_by[back.source, back.end] = back.local_rank

    def of(self, finding: Finding) -> int:
        """The place of the earliest line; behind everything where none is known."""
        places = [self._at[key][0] for e in finding.evidence if (key := (e.source, e.line)) in self._at]
        return min(places, default=len(self._at))

    def of_others(self, cause: Finding, consequence: Finding) -> bool:
        """Whether local ranks raised an exception that printed nothing of the cause."""
        told = self._printed_by.get(cause.cause, {None})
        raised = {self._raised_by[key] for e in consequence.evidence if (key := (e.source, e.line)) in self._raised_by}
        return None not in told and bool(raised) and None not in raised and told.isdisjoint(raised)

    def same_process(self, a: Finding, b: Finding) -> bool:
        """Whether two findings are of one rank, or where not both name theirs, of one process."""
        if a.ranks and b.ranks:
            return not set(a.ranks).isdisjoint(b.ranks)
        if a.hosts and b.hosts and {short(h) for h in a.hosts}.isdisjoint(short(h) for h in b.hosts):
            return False
        return not self._processes(a).isdisjoint(self._processes(b))

    def _processes(self, finding: Finding) -> set[str]:
        return set[str]().union(*(self._pids.get((e.source, e.line), ()) for e in finding.evidence))

    def not_later(self, cause: Finding, consequence: Finding) -> bool:
        """Whether the one may have led to the other: not where lines or times show that it came after."""
        lines = [(a.line or 0) - (b.line or 0) for a in cause.evidence for b in consequence.evidence if a.source == b.source and a.line is not None]
        if lines:
            return min(lines) <= SAME_EVENT_LINES
        ours, theirs = self._time(cause), self._time(consequence)
        return ours is None or theirs is None or ours <= theirs + SAME_EVENT_S

    def _time(self, finding: Finding) -> float | None:
        times = [at_s for e in finding.evidence if (at_s := self._at.get((e.source, e.line), (0, None))[1]) is not None]
        return min(times, default=None)


def by_precedence(roots: Sequence[Finding], order: Order) -> list[Finding]:
    """The roots, the first one the primary: what follows from another root stands behind all that do not."""

    def not_later(cause: Finding, consequence: Finding) -> bool:
        return order.not_later(cause, consequence) and not order.of_others(cause, consequence)

    return ranked(roots, not_later=not_later, place=order.of, same_process=order.same_process)


def same_rank(a: Finding, b: Finding) -> bool:
    return not set(a.ranks).isdisjoint(b.ranks)


def ranked(
    roots: Sequence[Finding],
    *,
    not_later: Callable[[Finding, Finding], bool],
    place: Callable[[Finding], float],
    same_process: Callable[[Finding, Finding], bool] = same_rank,
) -> list[Finding]:
    """The same for any way to tell when findings happened: `not_later(cause, consequence)`, and the `place` of each in time."""

    def leads(cause: Finding, consequence: Finding) -> bool:
        return _leads(cause, consequence) and not_later(cause, consequence)

    def explains(cause: Finding, end: Finding) -> bool:
        """Whether what befell a process stands before that somebody unknown ended it."""
        if cause.standing != "established" or not _is_unexplained(end) or _is_unexplained(cause) or leads(end, cause):
            return False
        return same_process(cause, end) and not_later(cause, end)

    followers = {id(f) for f in roots if any(other is not f and (leads(other, f) or explains(other, f)) for other in roots)}
    if len(followers) == len(roots):
        followers = set()
    return sorted(roots, key=lambda f: (id(f) in followers, STANDINGS.index(f.standing), place(f)))


def _is_unexplained(finding: Finding) -> bool:
    return any(r.id == _BY_WHOM for r in finding.remedies)


def _leads(cause: Finding, consequence: Finding) -> bool:
    known = catalogue.load().get(cause.cause)
    if known is None or consequence.cause not in known.leads_to or cause.standing not in ("established", "likely"):
        return False
    # What one rank met raises nothing on others but what they lost.
    return not (cause.ranks and consequence.ranks) or not set(cause.ranks).isdisjoint(consequence.ranks)
