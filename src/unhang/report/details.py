"""What `unhang why --all` shows after the verdict: where the ranks stand, what their stacks share once, then where they part; and what was found in
logs, in order: one line for each, with time, rank and place.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from unhang.frames import short_path
from unhang.knowledge import words
from unhang.report.console import Console
from unhang.report.language import LABELS, Language
from unhang.user_files import is_user_file

if TYPE_CHECKING:
    from unhang.diagnosis.logs import Judged, Moment
    from unhang.records.stack_tree import Trunk

# A job of thousands of ranks says the same thousands of times.
MAX_LINES = 400
_INDENT = 2
_STYLES = {"root": "red", "symptom": "yellow", "context": "dim"}


def render_timeline(judged: Judged, console: Console, *, lang: Language) -> None:
    """Print what the logs tell of the job, and the timeline of the attempt that was judged."""
    if judged.job:
        console.print(Text(LABELS[lang]["job"], style="bold"))
        for what, said in judged.job:
            console.print(Text(f"  {what:<16} {_plain(said)}"))
    console.print(Text(LABELS[lang]["timeline"].format(attempt=judged.attempt, attempts=judged.attempts), style="bold"))
    console.print_all(_lines(judged, lang))


def _lines(judged: Judged, lang: Language) -> Iterator[Text]:
    moments = judged.timeline
    # What belongs to no cause gives way first.
    if len(moments) > MAX_LINES:
        moments = tuple(m for m in moments if m.cause is not None) or moments
    for m in moments[:MAX_LINES]:
        yield _line(m)
    if len(moments) > MAX_LINES or len(moments) < len(judged.timeline):
        yield Text(LABELS[lang]["more"].format(n=len(judged.timeline) - min(len(moments), MAX_LINES)), style="dim")


def _line(m: Moment) -> Text:
    time = "" if m.at_s is None else _time(m.at_s)
    who = " ".join(([f"rank {m.rank}"] if m.rank is not None else []) + ([_plain(m.host)] if m.host else []))
    line = Text(f"{time:>18}  {who:<12}  ", style="dim")
    line.append(f"{_plain(m.source)}{f':{m.line}' if m.line is not None else ''}  ", style="dim")
    if m.cause is not None:
        line.append(f"{m.cause}  ", style=_STYLES[m.role])
    line.append(_plain(m.text)[:300])
    return line


def _time(at_s: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(at_s, datetime.timezone.utc).strftime("%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        # No calendar has it.
        return f"{at_s:.6g} s"


def _plain(text: str) -> str:
    """On one line."""
    return " ".join(text.split())


def render_stacks(trunk: Trunk, cwd: str, console: Console, *, lang: Language, label: str = "stacks") -> None:
    """Print the tree, the user's own lines bright; `label` names the heading."""
    console.print(Text(LABELS[lang][label], style="bold"))
    lines = list(_branch(trunk, cwd, lang, 1))
    console.print_all(lines[:MAX_LINES])
    if len(lines) > MAX_LINES:
        console.print(Text(" " * _INDENT + LABELS[lang]["more"].format(n=len(lines) - MAX_LINES), style="dim"))


def _branch(trunk: Trunk, cwd: str, lang: Language, depth: int) -> Iterator[Text]:
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
        yield from _branch(branch, cwd, lang, depth + 1)
