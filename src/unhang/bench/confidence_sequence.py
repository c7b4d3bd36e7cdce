"""A confidence sequence for a mean of unknown variance: it covers the mean at all sample sizes at once, so it may be looked at after each value.

The e-value of a mean is the Bayes factor of the sequential t-test: the right Haar prior on the standard deviation, and a normal prior on the
distance from that mean in standard deviations. Under a normal distribution it is a test martingale, so Ville's inequality holds at any stopping
time (Lai 1976; Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", 2024).
Several prior variances are averaged: an average of e-values is one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

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
