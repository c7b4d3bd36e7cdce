"""The check of sizes fails when it has to and writes only when it is asked to."""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest

SIZE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "size.py"))


@pytest.fixture
def size(tmp_path, monkeypatch):
    """`size(bounds, *argv)` returns the exit code and the bounds afterwards, None for a missing file. logs has 10 tokens, ras 20."""
    numbers = tmp_path / "size.json"
    main = SIZE["main"]
    rooms = {"logs": Counter(tokens=10), "ras": Counter(tokens=20)}
    monkeypatch.setitem(main.__globals__, "measured", lambda: rooms)
    monkeypatch.setitem(main.__globals__, "NUMBERS", numbers)

    def run(bounds, *argv):
        numbers.unlink(missing_ok=True)
        if bounds is not None:
            numbers.write_text(json.dumps(bounds))
        monkeypatch.setattr(sys, "argv", ["size.py", *argv])
        code = main()
        return code, json.loads(numbers.read_text()) if numbers.exists() else None

    return run


def test_the_check_writes_nothing(size):
    for bounds, code in (({"logs": 10, "ras": 20}, 0), ({"logs": 9, "ras": 20}, 1), ({"logs": 11, "ras": 20}, 1), ({"logs": 10}, 1), (None, 1)):
        assert size(bounds) == (code, bounds)
    assert size({"logs": 10, "ras": 20, "gone": 5})[0] == 1


def test_bounds_are_lowered_and_raised_on_request(size):
    assert size({"logs": 11, "ras": 20, "gone": 5}, "--write") == (0, {"logs": 10, "ras": 20})
    assert size({"logs": 11, "ras": 19}, "--write") == (1, {"logs": 10, "ras": 19})
    assert size({"logs": 9, "ras": 19}, "--raise", "ras") == (1, {"logs": 9, "ras": 20})
    assert size({"logs": 10}, "--raise", "ras") == (0, {"logs": 10, "ras": 20})
    assert size(None, "--write") == (1, None)
    with pytest.raises(SystemExit):
        size({"logs": 10, "ras": 20}, "--raise", "nowhere")
