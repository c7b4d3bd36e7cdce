"""Paths as a machine sees them: its absolute links lead to places under its own root. And the interpreter that a script there begins with."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from unhang.facts.host import Host
from unhang.model import frozen

_MAX_LINKS = 40
Fault = Literal["gone", "too-long", "carriage-return"]

# pip and conda write this where the path is too long for the kernel, or has a space in it; uv does so in environments that may be moved.
_TRAMPOLINE = re.compile(
    r"""^'''exec'\s+(?:"\$\(dirname[^\n]*?\)"/'?(?P<beside>[\w.-]+)'?|"(?P<quoted>/[^"\n]+)"|'(?P<single>/[^'\n]+)'|(?P<plain>/\S+))\s""",
    re.MULTILINE,
)


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


@frozen
class Shebang:
    """`interpreter` is a path, or the name that env looks up on the PATH."""

    interpreter: str
    fault: Fault | None = None


def shebang_limit(host: Host) -> int:
    """How many bytes of "#!" and interpreter the kernel takes: 255 since Linux 5.1, 127 before."""
    release = re.match(r"(\d+)\.(\d+)", text(host, "/proc/sys/kernel/osrelease", size_bytes=100))
    return 127 if release is not None and (int(release[1]), int(release[2])) < (5, 1) else 255


def shebang(host: Host, path: str, *, at_most: int) -> Shebang | None:
    """None for what is no script, or one of a shell."""
    start = head(host, path, size_bytes=2048)
    if not start.startswith(b"#!"):
        return None
    first = start.partition(b"\n")[0]
    words = first[2:].decode(errors="replace").strip(" \t").split(" ")
    interpreter = words[0].rstrip("\t")
    if interpreter.rstrip("\r").endswith("/env"):
        named = next((w for w in words[1:] if w and not w.startswith("-") and "=" not in w), "")
        return Shebang(interpreter=named.rstrip("\r"), fault="carriage-return" if named.endswith("\r") else None) if named else None
    if interpreter.endswith("/sh"):
        found = _TRAMPOLINE.search(start.decode(errors="replace"))
        if found is None:
            return None
        target = found["quoted"] or found["single"] or found["plain"]
        if target is None:
            target = real(host, path).rpartition("/")[0] + "/" + found["beside"]
        return Shebang(interpreter=target, fault="gone" if missing(host, target) else None)
    if interpreter.endswith("\r"):
        return Shebang(interpreter=interpreter.rstrip("\r"), fault="carriage-return")
    if len(first[: first.find(interpreter.encode()) + len(interpreter.encode())]) > at_most:
        return Shebang(interpreter=interpreter, fault="too-long")
    return Shebang(interpreter=interpreter, fault="gone" if missing(host, interpreter) else None)
