"""ssh-launcher: a launcher that starts ranks by ssh does not get to a host, or arrives without its environment."""

from __future__ import annotations

from unhang.knowledge.cause import cause, command
from unhang.knowledge.judge import Answer, LogView
from unhang.patterns import lazily

CAUSE = cause("ssh-launcher")
_NOT_FOUND_THERE = CAUSE.signature("not-found-there")


def in_logs(view: LogView) -> Answer:
    hits = tuple(h for h in view.hits_of(CAUSE.id) if h.signature != _NOT_FOUND_THERE or h.host is not None or _BY_SSH.search(h.text))
    host = next((h.groups["peer"] for h in hits if "peer" in h.groups), None)
    prove = command("ssh-copy-id {host:login} && ssh -o BatchMode=yes {host:login} hostname", host=host)
    return CAUSE.of_hits(hits, view, commands={"passwordless": prove} if host else None)


_BY_SSH = lazily(r"\b(?:ssh|pdsh|srun|mpirun)\b|^(?:\[[\w,<>]+\]:)?[\w.-]+: bash: line ")
