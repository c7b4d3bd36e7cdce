"""Why did it fail? A pure function of a run directory.

The live supervisor and `unhang why`, on any machine and at any time, reach the same verdict. Credentials are taken out here: whoever shows or
writes a verdict has nothing to remember.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unhang.diagnosis import course, verdict
from unhang.diagnosis.redact import redact_verdict
from unhang.errors import RunDirError
from unhang.knowledge import catalogue
from unhang.model import Input, NotExamined, Verdict
from unhang.records import picture
from unhang.records.rundir import RunDir


def judge(rundir: RunDir, *, number: int | None = None) -> Verdict:
    """The verdict on incident `number`, by default on the last that can be read, else on how the run ended. Raises RunDirError."""
    numbers = rundir.incident_numbers()
    if number is not None and number not in numbers:
        known = ", ".join(map(str, numbers)) or "none"
        raise RunDirError(f"{rundir.path} has no incident {number}; it has: {known}")
    return redact_verdict(_whole(rundir, numbers) if number is None else _incident(rundir, number))


def judge_newest(runs: Sequence[Path], folder: Path, *, number: int | None = None) -> Verdict:
    """The verdict on the last of `runs_in(folder)`; that the others were not judged is said."""
    found, others = judge(RunDir.open(runs[-1]), number=number), len(runs) - 1
    if not others:
        return found
    left = NotExamined(what=f"{others} other run{'s' if others > 1 else ''} in {folder}", why=f"only the newest was judged: {runs[-1]}")
    return redact_verdict(replace(found, not_examined=(*found.not_examined, left)))


def _incident(rundir: RunDir, number: int) -> Verdict:
    return verdict.of_picture(picture.load(rundir, number, signatures=catalogue.signatures()))


def _whole(rundir: RunDir, numbers: list[int]) -> Verdict:
    try:
        went = course.read(rundir.events, source=rundir.relative(rundir.events))
    except OSError as e:
        raise RunDirError(f"cannot read {rundir.events}: {e.strerror or e}") from e
    unreadable = {n: "it was opened, and its incident.json is missing" for n in went.opened if n not in numbers}
    for number in reversed(numbers):
        try:
            found = _incident(rundir, number)
        except RunDirError as e:
            unreadable[number] = str(e).replace(f"{rundir.path}/", "")
            continue
        return replace(found, not_examined=(*course.not_examined(went, unreadable), *found.not_examined))
    went = replace(went, opened=tuple(sorted({*went.opened, *numbers})))
    read = [p for p in (rundir.run, rundir.events) if p.is_file()]
    return Verdict(
        primary=course.unknown(went),
        not_examined=course.not_examined(went, unreadable),
        inputs=tuple(Input(source=rundir.relative(p), kind="run", bytes=p.stat().st_size) for p in read),
    )
