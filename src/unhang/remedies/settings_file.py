"""A file of `export` and `unset` lines: the settings that answer what was found, where nothing about them has to be guessed."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from unhang.model import HostFinding, frozen

FILE = "unhang.env"
# What stands for something that the reader has to fill in: IFNAME, <subnet>, N.
_TO_FILL_IN = re.compile(r"[<{$]|^[A-Z]+$")


@frozen
class Setting:
    """A variable that every rank should have, and the cause that it is set for."""

    name: str
    value: str
    cause: str


def proposed(findings: Iterable[HostFinding]) -> tuple[Setting, ...]:
    """Settings that are the first remedy of an error or a warning. Where two findings disagree about a value, neither is proposed."""
    found: dict[str, Setting] = {}
    disputed: set[str] = set()
    for finding in findings:
        if finding.severity == "note" or not finding.remedies:
            continue
        for name, value in finding.remedies[0].env.items():
            if _TO_FILL_IN.search(value):
                continue
            if found.setdefault(name, Setting(name=name, value=value, cause=finding.cause)).value != value:
                disputed.add(name)
    return tuple(s for name, s in found.items() if name not in disputed)


def text(settings: Iterable[Setting]) -> str:
    """As a shell reads it: `. ./unhang.env`."""
    return "".join(f"{in_shell(s.name, s.value)}  # {s.cause}\n" for s in settings)


def in_shell(name: str, value: str) -> str:
    """The line for a shell; what is empty is unset."""
    return f"export {name}={shlex.quote(value)}" if value else f"unset {name}"


def write(path: Path, settings: Iterable[Setting], *, overwrite: bool) -> None:
    """Raises FileExistsError where something is there and may not be overwritten, OSError where it cannot be written."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if overwrite else os.O_EXCL)
    with os.fdopen(os.open(path, flags, 0o600), "w") as file:
        file.write(text(settings))
