"""Why did it fail? A pure function of a run directory.

The live supervisor and `unhang why`, on any machine and at any time, reach the same verdict.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import msgspec

from unhang.diagnosis import course, verdict
from unhang.errors import RunDirError
from unhang.knowledge import catalogue
from unhang.model import Input, Verdict
from unhang.records import picture
from unhang.records.rundir import RunDir


def judge(rundir: RunDir, *, number: int | None = None) -> Verdict:
    """The verdict on incident `number`, by default on the last that can be read, else on how the run ended. Raises RunDirError."""
    numbers = rundir.incident_numbers()
    if number is None:
        return _whole(rundir, numbers)
    if number not in numbers:
        known = ", ".join(map(str, numbers)) or "none"
        raise RunDirError(f"{rundir.path} has no incident {number}; it has: {known}")
    return _incident(rundir, number)


def runs_in(folder: Path) -> list[Path]:
    """The run directories below a folder (`runs`, or the project that holds it), the oldest first."""
    found = [p.parent for pattern in ("*/run.json", "*/*/run.json") for p in folder.glob(pattern) if RunDir.is_one(p.parent)]
    return sorted(found, key=lambda p: (_started(p / "run.json"), p.name))


def _started(path: Path) -> float:
    try:
        told = msgspec.json.decode(path.read_bytes(), type=_Run).started
        if told:
            return datetime.datetime.fromisoformat(told).timestamp()
    except (OSError, ValueError, msgspec.MsgspecError):
        pass
    return path.stat().st_mtime


class _Run(msgspec.Struct):
    started: str = ""


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
