"""Two answers of RAS about one job: who has launched something between them, communicator by communicator and rank by rank.

What may surprise: text answers tell counts only of kinds of operations in which ranks differ, and healthy communicators have no name in them, so that
often nothing can be compared. Counts never fall: where one does, it is another communicator. Source: NCCL user guide, troubleshooting/ras ("repeated
queries").
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from unhang.ras.model import Communicator, Member, Report

# "mixed": some ranks have launched something, of others that is not so, or not known.
Pace = Literal["still", "moves", "mixed", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One communicator of the newer answer. `before`: the same one in the older; None where that does not have it by name.

    `still` and `moved`: the ranks of which is known that they have launched nothing, or something. A rank that is in neither is not known.
    """

    communicator: Communicator
    before: Communicator | None = None
    pace: Pace = "unknown"
    still: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()


def compare(first: Report, second: Report) -> tuple[Change, ...]:
    """The communicators of `second`, in its order, against `first`, the older answer. Whether standing still is wrong is for the caller to say."""
    older = _by_key(first)
    newer = _by_key(second)
    json = first.format == second.format == "json"
    return tuple(_change(older.get(_key(c)) if newer.get(_key(c)) is c else None, c, all_kinds=json) for c in second.communicators)


def _key(c: Communicator) -> tuple[str, str]:
    return c.hash, c.secondary


def _by_key(report: Report) -> dict[tuple[str, str], Communicator]:
    """Those that have a name, and one that no other has."""
    named = Counter(_key(c) for c in report.communicators)
    return {_key(c): c for c in report.communicators if c.hash and named[_key(c)] == 1}


def _change(before: Communicator | None, now: Communicator, *, all_kinds: bool) -> Change:
    if before is None or before.size != now.size:
        return Change(communicator=now)
    still: set[int] = set()
    moved: set[int] = set()
    was = {m.rank: m for m in before.members}
    for m in now.members:
        if (old := was.get(m.rank)) is None:
            continue
        steps = _steps(old, m, all_kinds=all_kinds)
        another = None not in (m.host, m.pid, old.host, old.pid) and (m.host, m.pid) != (old.host, old.pid)
        if another or any(s < 0 for s in steps):
            return Change(communicator=now)
        if steps:
            (moved if any(steps) else still).add(m.rank)
    if any(g.ranks_count > len(g.ranks) for c in (before, now) for g in c.launched):
        pace = _pace_of_groups(before, now)
    elif moved:
        pace = "moves" if len(moved) == len(now.members) else "mixed"
    else:
        pace = "still" if still else "unknown"
    return Change(communicator=now, before=before, pace=pace, still=frozenset(still), moved=frozenset(moved))


def _steps(old: Member, now: Member, *, all_kinds: bool) -> list[int]:
    """How many operations of each kind were launched in between; [] where the two do not tell of the same."""
    if not old.counts or not now.counts:
        return []
    kinds = old.counts.keys() | now.counts.keys() if all_kinds else old.counts.keys() & now.counts.keys()
    return [now.counts.get(op, 0) - old.counts.get(op, 0) for op in kinds]


def _pace_of_groups(before: Communicator, now: Communicator) -> Pace:
    """Where ranks are only counted. Counts never fall, so equal groups are the same ranks at rest."""
    was, has = _groups(before), _groups(now)
    kinds = was.keys() & has.keys()
    if not kinds:
        return "unknown"
    if all(was[op] == has[op] for op in kinds):
        return "still"
    return "moves" if any(min(has[op]) > max(was[op]) for op in kinds) else "mixed"


def _groups(c: Communicator) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for g in c.launched:
        found.setdefault(g.op, {})[g.count] = g.ranks_count
    return found
