"""unused-parameters: DDP waits for gradients of parameters that took no part in the loss."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Found, LogView

CAUSE = cause("unused-parameters")


def in_logs(view: LogView) -> Answer:
    """DDP prints which parameters were left out in a line of its own."""
    hits = view.hits_of(CAUSE.id)
    named = next((h for h in hits if "params" in h.groups), None)
    return CAUSE.of_hits(hits, view, Found("named", rank=named.groups["of"], params=named.groups["params"].strip()) if named else None)
