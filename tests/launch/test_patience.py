"""How long a stall may last, and what earlier runs of a script teach about that."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from unhang.launch.patience import LIMIT_S, STOPPED_S, Patience, kind_of
from unhang.model import Wait
from unhang.records.incident import Activity

PLACE = "train.py:7"


def activity(**more):
    return Activity(**{"window_s": 5.0, "state": "S", "cpu_share": 0.0, "tree_cpu_share": 0.0, "switches_per_s": 0.0} | more)


@pytest.mark.parametrize(
    ("seen", "wait", "busy", "places", "kind"),
    [
        (activity(), Wait(kind="sleep", timed=True), False, 1, "waits"),
        (activity(), Wait(kind="socket"), False, 1, "waits"),
        (activity(), None, False, 1, "waits"),
        (activity(), Wait(kind="mutex", ends=False), False, 1, "stuck"),
        (activity(), Wait(kind="file-lock", holder=4711), False, 1, "waits"),
        (activity(), Wait(kind="file-lock", holder=10, ends=False), False, 1, "stuck"),
        (activity(), Wait(kind="terminal"), False, 1, "user"),
        (activity(state="T"), None, False, 1, "stopped"),
        (activity(state="t"), None, False, 1, "user"),
        (activity(state="R", cpu_share=1.0, tree_cpu_share=1.0), None, True, 2, "repeats"),
        (activity(state="R", cpu_share=1.0, tree_cpu_share=1.0), None, True, 40, "works"),
        # Its children compute, or it moves data: the one line that it stands at tells nothing.
        (activity(tree_cpu_share=0.9), Wait(kind="child"), True, 1, "works"),
        (activity(cpu_share=0.1, tree_cpu_share=0.1, io_bytes_per_s=1e6), None, True, 1, "works"),
    ],
)
def test_what_keeps_a_rank(seen, wait, busy, places, kind):
    assert kind_of(replace(seen, places=places), wait, busy=busy) == kind


@pytest.mark.parametrize(
    ("kind", "timeout_s", "limit_s"),
    [
        ("stuck", 1800.0, 0.0),
        ("stopped", 1800.0, STOPPED_S),
        ("waits", 1800.0, LIMIT_S),
        ("repeats", None, LIMIT_S),
        ("works", 1800.0, 1790.0),
        ("works", None, math.inf),
        ("user", 600.0, 590.0),
        ("remote", 600.0, 590.0),
        # Never later than shortly before the collective's own timeout.
        ("waits", 40.0, 36.0),
    ],
)
def test_limits(kind, timeout_s, limit_s):
    patience = Patience()
    assert patience.limit_s(kind, PLACE, starting=False, timeout_s=timeout_s) == limit_s
    assert patience.limit_s(kind, PLACE, starting=True, timeout_s=timeout_s) >= limit_s
    if kind != "stuck":
        assert Patience(hang_after_s=20.0).limit_s(kind, PLACE, starting=False, timeout_s=timeout_s) == 20.0


def test_a_pause_that_was_survived_and_a_place_that_was_ended_are_remembered_for_the_script(tmp_path):
    path = tmp_path / "cache" / "pauses.json"

    def limit(script="a", place=PLACE):
        return Patience(script=script, path=path).limit_s("waits", place, starting=False, timeout_s=None)

    def kept(limit_s):
        """They are written by a thread."""
        deadline = time.monotonic() + 300
        while limit() != limit_s:
            assert time.monotonic() < deadline, limit()
            time.sleep(0.01)

    assert limit() == LIMIT_S
    first = Patience(script="a", path=path)
    first.survived("train.py:9", 250.0)
    kept(500.0)
    first.ended(PLACE)
    kept(2000.0)
    assert (limit(place="train.py:9"), limit(script="b")) == (500.0, LIMIT_S)
    # However often, and however long: the training is not waited for without bound.
    for _ in range(5):
        first.ended(PLACE)
    first.survived("train.py:9", 86400.0)
    kept(1800.0 * 16)
    # It passed.
    first.survived(PLACE, 400.0)
    kept(1800.0)


def test_a_damaged_memory_is_reported_and_not_used(tmp_path):
    path, told = tmp_path / "pauses.json", []
    path.write_text('{"a": {"survived_s": 3}}')
    patience = Patience(script="a", path=path, trouble=told.append)
    assert patience.limit_s("waits", PLACE, starting=False, timeout_s=None) == LIMIT_S
    assert len(told) == 1 and str(path) in told[0]
