"""Why did it fail? A pure function of a run directory.

The live supervisor and `unhang why`, on any machine and at any time, reach the same verdict.
"""

from __future__ import annotations

from unhang.diagnosis import verdict
from unhang.errors import RunDirError
from unhang.knowledge import catalogue
from unhang.model import Input, Verdict
from unhang.records import picture
from unhang.records.rundir import RunDir


def judge(rundir: RunDir, *, number: int | None = None) -> Verdict:
    """The verdict on incident `number`, by default the last one; nothing is wrong where there was none. Raises RunDirError."""
    numbers = rundir.incident_numbers()
    if number is None and not numbers:
        return Verdict(primary=None, inputs=(Input(source=rundir.relative(rundir.run), kind="run", bytes=rundir.run.stat().st_size),))
    chosen = numbers[-1] if number is None else number
    if chosen not in numbers:
        known = ", ".join(map(str, numbers)) or "none"
        raise RunDirError(f"{rundir.path} has no incident {chosen}; it has: {known}")
    return verdict.of_picture(picture.load(rundir, chosen, signatures=catalogue.signatures()))
