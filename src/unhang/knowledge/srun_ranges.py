"""Hosts and tasks as srun lists them (`node[1-64,70],login: tasks 0,8,16-511`), no longer than a sentence can hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView
    from unhang.logs import Hit
    from unhang.model import Finding

_MAX_CHARS = 40
_LAUNCHER = lazily(r"ChildFailedError|closing signal SIG|first observed failure|failed \(exitcode|return code =|Killing subprocess")
_SHOWN = 2
# Cray's names have several brackets: `x1000c[0-7]s[0-3]b0n[0-1]`.
_NAME = lazily(r"((?:[^,\[\]]|\[[^\[\]]*\])*)(?:,|\Z)")
_GROUP = lazily(r"\[([^\[\]]*)\]")
_RANGE = lazily(r"(\d{1,9})-(\d{1,9})")


def shortened(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """The hits, with long lists of hosts and tasks in their groups cut: "node1, node2 and 62 more"."""
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
    listed = _names(hit.groups["host"]) or [] if "host" in hit.groups else []
    hosts = tuple(dict.fromkeys(name for name in listed if "[" not in name))
    return replace(found, ranks=ranks, hosts=hosts if len(hosts) == len(listed) else ())


def _starts_ranks(view: LogView) -> bool:
    """Whether the tasks are launchers (torchrun, accelerate, DeepSpeed on each node), whose numbers are those of nodes."""
    if view.world_size is not None and any(e.at.rank is not None and e.at.rank >= view.world_size for e in view.exits):
        return True
    return any(e.local_rank is not None for e in view.exits) or any(_LAUNCHER.search(h.text) for h in view.hits_of("launcher-teardown"))


def _short(listed: str) -> str:
    if len(listed) <= _MAX_CHARS:
        return listed
    names = _names(listed)
    if names is None:
        return _cut(listed)
    units = [unit for name in names for unit in _units(name)]
    shown = ", ".join(_cut(name) for name, _ in units[:_SHOWN])
    rest = sum(count for _, count in units[_SHOWN:])
    return f"{shown} and {rest} more" if rest else shown


def _cut(name: str) -> str:
    return name if len(name) <= _MAX_CHARS else f"{name[:_MAX_CHARS]}…"


def _names(listed: str) -> list[str] | None:
    """The list at its commas outside brackets; None for what is no list."""
    names, at = [], 0
    while at < len(listed):
        found = _NAME.match(listed, at)
        if found is None:
            return None
        names += [found[1]] if found[1] else []
        at = found.end()
    return names


def _units(name: str) -> Iterator[tuple[str, int]]:
    """A name, or what its one bracket lists, each with how many it stands for."""
    groups = _GROUP.findall(name)
    if len(groups) == 1:
        before, _, after = name.partition(f"[{groups[0]}]")
        for part in groups[0].split(","):
            yield f"{before}{f'[{part}]' if _RANGE.fullmatch(part) else part}{after}", _count(part)
    else:
        yield name, prod(sum(map(_count, g.split(","))) for g in groups) if groups else _count(name)


def _count(part: str) -> int:
    found = _RANGE.fullmatch(part)
    return 1 if found is None else max(1, int(found[2]) - int(found[1]) + 1)
