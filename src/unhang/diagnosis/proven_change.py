"""What the trials of `unhang run --fallback` found, from a run directory: which change, how it was proven, how the training went with it."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from unhang.diagnosis import rerun_command
from unhang.diagnosis.proven_in_logs import first, remedy
from unhang.diagnosis.run_history import events
from unhang.errors import EXIT_OK, RunDirError
from unhang.i18n import NOTHING
from unhang.knowledge.words import msg
from unhang.model import NotExamined, Outcome, Verdict
from unhang.records.rundir import RunDir
from unhang.settings.setting import typed


def told(found: Verdict, rundir: RunDir) -> Verdict:
    """The verdict on a run, with what its trials found as the first remedy, where they were made for that cause.

    Not where somebody else may have written them: the settings become a command.
    """
    try:
        if found.primary is None or not rundir.is_trusted or not rundir.holds(rundir.solution):
            return found
        outcome = rundir.read(rundir.solution, Outcome)
    except (RunDirError, OSError) as e:
        left = NotExamined(what=rundir.relative(rundir.solution), why=str(e).replace(f"{rundir.path}/", ""))
        return replace(found, not_examined=(*found.not_examined, left))
    if not outcome.chosen or outcome.why != found.primary.cause:
        return found
    chosen = outcome.chosen or {}
    sets = [f"{key}={typed(value)}" for key, value in chosen.items()]
    trials = [t for t in (*(r.trial for r in outcome.rungs), *outcome.dropping) if t is not None and t.choice == chosen and t.outcome == "passed"]
    speed = max((t.busbw_gbps for t in trials if t.busbw_gbps is not None), default=None)
    steps, ended = _afterwards(rundir)
    then = (
        msg("the training then ended well with it")
        if ended
        else msg("the training then took steps with it")
        if steps
        else msg("of the training no step with it is recorded")
    )
    says = msg(
        "Proven on this machine: {what} passed {n} trials{ranks}{speed}; {then}. {file} has what was measured, and how to set it by hand.",
        what=", ".join(sets),
        n=len(trials),
        ranks=msg(" with {n} ranks over {backend}", n=trials[0].world_size, backend=trials[0].backend) if trials else NOTHING,
        speed=msg(", {gbps} GB/s", gbps=f"{speed:.3g}") if speed is not None else NOTHING,
        then=then,
        file=rundir.relative(rundir.solution_report),
    )
    return first(found, remedy(says, sets, rerun_command.of(rundir)))


def _afterwards(rundir: RunDir) -> tuple[bool, bool]:
    """Whether a step was taken after the change, and whether the run then ended well."""
    changed = steps = ended = False
    with contextlib.suppress(OSError, RunDirError):
        for _, event in events(rundir.events):
            if event is not None and event.event == "FellBack":
                changed, steps, ended = True, False, False
            elif event is not None and changed and event.event == "FirstStep":
                steps = True
            elif event is not None and changed and event.event == "Finished":
                # Notes may follow.
                ended = event.exitcode == EXIT_OK
    return steps, ended
