"""Offsets between clocks, from events that all hosts see at one moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unhang.diagnosis.clocks import Scale, Shared, corrected, offsets, scale_of


def event(key, clock, at_s):
    return Shared(key=(key,), clock=clock, at_s=at_s)


def test_one_clock_is_ahead():
    found = offsets([event(1, "a", 100.0), event(1, "b", 400.0), event(2, "a", 200.0), event(2, "b", 501.0)])
    assert found == {"a": 0.0, "b": 300.5}
    assert corrected(700.0, "b", found) == 399.5 and corrected(700.0, "c", found) == 700.0 and corrected(None, "b", found) is None


def test_what_no_two_hosts_saw_tells_nothing():
    assert offsets([event(1, "a", 1.0), event(2, "b", 900.0)]) == {}
    assert offsets([]) == {}


def test_events_that_scatter_give_no_offset():
    assert offsets([event(1, "a", 0.0), event(1, "b", 10.0), event(2, "a", 0.0), event(2, "b", 90.0)]) == {"a": 0.0}


@given(ahead=st.floats(-1e6, 1e6), times=st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_any_constant_offset_is_found(ahead, times):
    events = [event(i, clock, t + shift) for i, t in enumerate(times) for clock, shift in (("a", 0.0), ("b", ahead))]
    assert abs(offsets(events)["b"] - ahead) < 1e-3


@pytest.mark.parametrize(
    ("zones", "expected"),
    [
        ([], Scale()),
        ([("a", None), ("b", None)], Scale()),
        ([("a", 0), ("b", 0), ("b", 0)], Scale()),
        ([("a", 0), ("b", 28800)], Scale(utc=True)),
        # A zone that only some lines of a log have says nothing of the others.
        ([("a", 0), ("b", 28800), ("b", None)], Scale(apart=frozenset({"b"}))),
        ([("a", 0), ("a", None)], Scale()),
        ([("a", 0), ("b", 3600), ("c", None)], Scale(utc=True, apart=frozenset({"c"}))),
    ],
)
def test_zones(zones, expected):
    assert scale_of(zones) == expected


def test_times_on_a_scale():
    scale = Scale(utc=True, apart=frozenset({"c"}))
    assert [scale.seconds(*t) for t in (("a", 9000.0, 3600), ("a", None, 0), ("c", 9000.0, None))] == [5400.0, None, None]
    assert Scale().seconds("a", 9000.0, 3600) == 9000.0
