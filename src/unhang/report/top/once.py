"""One picture, printed."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from unhang import files
from unhang.records.live.picture import Picture
from unhang.report import screen
from unhang.report.language import Language
from unhang.report.top import lines
from unhang.report.top.choosing import choose
from unhang.report.top.words import LABELS

_MOST_RANKS = 64
_MOST_CALLS = 20
_MOST_EVENTS = 10


def render(picture: Picture, console: Console, *, lang: Language = "en", everything: bool = False) -> None:
    """All of it; `everything`: also the ranks of which nothing is to be said, one by one."""
    width, labels = screen.width(console), LABELS[lang]

    def put(*said: Text) -> None:
        for line in said:
            console.print(line, soft_wrap=True, highlight=False, markup=False)

    put(Text(lines.clean(picture.run_dir), style="bold"), *lines.head(picture, width, lang, whole=True))
    if picture.ranks:
        chosen = choose(picture.ranks, everything=everything, at_most=_MOST_RANKS)
        columns = lines.columns(chosen.shown, width)
        put(Text(), lines.heading(columns, lang), *(lines.row(r, columns, lang) for r in chosen.shown), *lines.folded(chosen, width, lang))
    put(Text(), Text(labels["collectives"], style="bold"), *lines.collectives(picture, width, _MOST_CALLS, lang))
    put(Text(), Text(labels["events"], style="bold"), *lines.events(picture, width, _MOST_EVENTS, lang))
    if picture.job.verdict is not None:
        put(Text(), Text(labels["records"].format(path=files.as_argument(lines.clean(picture.run_dir))), style="dim"))
