"""A verdict on a terminal: one screen that says what, who, where, why we think so, and what to do.

Never more than 25 lines at 80 columns: long sentences are cut, and what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from unhang.knowledge import catalogue
from unhang.model import Evidence, Finding, Remedy, Verdict
from unhang.report.language import LABELS, STANDINGS, Language, chosen

MAX_EVIDENCE = 3
MAX_REMEDIES = 2
MAX_NOT_EXAMINED = 2
_INDENT = 2
_COLOURS = {"established": "bold red", "likely": "bold yellow", "possible": "yellow", "not-established": "magenta"}


def render(verdict: Verdict, console: Console, *, lang: Language | None = None) -> None:
    """Print the first screen of a verdict."""
    language = lang or chosen(None)
    width = min(max(console.width, 40), 140)
    for line in _lines(verdict, language, width):
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True, highlight=False)


def title(finding: Finding, lang: Language) -> str:
    """What a cause is called in a language."""
    cause = catalogue.load().get(finding.cause)
    if cause is None:
        return LABELS[lang]["unknown"]
    return cause.title_zh if lang == "zh" else cause.title


def _lines(verdict: Verdict, lang: Language, width: int) -> Iterator[Text]:
    labels = LABELS[lang]
    finding = verdict.primary
    if finding is None:
        yield Text(f"✓ {labels['nothing']}", style="green")
    else:
        yield from _head(finding, lang, width)
        yield from _evidence(finding.evidence, labels["evidence"], width)
        yield from _remedies(finding.remedies, labels["remedy"], width)
    others = [f.cause for f in verdict.contributing]
    if others:
        yield _labelled(labels["also"], ", ".join(dict.fromkeys(others)), width)
    if verdict.symptoms:
        yield _labelled(labels["symptoms"], ", ".join(dict.fromkeys(f.cause for f in verdict.symptoms)), width)
    if verdict.not_examined:
        yield Text(labels["not_examined"], style="bold")
        for n in verdict.not_examined[:MAX_NOT_EXAMINED]:
            yield Text(_cut(f"{' ' * _INDENT}{n.what}: {n.why}", width), style="yellow")
        rest = len(verdict.not_examined) - MAX_NOT_EXAMINED
        if rest > 0:
            yield Text(" " * _INDENT + labels["more"].format(n=rest), style="yellow")
    if finding is not None and finding.cause in catalogue.load():
        yield _labelled(labels["explain"], f"unhang explain {finding.cause}", width)


def _head(finding: Finding, lang: Language, width: int) -> Iterator[Text]:
    labels = LABELS[lang]
    head = Text("✗ ", style="bold red")
    head.append(finding.cause, style="bold")
    head.append(f"  {STANDINGS[lang][finding.standing]}", style=_COLOURS[finding.standing])
    yield head
    yield Text(_cut(f"{' ' * _INDENT}{title(finding, lang)}", width), style="bold")
    yield from _wrapped(finding.says, width, at_most=4)
    if finding.ranks:
        word = labels["rank"] if len(finding.ranks) == 1 else labels["ranks"]
        on = f" {labels['on']} {', '.join(finding.hosts)}" if finding.hosts else ""
        yield _labelled(labels["who"], f"{word} {', '.join(map(str, finding.ranks))}{on}", width)
    if finding.where is not None:
        yield _labelled(labels["where"], finding.where, width, style="bold cyan")


def _evidence(evidence: tuple[Evidence, ...], label: str, width: int) -> Iterator[Text]:
    if not evidence:
        return
    yield Text(label, style="bold")
    for e in evidence[:MAX_EVIDENCE]:
        line = Text(" " * _INDENT)
        line.append(f"{e.source}{f':{e.line}' if e.line is not None else ''}", style="dim")
        line.append(" " + e.text.replace("\n", " "))
        line.truncate(width, overflow="ellipsis")
        yield line


def _remedies(remedies: tuple[Remedy, ...], label: str, width: int) -> Iterator[Text]:
    if not remedies:
        return
    yield Text(label, style="bold")
    for r in remedies[:MAX_REMEDIES]:
        yield from _wrapped(r.says, width, at_most=2)
        ran = [*(f"{k}={v}" for k, v in r.env.items()), *([r.command] if r.command else [])]
        if ran:
            yield Text(_cut(f"{' ' * _INDENT}$ {' '.join(ran)}", width), style="green")


def _wrapped(text: str, width: int, *, at_most: int) -> Iterator[Text]:
    lines = wrap(text, width=width - _INDENT, break_long_words=True, break_on_hyphens=False) or [""]
    if len(lines) > at_most:
        lines = [*lines[: at_most - 1], lines[at_most - 1] + " …"]
    for line in lines:
        yield Text(_cut(" " * _INDENT + line, width))


def _labelled(label: str, text: str, width: int, *, style: str = "") -> Text:
    line = Text(label, style="bold")
    line.append(" " * max(1, 14 - cell_len(label)))
    line.append(text, style=style)
    line.truncate(width, overflow="ellipsis")
    return line


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"
