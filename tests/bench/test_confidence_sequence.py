"""The confidence sequence against two other ways to the same number, and what it promises under repeated looks."""

import math

import numpy as np
import pytest

from unhang.bench import comparison as cs


@pytest.mark.parametrize(("t", "n"), [(0.0, 3), (2.5, 4), (6.0, 10), (3.0, 40)])
def test_the_e_value_is_the_bayes_factor_of_the_t_statistic(t, n):
    from scipy import integrate, stats

    def ratio(variance):
        def density(delta):
            return stats.nct.pdf(t, n - 1, delta * math.sqrt(n)) * stats.norm.pdf(delta, scale=math.sqrt(variance))

        at = t / math.sqrt(n)
        points = [at - 1, at, at + 1]
        return integrate.quad(density, -60, 60, points=points, limit=500)[0] / stats.t.pdf(t, n - 1)

    expected = math.log(np.mean([ratio(variance) for variance in cs.PRIOR_VARIANCES]))
    assert cs.log_e_value(t, n) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("mean", [0.0, 0.02, 0.06])
def test_with_many_values_it_is_the_mixture_of_known_variance(mean):
    import ville

    values = np.random.default_rng(3).normal(size=20_000)
    values = (values - values.mean()) / values.std(ddof=1) + mean
    logs = [ville.MSPRT(theta0=0.0, sigma=1.0, tau=math.sqrt(g)).fit(values).log_e_values_[-1] for g in cs.PRIOR_VARIANCES]
    expected = np.logaddexp.reduce(logs) - math.log(len(logs))
    assert cs.log_e_value(mean * math.sqrt(values.size), values.size) == pytest.approx(expected, abs=0.1 + mean)


def test_nothing_is_excluded_by_two_values_and_the_interval_narrows():
    from scipy import stats

    assert cs.interval([0.01, 0.011], 0.05) == (-math.inf, math.inf)
    assert cs.interval([0.01] * 3, 0.05) == (pytest.approx(0.01), pytest.approx(0.01))
    reach = [cs.critical_t(n, 0.05) for n in range(3, 60)]
    assert reach == sorted(reach, reverse=True) and reach[-1] > stats.t.ppf(0.975, 58)
    # At the edge the evidence is what excludes.
    low, high = cs.interval([0.0, 0.2, 0.1, 0.3], 0.05)
    error = np.std([0.0, 0.2, 0.1, 0.3], ddof=1) / 2
    assert cs.log_e_value((high - 0.15) / error, 4) == pytest.approx(math.log(20)) and high - 0.15 == pytest.approx(0.15 - low)


def test_it_covers_the_mean_at_all_looks_at_once():
    looks = np.arange(3, 61)
    reach = np.array([cs.critical_t(int(n), 0.05) for n in looks])
    values = np.random.default_rng(7).normal(0.3, 1.0, (1000, 60))
    mean = np.cumsum(values, axis=1)[:, 2:] / looks
    sd = np.array([values[:, :n].std(axis=1, ddof=1) for n in looks]).T
    missed = (np.abs(mean - 0.3) > reach * sd / np.sqrt(looks)).any(axis=1)
    assert missed.sum() <= 50
