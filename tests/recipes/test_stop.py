"""stop.py, of which each recipe has a copy because it stands alone."""

from __future__ import annotations

import runpy
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
COPIES = sorted(Path(__file__).parents[2].glob("recipes/*/stop.py"))


def test_all_recipes_have_the_same():
    assert len(COPIES) == 4 and len({path.read_bytes() for path in COPIES}) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_repeats_are_one_signal_and_one_that_comes_later_is_another(number, monkeypatch):
    torch = pytest.importorskip("torch")
    module = runpy.run_path(str(COPIES[0]))
    before = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        stop = module["Stop"](torch.device("cpu"))
        stop.check()
        for _ in range(3):
            signal.raise_signal(number)
        with pytest.raises(InterruptedError, match=number.name):
            stop.check()
        monkeypatch.setitem(module["Stop"].__init__.__globals__, "_REPEATED_S", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
