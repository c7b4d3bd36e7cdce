"""Flight recorders tell who is missing and never why: where stacks of those ranks were given beside them, these do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from unhang.diagnosis.logs import ONLY_STACKS
from unhang.diagnosis.recorders import NO_STACKS
from unhang.diagnosis.redact import redact_data
from unhang.diagnosis.untold import STACKS
from unhang.i18n import same
from unhang.knowledge import catalogue, collective_waits
from unhang.knowledge.cause import LogView
from unhang.knowledge.collective_waits import Kind
from unhang.knowledge.text import NOTHING, Text, msg, ranks
from unhang.model import Evidence, Finding, NotExamined, Verdict
from unhang.text import OF_WHY

_CAUSES: dict[Kind, tuple[str, tuple[str, ...]]] = {
    "loader": ("dataloader-deadlock", ("loader-timeout", "start-method", "threads-in-workers")),
    "executes": ("straggler-timeout", ("share-the-work", "raise-the-timeout")),
    "stands": ("process-stuck", ("look-inside", "bound-the-wait")),
}
# What the recorders alone do not tell, at the end of their sentence.
_STATES = msg("process states")
_BESIDE = msg("whether the stacks in the logs tell why a rank is missing")
_WHOSE = msg("which dump is of which rank is not known")
_NOT_GIVEN = msg("only logs, stacks and flight-recorder dumps were given; unhang run takes these before anything is ended")


def explained(verdict: Verdict, view: LogView, *, unsure: bool = False) -> Verdict:
    """A verdict on recorders and logs, with what the stacks in the logs tell of ranks that are missing in the recorders. Where their ranks are
    `unsure`, these stacks may be of others."""
    if not view.stacks:
        return verdict
    # Where everybody stands is told by the recorders, too.
    symptoms = tuple(f for f in verdict.symptoms if f.cause != "unknown")
    verdict = replace(verdict, symptoms=symptoms, not_examined=tuple(_left(verdict, view, unsure=unsure)))
    primary = verdict.primary
    if primary is None or primary.cause != "collective-timeout" or unsure:
        return verdict
    apart = [collective_waits.apart_of(s) for s in collective_waits.recent(view) if s.rank in primary.ranks and not collective_waits.op_of(s)]
    if not apart:
        return verdict
    besides = msg("; {says}", says=same(primary.says).edited(OF_WHY, ""))

    def root(kind: Kind, besides: Text, others: Sequence[Evidence]) -> Finding:
        id, remedies = _CAUSES[kind]
        chosen = [a for a in apart if a.kind == kind]
        waited = collective_waits.of_the_wait([a.stack for a in chosen], view)
        return redact_data(collective_waits.told(catalogue.load()[id], chosen, besides, remedies, waited=waited, others=others))

    # Of several that are missing each may be held up by something else.
    first, *more = dict.fromkeys(a.kind for a in apart)
    found = root(first, besides, primary.evidence[:3])
    beside = tuple(root(kind, NOTHING, ()) for kind in more)
    causes = {f.cause for f in (found, *beside)}
    others = tuple(f for f in verdict.contributing if f.cause not in causes)
    return replace(verdict, primary=found, contributing=(*beside, *others), symptoms=(primary, *symptoms))


def _left(verdict: Verdict, view: LogView, *, unsure: bool) -> Iterator[NotExamined]:
    """What was not looked at, without the stacks that were."""
    said = False
    for n in verdict.not_examined:
        if n not in (ONLY_STACKS, NO_STACKS) and n.what != STACKS:
            yield n
        elif not said:
            said = True
            yield NotExamined(what=_STATES, why=_NOT_GIVEN)
    primary = verdict.primary
    if unsure:
        yield NotExamined(what=_BESIDE, why=_WHOSE)
        return
    seen = {s.rank for s in view.stacks}
    unseen = [r for r in primary.ranks if r not in seen] if primary is not None and primary.cause == "collective-timeout" else []
    if unseen:
        what = msg("the stacks of {who}", who=ranks(unseen))
        why = msg("none of them was given")
        yield NotExamined(what=what, why=why)
