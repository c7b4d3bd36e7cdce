"""Several incidents of one attempt: what an earlier one established stands, and what fails later follows from it.

A rank that hangs is named once its evidence is fresh; minutes later the others time out, and by then the evidence is that of the victims. The earlier
root gives way to a later one that is as well established, and to a training that went on in between.
"""

from __future__ import annotations

from dataclasses import replace

from unhang.i18n import NOTHING
from unhang.knowledge import catalogue, words
from unhang.knowledge.cause import STANDINGS
from unhang.knowledge.words import continued, msg, ranks
from unhang.model import Finding, Verdict
from unhang.records.incident import Incident, RankRecord

# What ends a rank that will wait no longer.
_GAVE_UP = ("rank-exception", "premature-exit")


def extended(before: Verdict, after: Verdict, *, earlier: Incident, later: Incident) -> Verdict:
    """The verdict on `later`, given that on `earlier`, the incident before it in the same attempt."""
    root, end = before.primary, after.primary
    if root is None or not _is_root(root) or went_on(root, earlier, later):
        return after
    if end is not None and _is_root(end) and end.standing in ("established", "likely") and set(root.ranks) == set(end.ranks):
        # The same again, with newer evidence.
        return after
    if end is None or not _is_root(end) or STANDINGS.index(end.standing) > STANDINGS.index(root.standing) or _follows(end, earlier):
        return _led_to(before, root, after, later.at_s - earlier.at_s)
    return replace(after, contributing=(*after.contributing, root))


def went_on(root: Finding, earlier: Incident, later: Incident) -> bool:
    """Whether the training recovered between two incidents: the blamed ranks moved, and some other rank moved with them."""
    then, now = ({r.rank: r for r in i.ranks} for i in (earlier, later))
    moved = {n for n, record in then.items() if n in now and _moved(record, now[n])}
    # A blamed rank that has ended can move no more; trainings that can lose a rank go on without it.
    blamed = {n for n in root.ranks if n in then and then[n].ended is None}
    others = {n for n, record in then.items() if n not in root.ranks and record.ended is None}
    if root.standing != "established" and blamed and all(_executes(then[n]) and n in now and _executes(now[n]) is False for n in blamed):
        # What it was thought to be stuck in is over.
        return True
    return blamed <= moved and (bool(others & moved) or (bool(blamed) and not others))


def _moved(then: RankRecord, now: RankRecord) -> bool:
    """Whether a rank took a step, issued a collective or was started anew in between."""
    issued = any(name not in then.groups or c.enqueued > then.groups[name].enqueued for name, c in now.groups.items())
    return now.pid != then.pid or (now.step or 0) > (then.step or 0) or issued


def _executes(record: RankRecord) -> bool | None:
    """None if nobody looked, or if it has ended."""
    return None if record.ended is not None or record.activity is None else record.activity.busy


def _is_root(finding: Finding) -> bool:
    cause = catalogue.load().get(finding.cause)
    return cause is not None and cause.role == "root" and finding.standing != "not-established"


def _follows(end: Finding, earlier: Incident) -> bool:
    """Whether ranks that had waited in vain gave up by themselves."""
    waited = {r.rank for r in earlier.ranks if _waits(r)}
    return end.cause in _GAVE_UP and bool(end.ranks) and waited.issuperset(end.ranks)


def _waits(record: RankRecord) -> bool:
    return any(c.enqueued > c.completed for c in record.groups.values()) and not (record.activity is not None and record.activity.busy)


def _led_to(before: Verdict, root: Finding, after: Verdict, after_s: float) -> Verdict:
    end = after.primary
    if end is None or (end.cause, end.ranks) == (root.cause, root.ranks):
        consequences: tuple[Finding, ...] = ()
    else:
        consequences = (end,)
        who = msg(" on {ranks}", ranks=ranks(end.ranks)) if end.ranks else NOTHING
        cause = end.cause if end.cause != "unknown" else msg("the failure of the training")
        root = continued(root, msg("; {s} later this led to {cause}{who}", s=words.seconds(after_s), cause=cause, who=who))
    return replace(
        before,
        primary=root,
        symptoms=(*consequences, *before.symptoms, *(s for s in after.symptoms if s not in before.symptoms)),
        contradictions=(*before.contradictions, *(c for c in after.contradictions if c not in before.contradictions)),
        not_examined=tuple(dict.fromkeys((*before.not_examined, *after.not_examined))),
        inputs=tuple({i.source: i for i in (*before.inputs, *after.inputs)}.values()),
    )
