"""Something that is wrong in a file, its line, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unhang.knowledge.text import NOTHING, Text


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`line` counts from 1. `note`: worth knowing, and no fault."""

    line: int
    says: Text
    instead: Text = NOTHING
    note: bool = False


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the user said of the job, and the options of the command that reads the file (`named_by`); None where nothing was."""

    nodes: int | None = None
    processes: int | None = None
    options: Mapping[str, str] | None = None

    @property
    def world(self) -> int | None:
        return None if self.nodes is None and self.processes is None else (self.nodes or 1) * (self.processes or 1) if self.processes else None
