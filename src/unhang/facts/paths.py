"""Paths as a machine sees them: its absolute links lead to places under its own root."""

from __future__ import annotations

import os
from pathlib import Path

from unhang.facts.host import Host

_MAX_LINKS = 40


def real(host: Host, path: str) -> str:
    """Where a path leads once all links are followed; it need not exist. Raises OSError where links run in a circle."""
    left = path.split("/")[::-1]
    done, links = "", 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        try:
            target = host.link(f"{done}/{part}")
        except (OSError, ValueError):
            done = f"{done}/{part}"
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(f"{path}: too many symbolic links")
        done = "" if target.startswith("/") else done
        left += target.split("/")[::-1]
    return done or "/"


def _seen(host: Host, path: str) -> Path:
    """What to open: on the live machine the kernel follows links itself, and quicker."""
    return Path(path) if host.is_live else host.path(real(host, path))


def missing(host: Host, path: str) -> bool:
    """Whether nothing is there; what we may not look at is not missing."""
    try:
        _seen(host, path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def is_file(host: Host, path: str) -> bool:
    try:
        return _seen(host, path).is_file()
    except (OSError, ValueError):
        return False


def is_dir(host: Host, path: str) -> bool:
    try:
        return _seen(host, path).is_dir()
    except (OSError, ValueError):
        return False


def same(host: Host, one: str, other: str) -> bool:
    """Whether two paths are one place: by links, or mounted twice."""
    try:
        one, other = real(host, one), real(host, other)
        return one == other or host.path(one).samefile(host.path(other))
    except (OSError, ValueError):
        return False


def names(host: Host, path: str) -> tuple[str, ...]:
    """What stands in a directory; nothing where it cannot be read."""
    try:
        return tuple(sorted(entry.name for entry in os.scandir(_seen(host, path))))
    except (OSError, ValueError):
        return ()


def head(host: Host, path: str, *, size_bytes: int = 4096) -> bytes:
    """How a file begins; nothing where it cannot be read."""
    try:
        with _seen(host, path).open("rb") as file:
            return file.read(size_bytes)
    except (OSError, ValueError):
        return b""


def text(host: Host, path: str, *, size_bytes: int = 1 << 20) -> str:
    return head(host, path, size_bytes=size_bytes).decode(errors="replace")
