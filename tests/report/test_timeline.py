"""The timeline: one line for each thing that was found, whatever its time and its text."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from unhang.diagnosis.logs import Moment
from unhang.report import details
from unhang.report.console import Console


def shown(*moments, job=()):
    out = io.StringIO()
    judged = SimpleNamespace(timeline=moments, job=job, attempt=1, attempts=1)
    details.render_timeline(judged, Console(out, width=200, color_system=None), lang="en")
    return out.getvalue()


def moment(*, at_s=None, source="a.log", host=None, text="boom"):
    return Moment(at_s=at_s, rank=1, host=host, source=source, line=3, text=text, cause=None, role="context")


def test_a_time_is_shown():
    assert "11-14 22:13:20.250  rank 1        a.log:3  boom\n" in shown(moment(at_s=1_700_000_000.25))


@pytest.mark.parametrize("at_s", [999_999_999_999.0, -1e12, 1e30, float("inf"), float("nan"), 2.0**63])
def test_no_time_is_too_large(at_s):
    assert "a.log:3  boom\n" in shown(moment(at_s=at_s))


def test_nothing_acts_on_the_terminal():
    hostile = "x\x1b]0;t\x07\x9b31m\u202e\x7f\ny"
    text = shown(moment(source=hostile, host=hostile, text=hostile), job=(("hosts", hostile),))
    assert not {*"\x1b\x07\x9b\u202e\x7f"} & {*text}
    assert len(text.splitlines()) == 4
