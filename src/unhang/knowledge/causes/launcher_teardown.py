"""launcher-teardown: the launcher saw a child fail and stops the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import srun_ranges
from unhang.knowledge.cause import LogView, cause

if TYPE_CHECKING:
    from unhang.model import Finding
    from unhang.records.incident_view import IncidentView


def _in_run(picture: IncidentView) -> Finding | None:
    return CAUSE.of_hits(srun_ranges.shortened(picture.hits_of(CAUSE.id)))


def _in_logs(view: LogView) -> Finding | None:
    return CAUSE.of_hits(srun_ranges.shortened(view.hits_of(CAUSE.id)), view)


CAUSE = cause("launcher-teardown", in_run=_in_run, in_logs=_in_logs)
