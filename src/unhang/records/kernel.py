"""The kernel's own log (dmesg): processes that the OOM killer ended, and processes that crashed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unhang.records.logs import lines

EventKind = Literal["oom-kill", "segfault"]

_PATTERNS: tuple[tuple[EventKind, str, re.Pattern[str]], ...] = (
    ("oom-kill", "ut of memory", re.compile(r"[Oo]ut of memory.*?: Kill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]*)\)")),
    ("segfault", "segfault at", re.compile(r"(?P<name>[^\s\]]+)\[(?P<pid>\d+)\]: segfault at ")),
)


@dataclass(frozen=True, kw_only=True)
class KernelEvent:
    """One thing that the kernel did to a process."""

    kind: EventKind
    pid: int
    name: str
    text: str
    line: int


def events(path: Path) -> list[KernelEvent]:
    """What the file tells, oldest first. Raises RecordError where it cannot be read."""
    return list(_events(path))


def _events(path: Path) -> Iterator[KernelEvent]:
    for line in lines(path):
        for kind, needle, pattern in _PATTERNS:
            if needle in line.text and (found := pattern.search(line.text)):
                yield KernelEvent(kind=kind, pid=int(found["pid"]), name=found["name"], text=line.text, line=line.number)
