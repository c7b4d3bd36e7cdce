"""Where what can be made again is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

from unhang.cli.aside import say_once
from unhang.records import owners


def folder() -> Path | None:
    """The user's cache; None where nothing says where, or another user may have filled it, which is said once."""
    root = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if (home := os.environ.get("HOME")) else "")
    if not root.startswith("/"):
        return None
    cache = Path(root) / "unhang"
    # One that is not there yet will be made.
    if os.path.lexists(cache) and (wrong := owners.distrusted(cache)) is not None:
        say_once(wrong.says)
        return None
    return cache
