"""unused-parameters: DDP waits for gradients of parameters that took no part in the loss."""

from __future__ import annotations

from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.judge import Found
from unhang.model import Finding


def _in_logs(view: LogView) -> Finding | None:
    """DDP prints which parameters were left out in a line of its own."""
    hits = view.hits_of(CAUSE.id)
    named = next((h for h in hits if "params" in h.groups), None)
    return CAUSE.of_hits(hits, view, Found("named", rank=named.groups["of"], params=named.groups["params"].strip()) if named else None)


CAUSE = cause("unused-parameters", in_logs=_in_logs)
