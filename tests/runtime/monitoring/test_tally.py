"""Who was waited for between two snapshots, whatever was before, and whenever ranks tell."""

import pytest

from unhang.runtime.monitoring.tally import Calls, Intervals, Tally


def told(at_s: float, *inside_s: float | None) -> list[Tally]:
    """Of each rank how long it has been in calls; None of one that has told nothing new since 0 s."""
    return [
        Tally(rank=rank, calls={"world|all_reduce": Calls(count=1, inside_s=s or 0.0)}, told_at_s=0.0 if s is None else at_s)
        for rank, s in enumerate(inside_s)
    ]


def test_a_rank_that_has_recovered_is_no_longer_named():
    intervals = Intervals()
    assert intervals.since(told(0.0, 90.0, 90.0, 0.0), 100.0) == (None, [])
    interval_s, found = intervals.since(told(10.0, 98.0, 90.0, 8.0), 110.0)
    assert interval_s == 10.0 and [(one.group, one.rank, one.waited_s, one.share) for one in found] == [("world", 1, 8.0, 1.0)]
    assert intervals.since(told(20.0, 99.0, 91.0, 9.0), 120.0) == (10.0, [])


def test_who_has_told_nothing_new_is_left_out():
    intervals = Intervals()
    intervals.since(told(0.0, 0.0, 0.0, None), 0.0)
    _, found = intervals.since(told(10.0, 5.0, 4.0, None), 10.0)
    assert [one.rank for one in found] == [1]


def test_who_has_told_of_twice_the_time_has_not_waited_twice_as_long():
    intervals = Intervals()
    intervals.since(told(0.0, 0.0, 0.0), 0.0)
    first, second = told(20.0, 8.0, 4.0)
    second.told_at_s = 10.0
    assert intervals.since([first, second], 10.0) == (10.0, [])


@pytest.mark.parametrize("time_s", [5.0, 4.0])
def test_no_time_is_no_interval(time_s):
    intervals = Intervals()
    intervals.since(told(0.0, 0.0, 0.0), 5.0)
    assert intervals.since(told(1.0, 1.0, 0.0), time_s) == (None, [])
