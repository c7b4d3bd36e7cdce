"""loader-worker-died: a worker of a data loader, or its thread that pins batches, ended."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Found, LogView, RunView

CAUSE = cause("loader-worker-died")

# What a rank raises that asks a worker for a tensor in shared memory, and finds nobody.
_GONE = frozenset(("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "FileNotFoundError"))


def in_run(picture: RunView) -> Answer:
    return CAUSE.of_raised(picture)


def in_logs(view: LogView) -> Answer:
    return CAUSE.of_hits(view.hits_of(CAUSE.id), view) or _worker_gone(view)


def _worker_gone(view: LogView) -> Found | None:
    """A worker that was killed leaves no word, and its tensors are asked for in vain. Workers of a rank that is ended go the same way.

    What the thread that pins batches raises ends nobody else: its rank waits for the next batch.
    """
    known = {(h.source, h.line) for hits in view.hits.values() for h in hits if h.signature.role == "root"}
    own = [t for t in view.tracebacks if t.ignored and not t.steps and (t.source, t.end) not in known]
    pinning = [t for t in own if any(f.name == "_pin_memory_loop" for f in t.frames)]
    gone = [t for t in view.tracebacks if t.type.rpartition(".")[2] in _GONE and any(f.name == "rebuild_storage_fd" for f in t.frames)] or pinning
    if not gone:
        return None
    others = any(t not in gone for t in view.tracebacks) or view.timeouts or any(e.code in (-9, -15, 137, 143) for e in view.exits)
    first = gone[0]
    return Found(
        "not-pinned" if gone is pinning else "gone",
        ranks=gone,
        standing="likely" if gone is pinning or not (others or first.ignored) else "possible",
        evidence=(first,),
        hosts=gone,
        first=first,
    )
