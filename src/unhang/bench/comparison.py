"""Arms against the first one, by paired log ratios: what each round says, and what all rounds together allow to be said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from unhang.bench.confidence_sequence import interval

CONFIDENCE = 0.95
MARGIN = 0.01

Outcome = Literal["faster", "slower", "same", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An arm against the baseline after `rounds`. `change` is that of the time, 0.05 for 5 % more; `low` and `high` are None where unbounded.

    "faster" and "slower": by more than the margin. "same": by less. "undecided": the interval allows for both.
    """

    arm: str
    baseline: str
    rounds: int
    change: float
    low: float | None
    high: float | None
    outcome: Outcome


def compare(seconds: Mapping[str, Sequence[float]], *, margin: float = MARGIN, confidence: float = CONFIDENCE) -> tuple[Comparison, ...]:
    """`seconds` are those of each arm, one for each complete round, the baseline's first. All intervals hold together with that confidence."""
    (baseline, first), *others = seconds.items()
    # Bonferroni: several arms are compared with one.
    alpha = (1 - confidence) / len(others)
    found = []
    for arm, times in others:
        ratios = [math.log(b / a) for a, b in zip(first, times, strict=True)]
        low, high = interval(ratios, alpha)
        found.append(
            Comparison(
                arm=arm,
                baseline=baseline,
                rounds=len(ratios),
                change=math.expm1(math.fsum(ratios) / len(ratios)),
                low=None if math.isinf(low) else math.expm1(low),
                # With a few scattered values the upper end overflows.
                high=None if high > 700 else math.expm1(high),
                outcome=judge(low, high, math.log1p(margin)),
            )
        )
    return tuple(found)


def judge(low: float, high: float, margin: float) -> Outcome:
    """What an interval of the log ratio says against a margin on the same scale."""
    if -margin <= low and high <= margin:
        return "same"
    if low > margin:
        return "slower"
    return "faster" if high < -margin else "undecided"
