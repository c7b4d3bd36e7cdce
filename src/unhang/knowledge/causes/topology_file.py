"""topology-file: a topology or graph file that was given to NCCL does not fit the machine."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, LogView

CAUSE = cause("topology-file")

_FILES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    given = [s for s in view.nccl.settings if s.partition("=")[0] in _FILES]
    return CAUSE.of_hits(hits, view, standing="established" if given else None)
