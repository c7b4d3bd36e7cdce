"""Percentiles of what many ranks measured, from counts in buckets of equal ratio: they add up, and are within 5 % of the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping

Buckets = dict[int, int]
_PER_DOUBLING = 8


def add(buckets: Buckets, value: float) -> None:
    """`value` is above zero."""
    index = math.floor(math.log2(value) * _PER_DOUBLING)
    buckets[index] = buckets.get(index, 0) + 1


def merge(into: Buckets, more: Mapping[int, int]) -> None:
    for index, count in more.items():
        into[index] = into.get(index, 0) + count


def since(now: Mapping[int, int], before: Mapping[int, int]) -> Buckets:
    """What has been added to `before`."""
    return {index: more for index, count in now.items() if (more := count - before.get(index, 0)) > 0}


def coarse(buckets: Mapping[int, int]) -> dict[float, int]:
    """How many are below each bound (and not below a fourth of it); bounds are powers of four, so that they are the same for all."""
    found: dict[float, int] = {}
    for index, count in sorted(buckets.items()):
        below = 4.0 ** (index // (2 * _PER_DOUBLING) + 1)
        found[below] = found.get(below, 0) + count
    return found


def total(buckets: Mapping[int, int]) -> float:
    """The sum of all values, within 5 %."""
    return float(sum(count * 2 ** ((index + 0.5) / _PER_DOUBLING) for index, count in buckets.items()))


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """The middle of the bucket below whose end a `share` of all values lies; None where there are none."""
    left = share * sum(buckets.values())
    for index in sorted(buckets):
        left -= buckets[index]
        if left <= 0:
            return float(2 ** ((index + 0.5) / _PER_DOUBLING))
    return None
