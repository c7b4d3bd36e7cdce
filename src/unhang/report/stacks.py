"""Where the ranks stand, on a terminal: what their stacks share once, then where they part."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from unhang.frames import short_path
from unhang.knowledge import words
from unhang.records.stack_tree import Trunk
from unhang.report.console import Console
from unhang.report.language import LABELS, Language
from unhang.user_files import is_user_file

MAX_LINES = 400
_INDENT = 2


def render(trunk: Trunk, cwd: str, console: Console, *, lang: Language, label: str = "stacks") -> None:
    """Print the tree, the user's own lines bright; `label` names the heading."""
    console.print(Text(LABELS[lang][label], style="bold"))
    lines = list(_lines(trunk, cwd, lang, 1))
    for line in lines[:MAX_LINES]:
        console.print(line)
    if len(lines) > MAX_LINES:
        console.print(Text(" " * _INDENT + LABELS[lang]["more"].format(n=len(lines) - MAX_LINES), style="dim"))


def _lines(trunk: Trunk, cwd: str, lang: Language, depth: int) -> Iterator[Text]:
    word = LABELS[lang]["rank" if len(trunk.ranks) == 1 else "ranks"]
    many = f" ({len(trunk.ranks)})" if len(trunk.ranks) > 1 else ""
    yield Text(" " * _INDENT * depth + f"{word} {words.ranges(trunk.ranks)}{many}", style="bold cyan")
    for frame in trunk.frames:
        line = Text(" " * _INDENT * (depth + 1))
        own = is_user_file(frame.file)
        line.append(f"{short_path(frame.file, cwd)}:{frame.line} in {frame.name}", style="" if own else "dim")
        if frame.code:
            line.append(f"  {frame.code}", style="green" if own else "dim")
        yield line
    for branch in trunk.branches:
        yield from _lines(branch, cwd, lang, depth + 1)
