"""rich's console, for what is not ours: nothing that is printed acts on the terminal but rich's own styles, and nothing is read as markup.

Text in lines of a terminal's cells is wrapped as rich wraps it, with an indent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import rich.console
from rich.cells import cell_len
from rich.segment import Segment
from rich.text import Text

from unhang import printable

# How things stand: a sign and its style. Nothing is told by colour alone.
MARKS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("ok", "passed", "removed"), ("✓", "green")),
    **dict.fromkeys(("error", "failed"), ("✗", "bold red")),
    **dict.fromkeys(("unknown", "not-tested", "inconclusive"), ("?", "yellow")),
    **dict.fromkeys(("absent", "not-here", "lacking", "skipped", "left"), ("-", "dim")),
    "warning": ("!", "bold yellow"),
    "refused": ("!", "yellow"),
    "note": ("i", "cyan"),
    "proposed": ("→", "green"),
}


class Console(rich.console.Console):
    def __init__(self, stream: Any, **options: Any) -> None:
        super().__init__(file=printable.styled(stream), highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich does, but that a text is one line, however long: a name that holds a line feed cannot begin another."""
        if all(isinstance(shown, (str, Text)) for shown in objects):
            options.setdefault("soft_wrap", True)
        super().print(*map(_one_line, objects), **options)

    def print_all(self, texts: Iterable[str | Text]) -> None:
        for text in texts:
            self.print(text)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable.escape(text), style, control)


def _one_line(shown: Any) -> Any:
    if isinstance(shown, str):
        return shown.replace("\n", "\\n")
    return Text("\\n").join(shown.split("\n")) if isinstance(shown, Text) and "\n" in shown.plain else shown


def fold(text: str, width: int, *, first: str = "", deeper: str | None = None) -> list[str]:
    """All of it in lines of at most `width` cells, which begin with `first` and then `deeper`; at least one line."""
    deeper = first if deeper is None else deeper
    # What stands out beyond the indent is a part of the first word.
    beyond = "_" * max(0, cell_len(first) - cell_len(deeper))
    lines = Text(beyond + " ".join(text.split())).wrap(_console(), max(2, width - cell_len(deeper)))
    plain = [line.plain.rstrip() for line in lines] or [beyond]
    return [(first + plain[0][len(beyond) :]).rstrip(), *(deeper + line for line in plain[1:])]


@cache
def _console() -> rich.console.Console:
    """Only how wide characters are is asked of it."""
    return rich.console.Console(_environ={})


def styled(text: str, width: int, indent: str, style: str = "", *, deeper: str | None = None) -> Iterator[Text]:
    """`fold` in one style."""
    return (Text(line, style=style) for line in fold(text, width, first=indent, deeper=deeper))


def marked(mark: tuple[str, str], text: str, width: int, *, indent: str = "", deeper: str, style: str = "") -> Iterator[Text]:
    """`fold` behind a mark, which is a sign and its style; lines after the first begin with `deeper`."""
    sign, colour = mark
    for i, line in enumerate(fold(text, width, first=f"{indent}{sign} ", deeper=deeper)):
        shown = Text(line, style=style)
        if i == 0:
            shown.stylize(colour, len(indent), len(indent) + len(sign))
        yield shown


def cut(text: str, most: int) -> str:
    """As much of it as fits, cut behind a word, and visibly."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    return (text[: most + 1].rpartition(" ")[0].rstrip(" ;:,.") or text[:most]) + " ..."
