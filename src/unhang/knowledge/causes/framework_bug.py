"""framework-bug: a known bug of torch or of a framework on top of it, not of the training."""

from __future__ import annotations

import re

from unhang.knowledge import words
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.patterns import lazily

CAUSE = cause("framework-bug")
_ABORTED = CAUSE.signature("aborted")

_SIGSEGV = -11


# What the threads of a Python process are called: by the interpreter, by torch, by NCCL, by what starts them.
_PYTHON = lazily(r"python|pt_|ray|torch|vllm|sglang|deepspeed|accelerate|nccl|cuda", re.IGNORECASE)
_LIBRARY = lazily(r" in (?P<name>[\w.+-]{1,120}?)\[")


def on_host(host: HostView) -> Findings:
    """Python processes that crashed in native code. In a container they are those of the whole host."""
    from unhang.facts import kernel_log

    crashed = [e for e in host.events if e.kind == "segfault" and _PYTHON.match(e.process or "")]
    if not crashed:
        return
    last = crashed[-1]
    count = sum(e.count for e in crashed)
    library = found["name"] if (found := _LIBRARY.search(last.text)) else None
    ours = host.kind in ("bare", "systemd", "slurm")
    yield Found(
        "native-crash",
        severity="warning" if ours and kernel_log.recent(last) else "note",
        library=library,
        last=last,
        count=count,
        more=count > 1,
        each=crashed[-3:],
    )


def in_run(picture: RunView) -> Answer:
    """The stack stands in what the signal handler wrote, which is no log. Over NCCL nobody has seen this."""
    crashed = [r for r in picture.gone if r.ended and r.ended.exitcode == _SIGSEGV and r.fatal is not None and "nccl" not in (r.record.backend or "")]
    crashed = [r for r in crashed if r.frames and r.frames[-1].name == "_ddp_init_helper"]
    if not crashed:
        return None
    numbers = [r.number for r in crashed]
    return Found("at-ddp", ranks=numbers, evidence=words.stack_evidence(picture, crashed[0]), picture=picture)


def in_logs(view: LogView) -> Answer:
    """That a process was aborted without an exception says nothing where something was raised, or a peer was lost: Gloo's threads die of that too."""
    hits = view.hits_of(CAUSE.id)
    raised = any(not t.ignored and t.type.rpartition(".")[2] != "ChildFailedError" for t in view.tracebacks)
    spawned = any("spawn.Process" in h.text for h in view.hits_of("launcher-teardown"))
    if raised or spawned or view.hits_of("peer-lost"):
        hits = tuple(h for h in hits if h.signature != _ABORTED)
    return CAUSE.of_hits(hits, view)
