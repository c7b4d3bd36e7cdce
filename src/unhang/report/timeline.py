"""What was found in logs, in order: one line for each, with time, rank and place."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from rich.text import Text

from unhang.diagnosis.logs import Judged, Moment
from unhang.report.console import Console
from unhang.report.language import LABELS, Language

# A job of thousands of ranks says the same thousands of times.
MAX_LINES = 400
_STYLES = {"root": "red", "symptom": "yellow", "context": "dim"}


def render(judged: Judged, console: Console, *, lang: Language) -> None:
    """Print what the logs tell of the job, and the timeline of the attempt that was judged."""
    if judged.job:
        console.print(Text(LABELS[lang]["job"], style="bold"))
        for what, said in judged.job:
            console.print(Text(f"  {what:<16} {_plain(said)}"))
    console.print(Text(LABELS[lang]["timeline"].format(attempt=judged.attempt, attempts=judged.attempts), style="bold"))
    for line in _lines(judged, lang):
        console.print(line)


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
