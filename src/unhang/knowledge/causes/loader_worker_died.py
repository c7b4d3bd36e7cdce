"""loader-worker-died: a worker of a data loader, or its thread that pins batches, ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import text
from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Finding

if TYPE_CHECKING:
    from unhang.records.incident_view import IncidentView

# What a rank raises that asks a worker for a tensor in shared memory, and finds nobody.
_GONE = frozenset(("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "FileNotFoundError"))


_ASKED_IN_VAIN = Text(
    "a worker of a data loader was gone when its batch was asked for ({error}): look whether it was killed, and for its memory",
    "向 DataLoader 的一个 worker 取 batch 时，它已经不在了（{error}）：请查看它是否被杀死，以及它用了多少内存",
)
_NOT_PINNED = Text("the thread that pins batches ended, so that no more come: {error}", "把批次放入锁页内存的线程结束了，不会再有批次：{error}")


def _in_run(picture: IncidentView) -> Finding | None:
    return CAUSE.of_raised(picture)


def _in_logs(view: LogView) -> Finding | None:
    return CAUSE.of_hits(view.hits_of(CAUSE.id), view) or _worker_gone(view)


def _worker_gone(view: LogView) -> Finding | None:
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
    first, numbers = gone[0], tuple(sorted({t.rank for t in gone if t.rank is not None}))
    who = Text("{who}: ", "{who}：").fill(who=text.ranks(numbers)) if numbers else NOTHING
    says = _NOT_PINNED if gone is pinning else _ASKED_IN_VAIN
    return CAUSE.finding(
        standing="likely" if gone is pinning or not (others or first.ignored) else "possible",
        says=who + says.fill(error=first.says),
        ranks=numbers,
        hosts=tuple(dict.fromkeys(t.host for t in gone if t.host is not None)),
        evidence=(first.evidence(),),
        remedies=("no-pinning", "no-workers") if gone is pinning else ("no-workers", "watch-shm", "start-method"),
    )


CAUSE = cause("loader-worker-died", in_run=_in_run, in_logs=_in_logs)
