"""What may be said of a training that somebody ended: where it stood, that a hang was not established where its time had not come, and that unhang
itself ended it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unhang import logs
from unhang.diagnosis import run_history
from unhang.diagnosis.remains import remedy
from unhang.errors import UnhangError
from unhang.frames import Frame, user_frame
from unhang.knowledge import seen, words
from unhang.knowledge.words import continued, joined, msg
from unhang.model import Evidence, Finding, Verdict, frozen
from unhang.records.status import fewer

if TYPE_CHECKING:
    from unhang.diagnosis.run_history import RunHistory
    from unhang.records.incident_view import IncidentView
    from unhang.records.rundir import RunDir

# What has moved within this moves.
_MOVED_S = 3.0
_WAIT = remedy("let-it-be-found")


def early(picture: IncidentView) -> bool:
    """Whether it was interrupted before so much time had passed without progress that it would have been taken for a hang."""
    incident = picture.incident
    return incident.kind == "interrupted" and (incident.stalled_for_s or 0.0) < (incident.threshold_s or 0.0)


def lowered(finding: Finding, picture: IncidentView) -> Finding:
    """The finding, not established where only more time would have told; calls that do not fit each other and a stopped process need none."""
    if not early(picture) or finding.standing != "established":
        return finding
    if (picture.front is not None and picture.front.parting is not None) or any(picture.rank(n).stopped for n in finding.ranks):
        return finding
    return replace(finding, standing="likely")


def told(finding: Finding | None, picture: IncidentView) -> Finding | None:
    """The finding, with the words that it was interrupted, by what and when."""
    incident = picture.incident
    if finding is None or incident.kind != "interrupted":
        return finding
    more = msg("; interrupted then ({by})", by=str(incident.interrupted_by))
    if incident.stalled_for_s is not None:
        more += msg(", after {s} without progress", s=words.seconds(incident.stalled_for_s))
    if early(picture) and incident.threshold_s is not None:
        why = msg(", before the {s} after which it is taken for a hang", s=words.seconds(incident.threshold_s))
        more += why
    return continued(finding, more)


@frozen
class _Stood:
    """Where Ctrl-C met a rank."""

    source: str
    line: int
    rank: int | None
    frame: Frame


def before_its_end(rundir: RunDir, went: RunHistory) -> Finding | None:
    """Where the ranks of the last attempt were when a signal ended them: by the tracebacks of Ctrl-C in their own logs, and of those that left none
    by the last heartbeats before it; None where neither is there.
    """
    stood = _stood(rundir)
    told = {s.rank for s in stood}
    last = went.last_seen
    if last is not None:
        # What a rank has raised is where it was; a heartbeat is up to a quarter of a second older.
        left = [found for s in last.seen if (found := fewer(s, {n for n in told if n is not None})) is not None]
        last = replace(last, seen=tuple(left)) if left else None
    if not stood and last is None:
        return None
    lines: dict[tuple[str, int, str], list[int]] = {}
    for s in stood:
        lines.setdefault((s.frame.file, s.frame.line, s.frame.name), []).extend(() if s.rank is None else (s.rank,))
    parts = [
        msg(
            "{who} {were} at {at}",
            who=words.ranks(ranks) if ranks else msg("a process"),
            were=words.verb(ranks or (0,), "was", "were"),
            at=_place(*at),
        )
        for at, ranks in lines.items()
    ]
    parts += run_history.asked(replace(went, last_seen=last))
    if went.last_seen is None or went.last_seen.still_s is None:
        parts.append(msg("whether it stood still is not in evidence"))
    elif last is None:
        parts.append(seen.moved_before(went.last_seen.still_s))
    says = msg("the training was interrupted after {s} ({by}): {where}", s=words.seconds(went.elapsed_s), by=_by(went), where=joined(parts))
    return words.unestablished(
        says,
        ranks=tuple(sorted(s.rank for s in stood if s.rank is not None)),
        evidence=(
            *(Evidence(source=s.source, line=s.line, text=f"KeyboardInterrupt: {words.frame(s.frame)}") for s in stood[:8]),
            *(words.stated(went.source, msg("LastSeen: {seen}", seen=seen.one(s))) for s in (last.seen[:8] if last is not None else ())),
        ),
        remedies=(_WAIT,) if _may_have_stood(went) else (),
    )


def _may_have_stood(went: RunHistory) -> bool:
    """Whoever presses Ctrl-C may do so because nothing moves; of what was ended from outside, or had just moved, there is nothing to find."""
    last = went.last_seen
    return last is None or (last.signal == "SIGINT" and (last.still_s is None or last.still_s >= _MOVED_S))


def _by(went: RunHistory) -> str:
    return "Ctrl-C" if went.last_seen is None or went.last_seen.signal == "SIGINT" else went.last_seen.signal


def _place(file: str, line: int, name: str) -> str:
    return f"{file.rpartition('/')[2]}:{line} in {name}"


def _stood(rundir: RunDir) -> list[_Stood]:
    found: dict[int | None, _Stood] = {}
    for rank, path in rundir.last_errors():
        try:
            tracebacks = logs.read(path, logs.Needles(()), source=rundir.relative(path), rank=rank).tracebacks
        except (UnhangError, OSError):
            continue
        for t in tracebacks:
            # Launchers are interrupted as well; the training's own code is what the user asks for.
            if t.type == "KeyboardInterrupt" and (frame := user_frame(t.frames)) is not None:
                found[t.rank] = _Stood(source=t.source, line=t.line, rank=t.rank, frame=frame)
    known = [found[rank] for rank in sorted(r for r in found if r is not None)]
    return known or list(found.values())


# A launcher that was told to stop may have been told by `unhang run` itself, once it had found a hang: its logs, read alone, do not know.
# After such a verdict unhang ends the training, unless it was told to leave it alone.
_ENDING = ("hang",)


class _Options(msgspec.Struct):
    leave_hung: bool = False


class _Run(msgspec.Struct):
    options: _Options = msgspec.field(default_factory=_Options)


def ended_by_us(verdict: Verdict, rundir: RunDir, logs: Path, *, called: str) -> Verdict:
    """The verdict on the logs of an attempt, where it is that the job was ended from outside: by unhang, if its records say so.

    `called`: the run directory, as it may be named to `unhang why`.
    """
    primary = verdict.primary
    if primary is None or primary.cause != "launcher-teardown" or (attempt := rundir.attempt_of(logs)) is None:
        return verdict
    number = _incident(rundir, attempt)
    if number is None:
        return verdict
    at = f"{called}/{rundir.relative(rundir.events)}"
    return replace(
        verdict,
        primary=replace(
            primary,
            standing="not-established",
            says=msg(
                "unhang run ended the job itself, once it had found that it hung (incident {number}); why it hung these logs alone do not tell",
                number=number,
            ),
            evidence=(words.stated(at, msg("incident {n} was opened and judged", n=number)), *primary.evidence),
            remedies=(remedy("judge-the-run", path=called),),
        ),
    )


def _incident(rundir: RunDir, attempt: int) -> int | None:
    """The incident for which unhang ended an attempt."""
    try:
        if rundir.read(rundir.run, _Run).options.leave_hung:
            return None
        ended = run_history.drawn(rundir.events, attempt=attempt, kinds=_ENDING)
    except (UnhangError, OSError):
        return None
    return ended[-1] if ended else None
