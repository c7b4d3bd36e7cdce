"""An arm against the baseline, by paired log ratios: what all rounds together allow to be said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from unhang.bench.confidence_sequence import interval

CONFIDENCE = 0.95
MARGIN = 0.01
# With fewer rounds the interval is unbounded or too wide to decide anything.
LEAST_DECIDING = 3

Outcome = Literal["faster", "slower", "same", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An arm against the baseline after `rounds`. `change` is that of the time, 0.05 for 5 % more; `low` and `high` are each None if unbounded.

    "faster" and "slower": by more than the margin. "same": by less. "undecided": the interval allows for both.
    """

    arm: str
    baseline: str
    rounds: int
    change: float
    low: float | None
    high: float | None
    outcome: Outcome

    @property
    def is_useful(self) -> bool:
        """Whether the interval says something: it decides, or is no wider than ±50 %."""
        return self.outcome != "undecided" or (self.low is not None and self.high is not None and self.high - self.low <= 1)


def compare(first: Sequence[float], times: Sequence[float], *, arm: str, baseline: str, alpha: float, margin: float = MARGIN) -> Comparison:
    """The times of an arm against `first`, those of the baseline, in seconds, round by round; rounds that the arm was not in are left out.

    The interval holds with a probability of 1 - `alpha`, at all rounds at once; for intervals of several arms that hold together, divide it.
    """
    ratios = [math.log(b / a) for a, b in zip(first, times, strict=False)]
    low, high = interval(ratios, alpha)
    return Comparison(
        arm=arm,
        baseline=baseline,
        rounds=len(ratios),
        change=math.expm1(math.fsum(ratios) / len(ratios)),
        # A few scattered values reach beyond what a float can tell from -1, or can hold.
        low=None if low < -36 else math.expm1(low),
        high=None if high > 700 else math.expm1(max(high, -36)),
        outcome=judge(low, high, math.log1p(margin)),
    )


def judge(low: float, high: float, margin: float) -> Outcome:
    """What an interval of the log ratio says against a margin on the same scale."""
    if -margin <= low and high <= margin:
        return "same"
    if low > margin:
        return "slower"
    return "faster" if high < -margin else "undecided"
