"""Logs of a run directory, read alone: a launcher that was told to stop there may have been told by `unhang run` itself, once it had found a hang."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from unhang.diagnosis import run_history
from unhang.errors import UnhangError
from unhang.knowledge import words
from unhang.knowledge.text import msg
from unhang.model import Remedy, Verdict
from unhang.records.rundir import RunDir

# After such a verdict unhang ends the training, unless it was told to leave it alone.
_ENDING = ("hang",)


class _Options(msgspec.Struct):
    leave_hung: bool = False


class _Run(msgspec.Struct):
    options: _Options = msgspec.field(default_factory=_Options)


def told(verdict: Verdict, rundir: RunDir, logs: Path, *, called: str) -> Verdict:
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
            remedies=(
                Remedy(
                    id="judge-the-run",
                    says=msg("Have the whole run directory judged: it has stacks, flight recorders and counters of that moment."),
                    command=run_history.why(called),
                ),
            ),
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
