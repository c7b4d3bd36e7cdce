"""Attempts in one log: a start behind a failure, and nothing else."""

from __future__ import annotations

import pytest

from unhang.records.logs import Hit
from unhang.records.logs.attempts import AGENTS, LIBRARIES, Failure, attempt_of, starts_of

LIGHTNING, _, NCCL_VERSION, _ = LIBRARIES


def start(place, at_s=None, signature=AGENTS[0], host=None, pid=None):
    return Hit(signature=signature, source="x", line=1, text="", place=place, at_s=at_s, host=host, pid=pid)


def places(starts, *failures):
    return tuple(h.place for h in starts_of(starts, [Failure(place=p, at_s=at_s, ended=ended) for p, at_s, ended in failures]))


def failed(place, at_s=None):
    return (place, at_s, False)


def ended(place, at_s=None):
    return (place, at_s, True)


@pytest.mark.parametrize(
    ("starts", "failures", "expected"),
    [
        ([], [], ()),
        ([0], [failed(50)], ()),
        # Eight ranks print their starts; only the first one behind a failure counts.
        ([0, 5, 6, 100, 101, 102], [failed(50)], (100,)),
        ([0, 100, 200], [failed(50), ended(150)], (100, 200)),
        ([0, 100], [], ()),
        ([0, 100], [failed(150)], ()),
    ],
)
def test_starts(starts, failures, expected):
    assert places([start(p) for p in starts], *failures) == expected


def test_another_hosts_log_that_was_appended_is_no_new_attempt():
    assert places([start(0, 10.0), start(100, 11.0)], failed(50, 300.0)) == ()
    assert places([start(0, 10.0), start(100, 301.0)], failed(50, 300.0)) == (100,)
    # The one after it is: it began behind the failure.
    assert places([start(0, 10.0), start(100, 11.0), start(200, 400.0)], failed(50, 300.0)) == (200,)


@pytest.mark.parametrize("banner", [LIGHTNING, NCCL_VERSION])
def test_a_librarys_banner_is_a_start_only_where_processes_have_ended(banner):
    assert places([start(100, signature=banner)], failed(50)) == ()
    assert places([start(100, signature=banner)], ended(50)) == (100,)
    assert places([start(10, signature=banner), start(100, signature=banner)], failed(50)) == ()


def test_or_where_a_process_would_have_printed_it_twice():
    """Pids of containers are the same in each attempt."""
    first = start(10, signature=NCCL_VERSION, host="pod-0", pid=61)
    for host, pid, expected in (("pod-0", 61, (100,)), ("pod-0", 62, ()), ("pod-1", 61, ()), (None, None, ())):
        again = start(100, signature=NCCL_VERSION, host=host, pid=pid)
        assert places([first, again], failed(50)) == expected
        assert places([first, again]) == ()


def test_places():
    assert [attempt_of(p, (100, 200)) for p in (0, 99, 100, 199, 200, 999)] == [1, 1, 2, 2, 3, 3]
