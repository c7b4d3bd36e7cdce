"""What a file sets, and what is open at its end."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

from unhang.model import frozen


@frozen
class Found:
    """`value` is None where only the run tells it. `line` is that on which its statement begins, from 0.

    `at` is where its name begins, in characters of the text of a shell's script. `alone`: its statement does nothing but set variables.
    `only_in_build`: it holds while an image is built, and not in its containers.
    """

    name: str
    value: str | None
    line: int
    at: int = 0
    exported: bool = True
    alone: bool = False
    only_in_build: bool = False


@frozen
class Said:
    """Something else that a file sets and that variables can contradict: "ddp_timeout" and "group_timeout" in seconds, "launcher",
    "per_node" (tasks or GPUs of each host that a batch system gives), "nnodes" (the variable that a launcher takes the number of hosts from), "rocm"
    (the release that is loaded, "" where it is not named).
    """

    name: str
    value: str
    line: int


@frozen
class Unclosed:
    """What begins on `line` and is open at the end of the file: what follows was taken for a part of it."""

    what: Literal["quote", "bracket", "here-document"]
    line: int


Item = Found | Said | Unclosed


@frozen
class Parsed:
    """What a file sets in the forms that are read here. What stands in another form is in none of these."""

    settings: tuple[Found, ...] = ()
    options: tuple[Said, ...] = ()
    unclosed: tuple[Unclosed, ...] = ()


@dataclass(kw_only=True)
class Lines:
    """Offsets to lines."""

    text: str
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = [0, *(found.end() for found in re.finditer("\n", self.text))]

    def of(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1
