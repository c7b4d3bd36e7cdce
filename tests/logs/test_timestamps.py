"""Times of logs: zones, resolutions, years that nobody printed."""

from __future__ import annotations

from calendar import timegm

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import for_each

from unhang.logs import Stamp, parse, resolve


def seconds(year, month, day, hour=0, minute=0, second=0):
    return timegm((year, month, day, hour, minute, second, 0, 0, 0))


def syslog(text):
    stamp = parse(f"{text} node7 kernel: x").time
    assert stamp is not None
    assert not stamp.has_year
    return stamp


def full(text):
    return parse(f"[{text}] x").time


@for_each(
    ("raw", "stamp"),
    [
        ("2026-11-03T10:00:01Z x", Stamp(seconds=seconds(2026, 11, 3, 10, 0, 1), offset_s=0)),
        ("2026-11-03T10:00:01.5+08:00 x", Stamp(seconds=seconds(2026, 11, 3, 10, 0, 1) + 0.5, offset_s=28_800)),
        ("2026-11-03 10:00:01 -0330 x", Stamp(seconds=seconds(2026, 11, 3, 10, 0, 1), offset_s=-12_600)),
        ("[2026-11-03 10:00:01,123] x", Stamp(seconds=seconds(2026, 11, 3, 10, 0, 1) + 0.123)),
        ("[1700000000.25] x", Stamp(seconds=1_700_000_000.25, offset_s=0)),
        ("[88123.41] x", Stamp(seconds=88_123.41, has_year=False, clock="boot")),
        ("[2026-02-30 10:00:01] x", None),
        ("[4294967295.50] x", Stamp(seconds=4_294_967_295.5, offset_s=0)),
        ("[999999999.50] x", Stamp(seconds=999_999_999.5, has_year=False, clock="boot")),
        ("[999999999999.00] x", None),
        ("[2028-02-29 23:59:60] x", Stamp(seconds=seconds(2028, 3, 1))),
    ],
)
def test_reading(raw, stamp):
    found = parse(raw)
    assert found.text == "x"
    if stamp is None:
        assert found.time is None
    else:
        assert found.time is not None
        assert found.time.seconds == pytest.approx(stamp.seconds, abs=1e-6)
        assert (found.time.has_year, found.time.offset_s, found.time.clock) == (stamp.has_year, stamp.offset_s, stamp.clock)


def years_from(stamps, **given):
    return [s and (s.seconds, s.has_year) for s in resolve(stamps, **given)]


def test_the_years_of_a_file_end_at_its_time():
    stamps = [
        syslog("Dec 30 10:00:00"),
        None,
        syslog("Dec 31 23:59:59"),
        syslog("Jan  1 00:00:01"),
        syslog("Dec 31 23:59:58"),
        syslog("Jan  2 00:00:00"),
    ]
    assert years_from(stamps, latest_s=seconds(2027, 3, 1)) == [
        (seconds(2026, 12, 30, 10), True),
        None,
        (seconds(2026, 12, 31, 23, 59, 59), True),
        (seconds(2027, 1, 1, 0, 0, 1), True),
        (seconds(2026, 12, 31, 23, 59, 58), True),
        (seconds(2027, 1, 2), True),
    ]


@pytest.mark.parametrize(
    ("text", "latest", "expected"),
    [
        ("Dec 31 23:00:00", (2027, 1, 1), (2026, 12, 31, 23)),
        # Local time is ahead of the file's UTC.
        ("Jan  1 05:00:00", (2026, 12, 31, 22), (2027, 1, 1, 5)),
        ("Nov  3 10:00:00", (2026, 11, 3, 10), (2026, 11, 3, 10)),
        ("Nov  5 10:00:00", (2026, 11, 3, 10), (2025, 11, 5, 10)),
        ("Feb 29 10:00:00", (2026, 11, 3, 10), (2024, 2, 29, 10)),
        ("Mar  1 10:00:00", (2026, 11, 3, 10), (2026, 3, 1, 10)),
    ],
)
def test_the_last_stamp_is_not_later_than_the_file(text, latest, expected):
    assert years_from([syslog(text)], latest_s=seconds(*latest)) == [(seconds(*expected), True)]


def test_a_printed_year_serves_its_neighbours():
    stamps = [syslog("Dec 31 23:59:00"), full("2027-01-01 00:00:00"), syslog("Jan  1 00:00:01"), syslog("Dec 31 23:59:58")]
    assert [s for s, _ in years_from(stamps, latest_s=0)] == [
        seconds(2026, 12, 31, 23, 59),
        seconds(2027, 1, 1),
        seconds(2027, 1, 1, 0, 0, 1),
        seconds(2026, 12, 31, 23, 59, 58),
    ]


def test_what_nothing_tells_stays():
    boot = parse("[88123.41] x").time
    stamps = [syslog("Nov  3 10:00:01"), boot, None]
    assert resolve(stamps) == stamps
    assert resolve(stamps, latest_s=seconds(2026, 12, 1))[1:] == [boot, None]
    assert resolve([boot], latest_s=1e9) == [boot]
    assert resolve([]) == []


@given(st.lists(st.sampled_from(["Feb 29 10:00:00", "Dec 31 10:00:00", "Jan  1 10:00:00", "Jul  1 10:00:00", ""])), st.floats(-1e18, 1e18))
def test_no_time_of_a_file_raises(texts, latest_s):
    assert len(resolve([syslog(t) if t else None for t in texts], latest_s=latest_s)) == len(texts)
