"""Where what can be made again is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path | None:
    """The user's cache; None where nothing says where."""
    root = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if (home := os.environ.get("HOME")) else "")
    return Path(root) / "unhang" if root.startswith("/") else None
