"""Where what can be made again is kept between runs."""

from __future__ import annotations

from pathlib import Path

from unhang import cache
from unhang.cli.stderr import say_once


def folder() -> Path | None:
    """Return the user's cache directory; None if no variable names one, or, with a note, if another user may have filled it."""
    path, wrong = cache.directory()
    if wrong is not None:
        say_once(wrong)
    return path
