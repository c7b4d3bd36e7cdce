"""How the calls of a rank that went astray become those of the others: another call in one place, two swapped, some too many, some lacking.

Trainings repeat themselves, and a shift by a whole step explains anything: the smallest change is asked for first, and it has to hold for several
calls.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Literal

from unhang.records.flight.columns import Track

Change = Literal["content", "order", "extra", "lacking"]

_MOST = 3
_ENOUGH = 3
_LOOK = 64


@dataclass(frozen=True, kw_only=True)
class Edit:
    """`count` calls too many or lacking, from the number on at which the ranks parted."""

    change: Change
    count: int = 1


def edit(odd: Track, usual: Track, number: int) -> Edit | None:
    """None where too few calls follow, or two explanations cost the same."""
    theirs, ours = (t.ids[number - t.first : number - t.first + _LOOK] for t in (odd, usual))
    if len(theirs) >= 2 and len(ours) >= 2 and (theirs[0], theirs[1]) == (ours[1], ours[0]) and _fits(theirs[2:], ours[2:], 0):
        return Edit(change="order")
    if _fits(theirs[1:], ours[1:], _ENOUGH):
        return Edit(change="content")
    for count in range(1, _MOST + 1):
        extra, lacking = _fits(theirs[count:], ours, _ENOUGH), _fits(theirs, ours[count:], _ENOUGH)
        if extra or lacking:
            if extra and lacking:
                return None
            return Edit(change="extra" if extra else "lacking", count=count)
    return None


def _fits(one: array[int], other: array[int], enough: int) -> bool:
    common = min(len(one), len(other))
    return common >= enough and one[:common] == other[:common]
