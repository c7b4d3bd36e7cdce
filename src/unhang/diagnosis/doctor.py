"""Is this machine fit to train? Every cause looks at the snapshot; what could not be looked at is never called healthy."""

from __future__ import annotations

from collections.abc import Collection

from unhang.diagnosis.redact import redact_data
from unhang.facts import snapshot as snapshots
from unhang.facts.snapshot import Part, Snapshot
from unhang.facts.subject import Subject
from unhang.knowledge import catalogue
from unhang.model import Area, AreaState, Examination, HostFinding, NotExamined, Severity

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
        try:
            findings += cause.on_host(snapshot) if cause.on_host is not None else ()
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
    return Area(id=subject.id, state=state, summary=told.en, details=tuple(subject.details(part.facts)), unread=unread, summary_zh=told.zh)
