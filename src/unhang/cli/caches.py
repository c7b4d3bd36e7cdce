"""Where what can be made again is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

from unhang import fsio
from unhang.cli.stderr import say_once


def folder() -> Path | None:
    """Return the user's cache directory; None if no variable names one, or, with a note, if another user may have filled it."""
    root = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if (home := os.environ.get("HOME")) else "")
    if not root.startswith("/"):
        return None
    cache = Path(root) / "unhang"
    # One that is not there yet will be made.
    if os.path.lexists(cache) and (wrong := fsio.check_owner(cache)) is not None:
        say_once(wrong)
        return None
    return cache
