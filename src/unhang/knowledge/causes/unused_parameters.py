"""unused-parameters: DDP waits for gradients of parameters that took no part in the loss."""

from __future__ import annotations

from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.text import Text
from unhang.model import Finding

_LEFT_OUT = Text("parameters took no part in the loss of rank {rank}: {params}", "有参数没有参与 rank {rank} 的 loss：{params}")


def _in_logs(view: LogView) -> Finding | None:
    """DDP prints which parameters were left out in a line of its own."""
    hits = view.hits_of(CAUSE.id)
    named = next((h for h in hits if "params" in h.groups), None)
    says = None if named is None else _LEFT_OUT.fill(rank=named.groups["of"], params=named.groups["params"].strip())
    return CAUSE.of_hits(hits, view, says=says)


CAUSE = cause("unused-parameters", in_logs=_in_logs)
