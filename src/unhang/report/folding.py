"""Text in lines of a terminal's cells, wrapped as rich wraps it, with an indent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from unhang.report import screen


def fold(text: str, width: int, *, first: str = "", deeper: str | None = None) -> list[str]:
    """All of it in lines of at most `width` cells, which begin with `first` and then `deeper`; at least one line."""
    deeper = first if deeper is None else deeper
    # What stands out beyond the indent is a part of the first word.
    beyond = "_" * max(0, cell_len(first) - cell_len(deeper))
    lines = Text(beyond + " ".join(text.split())).wrap(_console(), max(2, width - cell_len(deeper)))
    plain = [line.plain.rstrip() for line in lines] or [beyond]
    return [(first + plain[0][len(beyond) :]).rstrip(), *(deeper + line for line in plain[1:])]


@cache
def _console() -> Console:
    """Only how wide characters are is asked of it."""
    return screen.console()


def styled(text: str, width: int, indent: str, style: str = "") -> Iterator[Text]:
    """`fold` with one indent, in one style."""
    return (Text(line, style=style) for line in fold(text, width, first=indent))


def cut(text: str, most: int) -> str:
    """As much of it as fits, cut behind a word, and visibly."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    return (text[: most + 1].rpartition(" ")[0].rstrip(" ;:,.") or text[:most]) + " ..."
