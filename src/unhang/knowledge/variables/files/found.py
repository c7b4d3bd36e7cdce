"""One assignment in a file, with what has to be known to take it out or to rename it."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

_LINE_OF_COMMENT = re.compile(r"^[ \t]*#.*", re.MULTILINE)

_WIDE = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Statements of which one has to stay: `filler` is put in where all of them go."""

    number: int
    statements: int
    filler: str


@dataclass(frozen=True, kw_only=True)
class Item:
    """One of several that something has to stay of: `ALL,A=b,C=d`. `of` is where they begin.

    `others`: something that is no setting stands there, too; `others_ahead`: ahead of this one. `ahead` is what goes where something ahead of it
    stays, `behind` where nothing does; None where it cannot go so, as the quotes around it would not be pairs any more.
    """

    of: int
    others: bool
    others_ahead: bool
    ahead: tuple[int, int] | None
    behind: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class Found:
    """`value` is None where only the run tells it. Offsets are characters of the text, lines count from 0.

    `start` to `end` is what has to go with it: its flag and the space before it. `first` to `last` are the lines of its statement. `alone`: the
    statement consists of assignments of this kind only, and is commented out when all of them go; `among` is such a statement that shares its lines
    with others, and gives way to `:`; `statement` is it in any case.
    `by_line`: it can go only with its lines. `block` is the one in which the statement stands.
    `above` is the line above which a comment on it can stand, where that need not be `first`. `acts`: setting it runs a command or sets something
    else. `only_in_build`: it holds while an image is built, and not in its containers.
    """

    name: str
    value: str | None
    name_at: int
    start: int
    end: int
    first: int
    last: int
    alone: bool
    by_line: bool = False
    among: tuple[int, int] | None = None
    statement: tuple[int, int] | None = None
    exported: bool = True
    block: Block | None = None
    item: Item | None = None
    above: int | None = None
    acts: bool = False
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
    """`comments`: whether the format has comments that begin with #. `commented` is where they stand, from character to character.

    `mentioned` are names that stand neither there nor in a setting, nor where they are only used; `understood` are stretches where that is so.
    """

    settings: tuple[Found, ...] = ()
    options: tuple[Said, ...] = ()
    comments: bool = True
    commented: tuple[tuple[int, int], ...] = ()
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
    _wide: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.starts = [0, *(found.end() for found in re.finditer("\n", self.text))]

    def of(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1

    def wide(self, line: int) -> list[tuple[int, int]]:
        """For each character of a line that takes several bytes in UTF-8: the byte behind it, and how many bytes more than characters that makes."""
        found = self._wide.get(line)
        if found is None:
            found, more = [], 0
            start, stop = self.starts[line], self.starts[line + 1] if line + 1 < len(self.starts) else len(self.text)
            for c in _WIDE.finditer(self.text, start, stop):
                bytes_more = len(c[0].encode("utf-8", errors="surrogateescape")) - 1
                more += bytes_more
                found.append((c.end() - start + more, more))
            self._wide[line] = found
        return found
