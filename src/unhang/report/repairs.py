"""Repairs on a terminal: what would be done, and what was done or refused, with the reason; changes of settings, a line for each as it is tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from unhang.i18n import Words, in_language
from unhang.model import Outcome, Trial
from unhang.remedies import settings_file
from unhang.remedies.cleaning import Step
from unhang.remedies.ladder import Told
from unhang.report import screen
from unhang.report.console import MARKS, Console, marked
from unhang.report.ladder_report import by_run, variables, what
from unhang.report.language import Language
from unhang.text import size

_SHOWN = 20
_WORDS = Words("repairs", "repairs")


def render_preview(steps: Sequence[Step], wanted: Sequence[settings_file.Setting], console: Console, *, lang: Language) -> None:
    """Print what would be removed and written, and what is left as it is."""
    words = _WORDS[lang]
    ours = [s for s in steps if s.outcome == "proposed"]
    if not ours and not wanted:
        _print(console, [Text(words["nothing"], style="bold")])
    if ours:
        head = words["would-remove-one" if len(ours) == 1 else "would-remove"].format(n=len(ours), size=size(sum(s.size_bytes for s in ours)))
        _print(console, [Text(head, style="bold"), *_steps(ours, console, lang)])
    _print(console, _steps([s for s in steps if s.outcome == "left"], console, lang))
    if wanted:
        lines = [Text(f"  {line}", style="green") for line in settings_file.text(wanted).splitlines()]
        _print(console, [Text(words["would-write"].format(file=settings_file.FILE), style="bold"), *lines])


def render_outcome(steps: Sequence[Step], console: Console, *, lang: Language) -> None:
    """Print what was removed, and what was refused and why."""
    tried = [s for s in steps if s.outcome != "left"]
    gone = [s for s in tried if s.outcome == "removed"]
    head = _WORDS[lang]["removed"].format(n=len(gone), all=len(tried), size=size(sum(s.size_bytes for s in gone)))
    _print(console, [Text(head, style="bold"), *_steps([s for s in tried if s.outcome == "refused"], console, lang)])


def render_refusal(why: str, console: Console, *, lang: Language) -> None:
    console.print(why, style="yellow")


def word(id: str, *, lang: Language, **values: object) -> str:
    """A question, or what is said where there is nothing more to it."""
    return _WORDS[lang][id].format(**values)


def _print(console: Console, lines: Iterable[Text]) -> None:
    console.print_all(lines)


def _steps(steps: Sequence[Step], console: Console, lang: Language) -> Iterator[Text]:
    words = _WORDS[lang]
    for step in steps[:_SHOWN]:
        said = words["segment"].format(path=step.path, size=size(step.size_bytes), owner=step.owner, age=_age(step.age_s))
        why = f"; {step.why}" if step.why else ""
        yield from marked(MARKS[step.outcome], said + why, screen.width(console), indent="  ", deeper="      ")
    if len(steps) > _SHOWN:
        yield Text(f"    {words['more'].format(n=len(steps) - _SHOWN)}", style="dim")


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def render_told(told: Told, console: Console, *, lang: Language) -> None:
    """Print what has been tried; of what begins nothing."""
    words = _WORDS[lang]
    if told.tried is not None:
        title = in_language(told.tried.title, lang)
        if told.tried.trial is not None:
            _line(title, told.tried.trial, console, lang)
        else:
            why = in_language(told.tried.skipped, lang)
            _tried("skipped", f"{title}  {words['skipped'].format(why=why)}", console)
    elif told.dropping is not None:
        _line(words["again" if told.again else "alone"].format(what=what(told.dropping.choice, lang)), told.dropping, console, lang)


def render_end(outcome: Outcome, console: Console, *, lang: Language) -> None:
    """Print what follows, and what it costs."""
    works = outcome.chosen is not None
    _tried("passed" if works else "failed", in_language(outcome.says, lang), console)
    for rung in outcome.rungs:
        if outcome.chosen and rung.trial is not None and rung.trial.choice == outcome.chosen:
            cost = in_language(rung.cost, lang)
            console.print(Text(f"  {_WORDS[lang]['cost'].format(cost=cost)}", style="dim"))
    if outcome.chosen and not variables(outcome):
        console.print(Text(f"  {_WORDS[lang]['only-by-run'].format(command=by_run(outcome))}", style="green"))


def _line(title: str, trial: Trial, console: Console, lang: Language) -> None:
    measured = f"  {trial.busbw_gbps:.3g} GB/s" if trial.busbw_gbps is not None else ""
    said = "" if trial.outcome == "passed" else f"  {in_language(trial.says, lang)}"
    _tried(trial.outcome, f"{title}  {trial.seconds:.1f} s{measured}{said}", console)


def _tried(outcome: str, text: str, console: Console) -> None:
    _print(console, marked(MARKS[outcome], text, screen.width(console), deeper="      "))
