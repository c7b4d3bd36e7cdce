"""Attempts in one log: a start behind a failure, and nothing else."""

from __future__ import annotations

import pytest

from unhang.records.logs import Hit
from unhang.records.logs.attempts import SIGNATURES, attempt_of, starts_of


def start(place, at_s=None):
    return Hit(signature=SIGNATURES[0], source="x", line=1, text="", place=place, at_s=at_s)


@pytest.mark.parametrize(
    ("starts", "failures", "expected"),
    [
        ([], [], ()),
        ([0], [(50, None)], ()),
        # Eight ranks print their starts; only the first one behind a failure counts.
        ([0, 5, 6, 100, 101, 102], [(50, None)], (100,)),
        ([0, 100, 200], [(50, None), (150, None)], (100, 200)),
        ([0, 100], [], ()),
        ([0, 100], [(150, None)], ()),
    ],
)
def test_starts(starts, failures, expected):
    assert starts_of([start(p) for p in starts], failures) == expected


def test_another_hosts_log_that_was_appended_is_no_new_attempt():
    assert starts_of([start(0, 10.0), start(100, 11.0)], [(50, 300.0)]) == ()
    assert starts_of([start(0, 10.0), start(100, 301.0)], [(50, 300.0)]) == (100,)
    # The one after it is: it began behind the failure.
    assert starts_of([start(0, 10.0), start(100, 11.0), start(200, 400.0)], [(50, 300.0)]) == (200,)


def test_places():
    assert [attempt_of(p, (100, 200)) for p in (0, 99, 100, 199, 200, 999)] == [1, 1, 2, 2, 3, 3]
