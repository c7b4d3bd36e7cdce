"""An arm against the baseline, by paired log ratios: what all rounds together allow to be said.

The interval is a confidence sequence for a mean of unknown variance: it covers the mean at all sample sizes at once, so it may be looked at after
each round. The e-value of a mean is the Bayes factor of the sequential t-test: the right Haar prior on the standard deviation, and a normal prior
on the distance from that mean in standard deviations. Under a normal distribution it is a test martingale, so Ville's inequality holds at any
stopping time (Lai 1976; Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", 2024). Several
prior variances are averaged: an average of e-values is one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal

from unhang.model import frozen

CONFIDENCE = 0.95
MARGIN = 0.01
# With fewer rounds the interval is unbounded or too wide to decide anything.
LEAST_DECIDING = 3

Outcome = Literal["faster", "slower", "same", "undecided"]


@frozen
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


# Differences of a few percent are many standard deviations where a machine is quiet, and below one where it is not.
PRIOR_VARIANCES = (1.0, 10.0, 100.0)


def log_e_value(t: float, n: int) -> float:
    """The log of the evidence against a mean that lies `t` standard errors from that of `n` values."""
    import numpy as np
    from scipy.special import logsumexp

    shrinkage = 1 + n * np.array(PRIOR_VARIANCES)
    u = t * t / (n - 1)
    logs = -np.log(shrinkage) / 2 + n / 2 * (np.log1p(u) - np.log1p(u / shrinkage))
    return float(logsumexp(logs) - math.log(len(PRIOR_VARIANCES)))


@functools.cache
def critical_t(n: int, alpha: float) -> float:
    """How many standard errors the interval reaches on either side; infinite while `n` values can exclude nothing."""
    from scipy.optimize import brentq

    wanted = -math.log(alpha)
    most = 1e8
    if n < 2 or log_e_value(most, n) <= wanted:
        return math.inf
    return float(brentq(lambda t: log_e_value(t, n) - wanted, 0.0, most))


def interval(values: Sequence[float], alpha: float) -> tuple[float, float]:
    """The means that `values` do not exclude: with a probability of 1 - `alpha` the true one is in all of these intervals."""
    import numpy as np

    n = len(values)
    reach = critical_t(n, alpha)
    if math.isinf(reach):
        return -math.inf, math.inf
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(n)
    return mean - reach * error, mean + reach * error
