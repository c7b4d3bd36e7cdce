"""All entries by name, and the real name that is nearest to one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache

from unhang.knowledge.variables.variable import Variable

# Edits that a slip of the finger takes: two letters swapped count as one.
_SLIPS = 2
_LIKE = 0.84


@cache
def entries() -> Mapping[str, Variable]:
    from unhang.knowledge.variables import of_launchers, of_nccl, of_torch

    return {v.name: v for v in (*of_nccl.VARIABLES, *of_torch.VARIABLES, *of_launchers.VARIABLES, *of_launchers.NOBODY)}


def nearest(name: str) -> str | None:
    """The real name that was probably meant; None where none is near."""
    from unhang.knowledge.variables.readers import table

    real = sorted({n for n, v in entries().items() if v.owner != "nobody" and not v.removed} | table().names())
    near = [(d, n) for n in real if n != name and (d := _slips(name, n)) <= _SLIPS]
    if near:
        return min(near)[1]
    return next(iter(difflib.get_close_matches(name, [n for n in real if n != name], 1, _LIKE)), None)


def misspelt(name: str) -> str | None:
    """The known name that a name outside the known families is a slip away from: `NCLL_DEBUG`. Only where begin or end are equal, to be quick."""
    if name in entries() or "_" not in name or len(name) < 8:
        return None
    alike = (n for n in entries() if n[:5] == name[:5] or n[-5:] == name[-5:])
    near = [(d, n) for n in alike if (d := _slips(name, n)) <= _SLIPS]
    return min(near)[1] if near else None


def _slips(a: str, b: str) -> int:
    """The optimal string alignment distance, or something above _SLIPS."""
    if abs(len(a) - len(b)) > _SLIPS:
        return _SLIPS + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, last, row = row, before, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > _SLIPS:
            return _SLIPS + 1
    return row[-1]
