"""The interpreter that a script begins with, and why the kernel would refuse it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from unhang.facts import paths
from unhang.facts.host import Host

Fault = Literal["gone", "too-long", "carriage-return"]

# pip and conda write this where the path is too long for the kernel, or has a space in it; uv does so in environments that may be moved.
_TRAMPOLINE = re.compile(
    r"""^'''exec'\s+(?:"\$\(dirname[^\n]*?\)"/'?(?P<beside>[\w.-]+)'?|"(?P<quoted>/[^"\n]+)"|'(?P<single>/[^'\n]+)'|(?P<plain>/\S+))\s""",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Shebang:
    """`interpreter` is a path, or the name that env looks up on the PATH."""

    interpreter: str
    fault: Fault | None = None


def limit(host: Host) -> int:
    """How many bytes of "#!" and interpreter the kernel takes: 255 since Linux 5.1, 127 before."""
    release = re.match(r"(\d+)\.(\d+)", paths.text(host, "/proc/sys/kernel/osrelease", size_bytes=100))
    return 127 if release is not None and (int(release[1]), int(release[2])) < (5, 1) else 255


def read(host: Host, path: str, *, at_most: int) -> Shebang | None:
    """None for what is no script, or one of a shell."""
    start = paths.head(host, path, size_bytes=2048)
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
            target = paths.real(host, path).rpartition("/")[0] + "/" + found["beside"]
        return Shebang(interpreter=target, fault="gone" if paths.missing(host, target) else None)
    if interpreter.endswith("\r"):
        return Shebang(interpreter=interpreter.rstrip("\r"), fault="carriage-return")
    if len(first[: first.find(interpreter.encode()) + len(interpreter.encode())]) > at_most:
        return Shebang(interpreter=interpreter, fault="too-long")
    return Shebang(interpreter=interpreter, fault="gone" if paths.missing(host, interpreter) else None)
