"""Rank 0 alone in a collective: possible, and never more, for no log holds the test of the rank."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue


def judge(view):
    return catalogue.get("rank0-guarded-collective").in_logs(view)


def test_rank_0_alone_of_many(logs):
    found = judge(logs.view(timeouts=(logs.timeout(0, 40, "ALLREDUCE", 1),), printed=frozenset(range(4)), world_size=4))
    assert (found.standing, found.ranks) == ("possible", (0,)) and "ranks 1 to 3 printed no timeout" in found.says


def test_rank_0_in_another_collective_than_all_others(logs):
    found = judge(logs.view(timeouts=(logs.timeout(0, 40, "BARRIER", None), *(logs.timeout(r, 40) for r in (1, 2, 3)))))
    assert found.standing == "possible" and "rank 0 alone gave up BARRIER #40" in found.says


@pytest.mark.parametrize("alone", [1, 3])
def test_another_rank_alone_is_no_guard(logs, alone):
    assert judge(logs.view(timeouts=(logs.timeout(alone, 40),), world_size=4)) is None


def test_of_two_ranks_the_other_may_be_slow(logs):
    assert judge(logs.view(timeouts=(logs.timeout(0, 40),), world_size=2)) is None
    assert judge(logs.view()) is None
