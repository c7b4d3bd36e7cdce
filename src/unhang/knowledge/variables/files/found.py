"""What a file sets, and what of it could not be followed."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

_LINE_OF_COMMENT = re.compile(r"^[ \t]*#.*", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Found:
    """`value` is None where only the run tells it. `line` is that on which its statement begins, from 0.

    `span`: from its name to the end of its value, in characters of the text; its name alone where a command runs for the value, which may set more.
    Python's have none. `alone`: its statement does nothing but set variables. `only_in_build`: it holds while an image is built, and not in its
    containers.
    """

    name: str
    value: str | None
    line: int
    span: tuple[int, int] = (0, 0)
    exported: bool = True
    alone: bool = False
    only_in_build: bool = False


@dataclass(frozen=True, kw_only=True)
class Said:
    """Something else that a file sets: see `judge.Option`."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Unclosed:
    """What begins on `line` and is open at the end of the file: what follows was taken for a part of it."""

    what: Literal["quote", "bracket", "here-document"]
    line: int


@dataclass(frozen=True, kw_only=True)
class Mention:
    """A variable that stands on `line` (from 0) in a form that is not understood: whether it is set there is not known."""

    name: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """`mentioned` are names that stand neither in a comment nor in a setting, nor where they are only used.

    `understood` are stretches of a command without a shell where that is so, from character to character.
    """

    settings: tuple[Found, ...] = ()
    options: tuple[Said, ...] = ()
    unclosed: tuple[Unclosed, ...] = ()
    mentioned: tuple[Mention, ...] = ()
    understood: tuple[tuple[int, int], ...] = ()


def lines_of_comments(text: str) -> tuple[tuple[int, int], ...]:
    """Where lines stand that are nothing but a comment."""
    return tuple(m.span() for m in _LINE_OF_COMMENT.finditer(text))


@dataclass(kw_only=True)
class Lines:
    """Offsets to lines."""

    text: str
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = [0, *(found.end() for found in re.finditer("\n", self.text))]

    def of(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1
