"""store-disconnect: the key-value store that the ranks meet at is gone, or did not answer in time."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.knowledge.caught_exceptions import that_ended_something
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, LogView
from unhang.logs import Hit
from unhang.patterns import lazily

CAUSE = cause("store-disconnect")
NOT_ALL_CAME = CAUSE.signature("not-all-came")

_TIMED_OUT = r"Socket Timeout|[Ww]ait timeout after|[Tt]imed out waiting"
_WAITED = lazily(rf"{_TIMED_OUT}|waitForInput: |clients joined|[Tt]imed out initializing process group")
# Threads print it whose process leaves in order, but after the one with the store.
AT_THE_END = lazily(r"(?:recvValue\w*|sendBytes) failed|\"should dump\" flag")


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    if view.finished and all(AT_THE_END.search(h.text) for h in hits):
        failed = view.timeouts or any(e.code != 0 for e in view.exits) or that_ended_something(view.tracebacks, view)
        if not failed and view.hits.keys() <= {CAUSE.id}:
            return None
    return CAUSE.of_hits(hits, view)


def is_wait(hits: Sequence[Hit]) -> bool:
    """Whether all that is said of the store is that a rank waited in vain for what another one writes: the store itself is there."""
    return bool(hits) and all(_WAITED.search(h.text) for h in hits)
