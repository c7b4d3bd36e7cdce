"""Which ranks are shown: whoever something is wrong with comes first, the rest is folded, and nobody is lost."""

from __future__ import annotations

import pytest
from tests.report.top.pictures import rank, thousand
from tests.tables import for_each

from unhang.report.top.choosing import UNFOLDED, choose, matches


def test_of_a_thousand_those_that_something_is_wrong_with():
    chosen = choose(thousand().ranks)
    assert [r.rank for r in chosen.shown] == [513, 17, 1000]
    assert {state: len(ranks) for state, ranks in chosen.folded.items()} == {"running": 1021}


def test_where_nobody_stands_out_the_slowest_are_shown():
    ranks = [rank(n, step=100 - n) for n in range(UNFOLDED + 1)]
    chosen = choose(ranks)
    assert [r.rank for r in chosen.shown] == list(range(UNFOLDED, UNFOLDED - len(chosen.shown), -1))
    assert len(chosen.shown) + len(chosen.folded["running"]) == len(ranks)


def test_few_are_all_shown_and_so_is_what_is_asked_for():
    few = [rank(n) for n in range(UNFOLDED)]
    assert choose(few).folded == {} and len(choose(few).shown) == UNFOLDED
    assert len(choose(thousand().ranks, everything=True).shown) == 1024
    assert [r.rank for r in choose(thousand().ranks, pattern="8-11").shown] == [8, 9, 10, 11]
    assert choose(thousand().ranks, pattern="no-such").shown == ()


def test_who_is_blamed_comes_first_though_it_has_ended():
    ranks = [rank(0, "failed"), rank(1, "stopped", blamed=True), rank(2, "waiting")]
    assert [r.rank for r in choose(ranks).shown] == [1, 0, 2]


def test_more_than_fit_are_folded_from_the_end():
    chosen = choose([rank(n, "waiting") for n in range(100)], at_most=10)
    assert (len(chosen.shown), len(chosen.folded["waiting"])) == (10, 90)


@pytest.mark.parametrize(
    ("by", "order"), [("interest", [2, 0, 1]), ("rank", [0, 1, 2]), ("step", [1, 2, 0]), ("beat", [1, 0, 2]), ("waiting", [0, 1, 2])]
)
def test_orders(by, order):
    ranks = [rank(0, "waiting", step=9, age_s=3.0, waits_s=5.0), rank(1, step=None, age_s=None), rank(2, "stuck", step=7, age_s=1.0)]
    assert [r.rank for r in choose(ranks, by=by).shown] == order


@for_each(
    ("pattern", "fits"),
    [
        ("", True), ("7", True), ("70", False), ("0-7", True), ("8-9", False), ("waiting", True), ("等待", True), ("node1", True),
        ("train.py:42", True), ("main all_reduce", True), ("main barrier", False), ("NODE1 7", True), ("7-", False), ("cuda", True),
    ],
)  # fmt: skip
def test_filters(pattern, fits):
    assert matches(rank(7, "waiting", call="all_reduce"), pattern) is fits
