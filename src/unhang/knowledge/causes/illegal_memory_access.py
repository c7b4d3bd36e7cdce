"""illegal-memory-access: a CUDA kernel faulted, and whatever touched the GPU next reports it."""

from __future__ import annotations

from dataclasses import replace

from unhang.knowledge import other_libraries
from unhang.knowledge.cause import STANDINGS, cause
from unhang.knowledge.judge import Answer, LogView, RunView
from unhang.knowledge.words import msg, ranks
from unhang.logs import Hit
from unhang.model import Standing

CAUSE = cause("illegal-memory-access")

# A GPU that fails floods the kernel log with faults of its applications, before and after its own Xid: neither lines nor times tell the first.
_BEHIND: dict[Standing, Standing] = {"established": "likely", "likely": "possible"}


def _hits(seen: LogView | RunView) -> list[Hit]:
    """None of the traps by which a library that gave up waiting ended its own kernel."""
    waited = seen.hits_of("collective-timeout")
    return [h for h in seen.hits_of(CAUSE.id) if not other_libraries.trapped(h, waited)]


def in_run(picture: RunView) -> Answer:
    return CAUSE.of_hits(_hits(picture))


def in_logs(view: LogView) -> Answer:
    hits = _hits(view)
    found = CAUSE.of_hits(hits, view)
    if found is not None and not found.ranks and found.where is None:
        # The GPU prints its assertion, and the rank that waited for it raises.
        raised = CAUSE.of_hits([h for h in hits if view.traceback_of(h) is not None], view)
        if raised is not None and raised.ranks:
            says = msg("{who}: {said}", who=ranks(raised.ranks), said=found.says)
            found = replace(found, ranks=raised.ranks, hosts=raised.hosts, where=raised.where, says=says)
    hardware = min((h.signature.standing for h in view.hits_of("gpu-hardware")), key=STANDINGS.index, default=None)
    if found is None or hardware not in _BEHIND:
        return found
    return replace(found, standing=max(found.standing, _BEHIND[hardware], key=STANDINGS.index))
