"""The bar of a long reading: only where escape sequences are wanted."""

from __future__ import annotations

import io

import pytest

from unhang.report import screen


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("no_color", "quiet", "drawn"), [("", False, True), ("1", False, False), ("", True, False)])
def test_the_bar(monkeypatch, no_color, quiet, drawn):
    terminal = Screen()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(screen, "PATIENCE_S", -1.0)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    with screen.reading(quiet=quiet) as tell:
        tell(1, 2)
    assert bool(terminal.getvalue()) is drawn
