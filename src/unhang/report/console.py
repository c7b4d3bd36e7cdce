"""rich's console, for what is not ours: nothing that is printed acts on the terminal but rich's own styles, and nothing is read as markup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment
from rich.text import Text

from unhang.printable import escape, styled


class Console(rich.console.Console):
    def __init__(self, stream: Any, **options: Any) -> None:
        super().__init__(file=styled(stream), highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich does, but that a text is one line: a name that holds a line feed cannot begin another."""
        super().print(*map(_one_line, objects), **options)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape(text), style, control)


def _one_line(shown: Any) -> Any:
    if isinstance(shown, str):
        return shown.replace("\n", "\\n")
    return Text("\\n").join(shown.split("\n")) if isinstance(shown, Text) and "\n" in shown.plain else shown
