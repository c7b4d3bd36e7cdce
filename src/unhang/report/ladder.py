"""The ladder on a terminal: one line for each change as it is tried, and what follows."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from unhang.i18n import Words, in_language
from unhang.model import Outcome, Trial
from unhang.remedies.ladder import Told
from unhang.report import screen
from unhang.report.console import Console, fold
from unhang.report.ladder_report import by_run, variables, what
from unhang.report.language import Language

_MARKS: Mapping[str, tuple[str, str]] = {
    "passed": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "inconclusive": ("?", "yellow"),
    "skipped": ("-", "dim"),
}
_WORDS = Words("ladder")


def render_begin(limit_s: float, console: Console, *, lang: Language) -> None:
    console.print(Text(_WORDS[lang]["begin"].format(s=limit_s), style="bold"))


def render_needless(why: str, console: Console, *, lang: Language) -> None:
    """Nothing is tried: "nothing" is wrong, or what is wrong is none of settings ("not-settings")."""
    console.print(Text(_WORDS[lang][why]))


def render_told(told: Told, console: Console, *, lang: Language) -> None:
    """Print what has been tried; of what begins nothing."""
    words = _WORDS[lang]
    if told.tried is not None:
        title = in_language(told.tried.title, lang)
        if told.tried.trial is not None:
            _line(title, told.tried.trial, console, lang)
        else:
            why = in_language(told.tried.skipped, lang)
            _print("skipped", f"{title}  {words['skipped'].format(why=why)}", console)
    elif told.dropping is not None:
        _line(words["again" if told.again else "alone"].format(what=what(told.dropping.choice, lang)), told.dropping, console, lang)


def render_end(outcome: Outcome, console: Console, *, lang: Language) -> None:
    """Print what follows, and what it costs."""
    works = outcome.chosen is not None
    _print("passed" if works else "failed", in_language(outcome.says, lang), console)
    for rung in outcome.rungs:
        if outcome.chosen and rung.trial is not None and rung.trial.choice == outcome.chosen:
            cost = in_language(rung.cost, lang)
            console.print(Text(f"  {_WORDS[lang]['cost'].format(cost=cost)}", style="dim"))
    if outcome.chosen and not variables(outcome):
        console.print(Text(f"  {_WORDS[lang]['only-by-run'].format(command=by_run(outcome))}", style="green"))


def _line(title: str, trial: Trial, console: Console, lang: Language) -> None:
    measured = f"  {trial.busbw_gbps:.3g} GB/s" if trial.busbw_gbps is not None else ""
    said = "" if trial.outcome == "passed" else f"  {in_language(trial.says, lang)}"
    _print(trial.outcome, f"{title}  {trial.seconds:.1f} s{measured}{said}", console)


def _print(state: str, text: str, console: Console) -> None:
    mark, style = _MARKS[state]
    for i, line in enumerate(fold(text, screen.width(console), first="  ", deeper="      ")):
        console.print(Text.assemble((mark, style), line[1:]) if i == 0 else Text(line))
