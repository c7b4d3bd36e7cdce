"""Verdicts against a margin, also under repeated looks."""

import math

import pytest
from benchmarks.verdicts import KINDS, verdicts

from unhang.bench.arms import order
from unhang.bench.comparison import compare, judge


@pytest.mark.parametrize("kind", KINDS)
def test_equal_arms_are_never_told_apart_more_often_than_promised(kind):
    shares, _ = verdicts(kind, 0.0, 1000)
    assert shares.get("same", 0) + shares.get("undecided", 0) >= 0.95
    assert shares.get("same", 0) > (0.9 if kind != "outliers" else 0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_difference_of_five_percent_is_found(kind):
    shares, rounds = verdicts(kind, 0.05, 1000)
    assert shares.get("slower", 0) > (0.99 if kind != "outliers" else 0.8) and rounds <= 5
    assert shares.get("same", 0) + shares.get("faster", 0) <= 0.05


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (-0.009, 0.009, "same"),
        (0.001, 0.009, "same"),
        (0.011, 0.03, "slower"),
        (-0.03, -0.011, "faster"),
        (0.001, 0.03, "undecided"),
        (-math.inf, math.inf, "undecided"),
    ],
)
def test_a_verdict_is_about_the_margin(low, high, outcome):
    assert judge(low, high, 0.01) == outcome


def compared(first, times, alpha=0.05):
    return compare(first, times, arm="b", baseline="a", alpha=alpha)


def test_rounds_are_paired_and_several_arms_share_the_confidence():
    # The machine becomes twice as slow: the pairs do not notice.
    a = [1.0 + 0.1 * i for i in range(10)]
    b = [t * (1.05 + 0.001 * (-1) ** i) for i, t in enumerate(a)]
    alone, shared = compared(a, b), compared(a, b, 0.025)
    assert (alone.outcome, alone.rounds, alone.baseline) == ("slower", 10, "a") and alone.change == pytest.approx(0.05, abs=1e-3)
    assert shared.outcome == "slower" and shared.low < alone.low and shared.high > alone.high and compared(a, a).outcome == "same"
    faster = compared(b, a)
    assert faster.outcome == "faster" and faster.change == pytest.approx(-0.05 / 1.05, abs=1e-3)
    # Of the rounds that the arm was in.
    assert compared(a, b[:4]).rounds == 4


@pytest.mark.parametrize(
    ("a", "b", "is_low", "is_high"),
    [
        ([1.0, 1.0], [2.0, 2.01], False, False),
        # Beyond all numbers, on either side.
        ([1.0, 1e100, 1.0], [1e100, 1.0, 1.0], False, False),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1e-5], False, True),
    ],
)
def test_what_an_interval_does_not_bound_is_none(a, b, is_low, is_high):
    found = compared(a, b)
    assert (found.low is not None, found.high is not None, found.outcome) == (is_low, is_high, "undecided")


def test_an_order_is_another_in_each_round_and_comes_again_with_its_seed():
    orders = [order("abc", seed=1, round=n) for n in range(50)]
    assert orders == [order("abc", seed=1, round=n) for n in range(50)] != [order("abc", seed=2, round=n) for n in range(50)]
    assert all(sorted(one) == ["a", "b", "c"] for one in orders) and len({tuple(one) for one in orders}) == 6
