"""Hosts and tasks as srun lists them (`node[1-64,70],login: tasks 0,8,16-511`), no longer than a sentence can hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView
    from unhang.logs import Hit
    from unhang.model import Finding

_MAX_CHARS = 40
_LAUNCHER = lazily(r"ChildFailedError|closing signal SIG|first observed failure|failed \(exitcode|return code =|Killing subprocess")


def shortened(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """The hits, with long lists of hosts and tasks in their groups cut."""
    return tuple(
        replace(h, groups={**h.groups, "host": _short(h.groups["host"]), "tasks": _short(h.groups["tasks"])}) if "tasks" in h.groups else h
        for h in hits
    )


def named(found: Finding | None, hit: Hit, view: LogView) -> Finding | None:
    """The finding with the ranks and hosts that a line of srun tells of. A task is a rank unless it starts ranks of its own."""
    if found is None or "tasks" not in hit.groups:
        return found
    exits = [e for e in view.exits if (e.at.source, e.at.line) == (hit.source, hit.line)]
    ranks = () if _starts_ranks(view) else tuple(sorted({e.at.rank for e in exits if e.at.rank is not None}))
    listed = hit.groups.get("host", "")
    hosts = tuple(dict.fromkeys(listed.split(","))) if listed and "[" not in listed else ()
    return replace(found, ranks=ranks, hosts=hosts)


def _starts_ranks(view: LogView) -> bool:
    """Whether the tasks are launchers (torchrun, accelerate, DeepSpeed on each node), whose numbers are those of nodes."""
    if view.world_size is not None and any(e.at.rank is not None and e.at.rank >= view.world_size for e in view.exits):
        return True
    return any(e.local_rank is not None for e in view.exits) or any(_LAUNCHER.search(h.text) for h in view.hits_of("launcher-teardown"))


def _short(listed: str) -> str:
    return listed if len(listed) <= _MAX_CHARS else f"{listed[:_MAX_CHARS]}…"
