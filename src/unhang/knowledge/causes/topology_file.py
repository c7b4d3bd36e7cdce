"""topology-file: a topology or graph file that was given to NCCL does not fit the machine."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Found, LogView
from unhang.knowledge.text import Text, joined, msg, same
from unhang.model import Finding
from unhang.text import WHOSE

CAUSE = cause("topology-file")

_FILES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    given = [s for s in view.nccl.settings if s.partition("=")[0] in _FILES]
    found = CAUSE.of_hits(hits, view, standing="established" if given else None)
    if found is None or not given or any(s.partition("=")[2] in found.says for s in given):
        return found
    # What NCCL read from /etc/nccl.conf or from a container image is not in anybody's command line: name it.
    return CAUSE.of_hits(hits, view, Found("file", what=_bare(found), files=joined(sorted(given), msg(" and ", "topology_file"))))


def _bare(found: Finding) -> Text:
    """The sentence without the ranks that `of_hits` puts in front of it."""
    return same(found.says).edited(WHOSE, "") if found.ranks else same(found.says)
