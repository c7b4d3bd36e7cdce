"""Is this machine fit to train? Every cause looks at the snapshot; what could not be looked at is never called healthy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from unhang.diagnosis.redact import redact_data
from unhang.facts import snapshot as snapshots
from unhang.facts import variables
from unhang.facts.host import Subject
from unhang.facts.snapshot import Part, Snapshot
from unhang.knowledge import catalogue
from unhang.model import Area, AreaState, Examination, HostFinding, NotExamined, Severity
from unhang.variables.known import entries, nearest
from unhang.variables.readers import table

# What the judgement of other areas rests on: which commands fit here, and for how many GPUs it is.
CONTEXT = ("container", "numa")
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


def examine(snapshot: Snapshot, *, only: Collection[str] = ()) -> Examination:
    """Areas in the order of the snapshot; findings by severity, then by area. `only` leaves out the others.

    Where a cause failed to judge, no area is called right: which it would have spoken of nobody knows.
    """
    known = snapshots.subjects()
    findings: list[HostFinding] = []
    broken: list[NotExamined] = []
    for cause in catalogue.load().values():
        if cause.on_host is None or (only and catalogue.areas(cause.id).isdisjoint(only)):
            continue
        try:
            findings += cause.on_host(snapshot)
        except Exception as e:  # told as not looked at: what the other causes find must not be lost
            broken.append(NotExamined(what=cause.id, why=f"our own failure: {type(e).__name__}: {e}"))
    order = [id for id in snapshot.parts if not only or id in only]
    findings = [f for f in findings if f.area in order]
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity), order.index(f.area)))
    return redact_data(
        Examination(
            host=snapshot.host,
            taken=snapshot.taken,
            areas=tuple(_area(known[id], snapshot.parts[id], findings, judged=not broken) for id in order),
            findings=tuple(findings),
            not_examined=tuple(broken),
        )
    )


def _area(subject: Subject[object], part: Part, findings: list[HostFinding], *, judged: bool) -> Area:
    if part.state != "read":
        return Area(id=subject.id, state="absent" if part.state == "absent" else "unknown", summary=part.why)
    unread = tuple(getattr(part.facts, "unread", ()))
    against = {f.severity for f in findings if f.area == subject.id}
    state: AreaState = "found" if against - {"note"} else "unknown" if unread or not judged else "noted" if against else "ok"
    told = subject.summary(part.facts)
    return Area(id=subject.id, state=state, summary=told, details=tuple(subject.details(part.facts)), unread=unread)


def handed_on(seen: Snapshot) -> Snapshot:
    """A snapshot as it may leave the machine: without credentials, and without values of variables that are none of ours.

    Of a variable that only begins as ours do the name stays: what a program of the user's keeps in it is unknown.
    """
    part = seen.parts.get(variables.SUBJECT.id)
    if part is not None and part.facts is not None:
        kept: variables.Variables = part.facts
        settings = tuple(s if _is_ours(s.name) else replace(s, value=None) for s in kept.settings)
        plain = {name: value for name, value in kept.plain.items() if _is_ours(name)}
        seen = replace(seen, parts={**seen.parts, variables.SUBJECT.id: replace(part, facts=replace(kept, settings=settings, plain=plain))})
    return redact_data(seen)


def _is_ours(name: str) -> bool:
    """Whether it is known, or a slip of the finger away from one that is."""
    return name in entries() or name in table().names() or nearest(name) is not None
