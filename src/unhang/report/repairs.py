"""Repairs on a terminal: what would be done, and what was done or refused, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from rich.text import Text

from unhang.facts.units import size
from unhang.i18n import Words
from unhang.remedies import settings_file
from unhang.remedies.cleaning import Outcome, Step
from unhang.report import screen
from unhang.report.console import Console, fold
from unhang.report.language import Language

_SHOWN = 20
_MARKS: Mapping[Outcome, tuple[str, str]] = {"proposed": ("→", "green"), "left": ("-", "dim"), "removed": ("✓", "green"), "refused": ("!", "yellow")}
_WORDS = Words("repairs", "repairs")


def question(id: str, lang: Language) -> str:
    return _WORDS[lang][id]


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


def render_declined(question: Literal["remove", "write"], console: Console, *, lang: Language) -> None:
    _print(console, [Text(_WORDS[lang]["not-removed" if question == "remove" else "not-written"])])


def render_nobody_asked(console: Console, *, lang: Language) -> None:
    _print(console, [Text(_WORDS[lang]["nobody-asked"], style="yellow")])


def render_written(file: str, why: str, console: Console, *, lang: Language) -> None:
    _print(console, [Text(_WORDS[lang]["written"].format(file=file)) if file else Text(why, style="yellow")])


def _print(console: Console, lines: Iterable[Text]) -> None:
    for line in lines:
        console.print(line)


def _steps(steps: Sequence[Step], console: Console, lang: Language) -> Iterator[Text]:
    words = _WORDS[lang]
    for step in steps[:_SHOWN]:
        mark, style = _MARKS[step.outcome]
        said = words["segment"].format(path=step.path, size=size(step.size_bytes), owner=step.owner, age=_age(step.age_s))
        for i, line in enumerate(fold(said + (f"; {step.why}" if step.why else ""), screen.width(console), first=f"  {mark} ", deeper="      ")):
            text = Text(line)
            if i == 0:
                text.stylize(style, 2, 3)
            yield text
    if len(steps) > _SHOWN:
        yield Text(f"    {words['more'].format(n=len(steps) - _SHOWN)}", style="dim")


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"
