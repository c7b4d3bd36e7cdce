"""Why did it fail? A pure function of a run directory.

The live supervisor and `unhang why`, on any machine and at any time, reach the same verdict. Two things are asked of the machine: of a run whose
end is not recorded whether `unhang run` still lives, and of a process that a remedy names whether it does. Credentials are taken out here: whoever
shows or writes a verdict has nothing to remember.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unhang.diagnosis import chain, interrupted, proven_change, rerun_command, run_history, verdict
from unhang.diagnosis.redact import redact_data
from unhang.errors import EXIT_OK, RunDirError
from unhang.knowledge import catalogue
from unhang.knowledge.words import THEN, continued, joined, msg
from unhang.model import ONLY_NEWEST, Finding, Input, NotExamined, Verdict
from unhang.records import incident_view
from unhang.records.incident import Incident
from unhang.records.packed import Unpacked
from unhang.records.rundir import RunDir

# Whoever reads of a failure thinks of its end. A pipe (`| tee`) or `|| true` ends with 0 whatever became of the training.
_WENT_ON = msg("; the training was started again after that, and the run ended with exit code 0")
# An attempt has a few, and each costs as much as the last.
_MOST_CHAINED = 12


def judge(rundir: RunDir, *, number: int | None = None, called: str | None = None) -> Verdict:
    """The verdict on incident `number`, by default on the last that can be read, else on how the run ended. Raises RunDirError.

    `called`: where the run directory is, for whoever is to look into it; by default where it lies.
    """
    numbers = rundir.incident_numbers()
    if number is not None and number not in numbers:
        known = ", ".join(map(str, numbers)) or "none"
        raise RunDirError(f"{rundir.path} has no incident {number}; it has: {known}")
    found = _whole(rundir, numbers, called or str(rundir.path)) if number is None else _incident(rundir, number)
    found = proven_change.told(rerun_command.told(found, rundir), rundir)
    return redact_data(replace(found, not_examined=(*found.not_examined, *_run(rundir))))


def judge_newest(runs: Sequence[Path], folder: Path, *, number: int | None = None) -> Verdict:
    """The verdict on the last of `runs_in(folder)`; that the others were not judged is said."""
    return _but_for(judge(RunDir.open(runs[-1]), number=number), _others(len(runs) - 1, folder, str(runs[-1])))


def judge_packed(unpacked: Unpacked, archive: str, *, number: int | None = None) -> Verdict:
    """The verdict on the newest run directory of the archive of this name, in which there is one. Raises RunDirError."""
    newest = unpacked.runs[-1]
    try:
        found = judge(RunDir.open(newest.path, is_trusted=False), number=number, called=newest.name)
    except RunDirError as e:
        raise RunDirError(str(e).replace(str(newest.path), newest.name), cause=e.cause, hint=e.hint) from e
    return _but_for(found, (*unpacked.not_examined, *_others(len(unpacked.runs) - 1, archive, newest.name)))


def _others(count: int, folder: Path | str, newest: str) -> tuple[NotExamined, ...]:
    left = NotExamined(what=f"{count} other run{'s' if count > 1 else ''} in {folder}", why=f"{ONLY_NEWEST}: {newest}")
    return (left,) if count else ()


def _but_for(found: Verdict, left: tuple[NotExamined, ...]) -> Verdict:
    return redact_data(replace(found, not_examined=(*found.not_examined, *left))) if left else found


def _incident(rundir: RunDir, number: int) -> Verdict:
    incident, found = _chained(rundir, number)
    return rerun_command.with_living_processes(found, incident.ranks)


def _chained(rundir: RunDir, number: int, most: int = _MOST_CHAINED) -> tuple[Incident, Verdict]:
    """An incident with the verdict on it, given at most so many incidents before it in its attempt."""
    seen = incident_view.load(rundir, number, signatures=catalogue.signatures())
    found = verdict.of_picture(seen)
    for before in reversed([n for n in rundir.incident_numbers() if n < number and most > 0]):
        with contextlib.suppress(RunDirError):
            if rundir.read_incident(before).attempt == seen.incident.attempt:
                earlier, drawn = _chained(rundir, before, most - 1)
                found = chain.extended(drawn, found, earlier=earlier, later=seen.incident)
            # An incident that cannot be read hides none before it.
            break
    return seen.incident, found


def _logs(rundir: RunDir, called: str) -> str | None:
    """The logs of the last attempt, where the run directory is `called` so."""
    last = rundir.last_attempt()
    return None if last is None else f"{called}/{rundir.relative(rundir.logs(last))}"


def _unfinished(rundir: RunDir, went: run_history.RunHistory, called: str) -> run_history.Unfinished:
    # Of most runs the end is recorded.
    from unhang.diagnosis import unfinished

    return unfinished.look(rundir, went, called=called, logs=_logs(rundir, called))


def _run(rundir: RunDir) -> tuple[NotExamined, ...]:
    """No verdict rests on run.json; whoever reads it later has to know."""
    try:
        rundir.read(rundir.run, dict)
    except RunDirError as e:
        return (NotExamined(what=rundir.relative(rundir.run), why=str(e).replace(f"{rundir.path}/", "")),)
    return ()


def _drawn_then(rundir: RunDir, number: int, why: str) -> Verdict | None:
    """The verdict that was written down with an incident which can no longer be read; None where there is none."""
    path = rundir.incident_verdict(number)
    try:
        found = rundir.read(path, Verdict)
    except (RunDirError, OSError):
        return None
    left = NotExamined(what=f"incident {number}", why=f"{why}; this is the verdict that was drawn during the run ({rundir.relative(path)})")
    return replace(found.each(_in_our_words), not_examined=(left, *found.not_examined))


def _in_our_words(finding: Finding) -> Finding:
    """Replace remedies by the catalogue's; a recorded verdict may be forged."""
    cause = catalogue.load().get(finding.cause)
    own = {r.id: r for r in cause.remedies} if cause is not None else {}
    return replace(finding, remedies=tuple(own[r.id] for r in finding.remedies if r.id in own))


def _whole(rundir: RunDir, numbers: list[int], called: str) -> Verdict:
    try:
        rundir.check(rundir.events)
        went = run_history.read(rundir.events, source=rundir.relative(rundir.events))
    except OSError as e:
        raise RunDirError(f"cannot read {rundir.events}: {e.strerror or e}") from e
    unfinished = None if went.exitcode is not None else _unfinished(rundir, went, called)
    unreadable = {n: "it was opened, and its incident.json is missing" for n in went.opened if n not in numbers}
    for number in reversed(numbers):
        try:
            found = _incident(rundir, number)
        except RunDirError as e:
            unreadable[number] = str(e).replace(f"{rundir.path}/", "")
            if (then := _drawn_then(rundir, number, unreadable[number])) is None:
                continue
            del unreadable[number]
            found = then
        if found.primary is not None and went.exitcode == EXIT_OK:
            more = (
                _WENT_ON
                if went.restarted
                else msg("; the training went on after that, and the run ended with exit code 0")
                if went.resumed
                else msg("; the command ended with exit code 0 all the same")
            )
            found = replace(found, primary=continued(found.primary, more), recovered=went.recovered)
        if found.primary is not None and went.forced:
            found = replace(found, primary=continued(found.primary, THEN + joined(run_history.asked(replace(went, last_seen=None)))))
        return replace(found, not_examined=(*run_history.not_examined(went, unreadable, unfinished=unfinished, judged=True), *found.not_examined))
    went = replace(went, opened=tuple(sorted({*went.opened, *numbers})))
    read = [p for p in (rundir.run, rundir.events) if p.is_file()]
    return Verdict(
        primary=run_history.unknown(went, damaged=numbers, logs=_logs(rundir, called), unfinished=unfinished)
        or (interrupted.before_its_end(rundir, went) if went.interrupted else None),
        not_examined=run_history.not_examined(went, unreadable, unfinished=unfinished),
        inputs=tuple(Input(source=rundir.relative(p), kind="run", bytes=p.stat().st_size) for p in read),
    )
