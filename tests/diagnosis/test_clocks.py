"""Offsets between clocks, from events that all hosts see at one moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unhang.diagnosis.clocks import Shared, corrected, offsets


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
