"""Which metrics a data set has, by evaluations before: one that fails, or is not reached, is not-a-number by name, and no gap in a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from unhang.runtime.evaluation.results import OfDataSet

# Names may be as many as evaluations.
_KEPT = 256

# By the ranks that evaluate together, who all know the same, and the data set.
_known: dict[tuple[tuple[int, ...], str], tuple[str, ...]] = {}


def completed(ranks: Sequence[int], found: Mapping[str, OfDataSet]) -> dict[str, OfDataSet]:
    """With the metrics of each data set when it was last complete; of one that never was, those of the others in this evaluation."""
    complete = {name: one for name, one in found.items() if one.complete}
    others = tuple(sorted({metric for one in found.values() for metric in one.metrics}))
    for name, one in complete.items():
        _known.pop((tuple(ranks), name), None)
        _known[tuple(ranks), name] = tuple(one.metrics)
        if len(_known) > _KEPT:
            del _known[next(iter(_known))]
    filled = {}
    for name, one in found.items():
        names = () if one.complete else _known.get((tuple(ranks), name), () if one.metrics else others)
        filled[name] = replace(one, metrics={**dict.fromkeys(names, math.nan), **one.metrics})
    return filled
