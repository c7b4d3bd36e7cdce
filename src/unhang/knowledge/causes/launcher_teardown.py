"""launcher-teardown: the launcher saw a child fail and stops the rest."""

from __future__ import annotations

from unhang.knowledge import srun_ranges
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, LogView, RunView

CAUSE = cause("launcher-teardown")


def in_logs(seen: LogView | RunView) -> Answer:
    return CAUSE.of_hits(srun_ranges.shortened(seen.hits_of(CAUSE.id)), seen)


in_run = in_logs
