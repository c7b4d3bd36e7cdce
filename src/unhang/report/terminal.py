"""A verdict on a terminal: one screen that says what, who, where, why we think so, and what to do.

Never more than 25 lines at 80 columns: what is left out is counted, and the evidence gets the lines that the rest leaves. In narrower terminals
sentences take more lines, and lose nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from unhang.i18n import in_language
from unhang.knowledge import catalogue
from unhang.model import ONLY_NEWEST, Contradiction, Evidence, Finding, NotExamined, Remedy, Verdict
from unhang.report import screen
from unhang.report.console import Console, fold, styled
from unhang.report.language import LABELS, STANDINGS, Language, chosen, reason

MAX_LINES = 25
MAX_EVIDENCE = 3
MAX_EVIDENCE_LINES = 3
MAX_REMEDIES = 2
MAX_NOT_EXAMINED = 2
# How many remedies and how many things that were not examined are shown: the first that leaves room for the evidence.
_FITS = (*((MAX_REMEDIES + 1, left) for left in (4, 3, 2)), *((MAX_REMEDIES, left) for left in (4, 3, 2, 1)), (1, 2), (1, 1))
_INDENT = 2
_USUAL = 80
# What the ends of narrow lines leave empty: half a long word, and the indent.
_WASTED = 16
_EXPLAINS_ITSELF = "rank-exception"
_COLOURS = {"established": "bold red", "likely": "bold yellow", "possible": "yellow", "not-established": "magenta"}


def render(
    verdict: Verdict, console: Console, *, lang: Language | None = None, whole: bool = False, again: str = "unhang why --all", brief: bool = False
) -> None:
    """Print the first screen of a verdict; `whole` of it, however long. `again` is the command that shows the whole.

    `brief`: an exception explains itself, and its traceback stands above: a rule, then what it was, where, and what to do.
    """
    language, width = lang or chosen(None), screen.width(console)
    if brief and verdict.primary is not None and verdict.primary.cause == _EXPLAINS_ITSELF and not (verdict.contributing or verdict.contradictions):
        lines = list(_brief(verdict.primary, language, width))
    else:
        lines = _lines(verdict, language, width, whole=whole, again=again)
    console.print_all(lines)


def title(finding: Finding, lang: Language) -> str:
    """What a cause is called in a language."""
    cause = catalogue.load().get(finding.cause)
    if cause is None:
        return LABELS[lang]["unknown"]
    return in_language(cause.title, lang)


def went_well(verdict: Verdict) -> bool:
    """Nothing was found, and all of the run that was judged was looked at. Of logs alone that can never be said."""
    unseen = any(not n.why.startswith(ONLY_NEWEST) for n in verdict.not_examined)
    return verdict.primary is None and not unseen and any(i.kind == "run" for i in verdict.inputs)


def nothing(verdict: Verdict, lang: Language) -> str:
    """What is said where nothing was found."""
    if went_well(verdict):
        return LABELS[lang]["nothing"]
    return LABELS[lang]["unread" if any(n.unread for n in verdict.not_examined) else "unrecognised"]


def says(told: Remedy | Finding | Contradiction, lang: Language) -> str:
    """What something says in a language; English where it has no other."""
    return in_language(told.says, lang)


def source(evidence: Evidence) -> str:
    """Where a piece of evidence stands."""
    return f"{evidence.source}{f':{evidence.line}' if evidence.line is not None else ''}"


def stood(evidence: Evidence, lang: Language) -> str:
    """A piece of evidence: what we say of it in a language, and as it stood where the source itself speaks."""
    return in_language(evidence.text, lang)


def where(finding: Finding, lang: Language) -> str:
    """The line of a finding, "" where there is none; whether it is only where a heartbeat last saw the rank is told in the language."""
    return in_language(finding.where or "", lang)


def unseen(left: NotExamined, lang: Language) -> tuple[str, str]:
    """What was not examined, and why, in a language; English where it has no other."""
    return reason(left.what, lang), reason(left.why, lang)


def ran(remedy: Remedy) -> str:
    """What a remedy runs, with its settings; where it is only a setting, the export of it."""
    env = [f"{k}={v}" for k, v in remedy.env.items()]
    if remedy.command:
        return " ".join([*env, remedy.command])
    return " ".join(["export", *env]) if env else ""


def offered(remedy: Remedy, lang: Language, width: int) -> Iterator[Text]:
    """A remedy below a finding, and what it runs."""
    yield from styled(f"→ {says(remedy, lang)}", width, " " * 6, deeper=" " * 8)
    if line := ran(remedy):
        # One line, however long: it is there to be copied.
        yield Text(f"{' ' * 8}{'$ ' if remedy.command else ''}{line}", style="green")


def _brief(finding: Finding, lang: Language, width: int) -> Iterator[Text]:
    yield Text("─" * min(width, _USUAL), style="dim")
    yield from (line for i, line in enumerate(_head(finding, lang, width, at_most=3)) if i != 1)
    for remedy in finding.remedies[:1]:
        yield from _labelled(LABELS[lang]["remedy"], says(remedy, lang), width)


def _lines(verdict: Verdict, lang: Language, width: int, *, whole: bool, again: str) -> list[Text]:
    finding = verdict.primary
    if finding is None:
        mark, style = ("✓", "green") if went_well(verdict) else ("?", "yellow")
        said = styled(nothing(verdict, lang), width, f"{mark} ", style, deeper=" " * _INDENT)
        return [*said, *_rest(verdict, lang, width, whole=whole, unexamined=MAX_NOT_EXAMINED + 1, again=again)]
    head = list(_head(finding, lang, width, at_most=MAX_LINES if whole else 4, recovered=verdict.recovered))
    evidence = (0 if not finding.evidence else 1) + min(len(finding.evidence), MAX_EVIDENCE)
    # What has to be left out is: first what was not examined, then remedies.
    for shown, unexamined in _FITS:
        remedies = list(_remedies(finding.remedies, lang, width, whole=whole, at_most=shown, again=again))
        rest = list(_rest(verdict, lang, width, whole=whole, unexamined=unexamined, again=again))
        # Commands stay on one line, which a terminal shows over several.
        rows = sum(-(-max(1, line.cell_len) // width) for line in remedies)
        left = 10 * MAX_LINES if whole else MAX_LINES - len(head) - rows - len(rest)
        if left >= evidence:
            break
    return [*head, *_evidence(finding.evidence, lang, width, at_most=left, whole=whole), *remedies, *rest]


def _rest(verdict: Verdict, lang: Language, width: int, *, whole: bool, unexamined: int, again: str) -> Iterator[Text]:
    """At most `unexamined` things that were not; of more one fewer, for the line that counts them."""
    labels = LABELS[lang]
    finding = verdict.primary
    others = [f.cause for f in verdict.contributing]
    if others and whole:
        yield Text(labels["also"], style="bold")
        for f in verdict.contributing:
            yield from _wrapped(f"{f.cause} ({STANDINGS[lang][f.standing]}): {says(f, lang)}", width, at_most=4)
    elif others:
        yield from _labelled(labels["also"], ", ".join(dict.fromkeys(others)), width)
    if verdict.symptoms:
        yield from _labelled(labels["symptoms"], ", ".join(dict.fromkeys(f.cause for f in verdict.symptoms)), width)
    yield from _contradictions(verdict, lang, width, whole=whole)
    if verdict.not_examined:
        yield Text(labels["not_examined"], style="bold")
        count = len(verdict.not_examined)
        shown = count if whole or count <= unexamined else max(1, unexamined - 1)
        for n in sorted(verdict.not_examined, key=lambda n: not n.unread)[:shown]:
            yield from _wrapped(": ".join(unseen(n, lang)), width, at_most=MAX_LINES if whole else 2, style="yellow")
        if count > shown:
            yield Text(f"{' ' * _INDENT}{labels['more'].format(n=count - shown)}: {again}", style="yellow")
    if finding is not None and finding.cause in catalogue.load():
        yield from _labelled(labels["explain"], f"unhang explain {finding.cause}", width)


def _contradictions(verdict: Verdict, lang: Language, width: int, *, whole: bool) -> Iterator[Text]:
    """On the first screen the first of them, and how many there are besides; both statements where the `whole` is shown."""
    found = verdict.contradictions
    if not found:
        return
    count = "" if whole or len(found) == 1 else f" ({LABELS[lang]['more'].format(n=len(found) - 1)})"
    yield Text(f"{LABELS[lang]['contradictions']}{count}", style="bold magenta")
    for c in found if whole else found[:1]:
        yield from _wrapped(says(c, lang), width, at_most=MAX_LINES if whole else 2)
        if whole:
            for statement in c.statements:
                yield from (Text(line, style="dim") for line in _evidence_lines(source(statement), stood(statement, lang), width))


def _head(finding: Finding, lang: Language, width: int, *, at_most: int, recovered: bool = False) -> Iterator[Text]:
    labels = LABELS[lang]
    head = Text("✓ ", style="green") if recovered else Text("✗ ", style="bold red")
    head.append(finding.cause, style="bold")
    head.append(f"  {STANDINGS[lang][finding.standing]}", style=_COLOURS[finding.standing])
    yield head
    yield from _wrapped(title(finding, lang), width, at_most=2, style="bold")
    yield from _wrapped(says(finding, lang), width, at_most=at_most)
    if finding.ranks:
        word = labels["rank"] if len(finding.ranks) == 1 else labels["ranks"]
        on = f" {labels['on']} {', '.join(finding.hosts)}" if finding.hosts else ""
        yield from _labelled(labels["who"], f"{word} {', '.join(map(str, finding.ranks))}{on}", width)
    elif finding.hosts:
        yield from _labelled(labels["who"], ", ".join(finding.hosts), width)
    if finding.where is not None:
        yield from _labelled(labels["where"], where(finding, lang), width, style="bold cyan")


def _evidence(evidence: tuple[Evidence, ...], lang: Language, width: int, *, at_most: int, whole: bool) -> Iterator[Text]:
    """At most `at_most` lines: each piece at first gets one, then more in turn while there are any left; one piece in any case."""
    shown = evidence if whole else evidence[: min(MAX_EVIDENCE, max(1, at_most - 1))]
    if not shown:
        return
    pieces = [(source(e), _evidence_lines(source(e), stood(e, lang), width)) for e in shown]
    granted = [1] * len(pieces)
    spare = at_most - 1 - len(pieces)
    for _ in range(MAX_EVIDENCE_LINES - 1):
        for i, (_, lines) in enumerate(pieces):
            if spare > 0 and granted[i] < len(lines):
                granted[i] += 1
                spare -= 1
    yield Text(LABELS[lang]["evidence"], style="bold")
    for (begin, lines), count in zip(pieces, granted, strict=True):
        kept = lines[:count]
        if len(lines) > count:
            kept[-1] = _cut(kept[-1] + " …", width)
        for i, line in enumerate(kept):
            text = Text(line)
            if i == 0:
                text.stylize("dim", _INDENT, _INDENT + len(begin))
            yield text


def _evidence_lines(begin: str, text: str, width: int) -> list[str]:
    first, deeper = " " * _INDENT, " " * (2 * _INDENT)
    flat = " ".join(text.split())
    if cell_len(begin) > width // 2:
        return fold(f"{begin} {flat}", width, first=first, deeper=deeper)
    return fold(flat, width, first=f"{first}{begin}  ", deeper=deeper)


def _remedies(remedies: tuple[Remedy, ...], lang: Language, width: int, *, whole: bool, at_most: int, again: str) -> Iterator[Text]:
    """At most `at_most`, and how many there are besides."""
    if not remedies:
        return
    yield Text(LABELS[lang]["remedy"], style="bold")
    for r in remedies if whole else remedies[:at_most]:
        yield from _wrapped(says(r, lang), width, at_most=MAX_LINES if whole else 5)
        if command := ran(r):
            yield Text(f"{' ' * _INDENT}{'$ ' if r.command else ''}{command}", style="green")
        if whole and r.verify:
            yield Text(f"{' ' * _INDENT}{LABELS[lang]['verify']}: {r.verify}", style="dim")
    if not whole and len(remedies) > at_most:
        yield Text(f"{' ' * _INDENT}{LABELS[lang]['more'].format(n=len(remedies) - at_most)}: {again}")


def _wrapped(text: str, width: int, *, at_most: int, style: str = "") -> Iterator[Text]:
    """At most so many lines at 80 columns; in narrower ones as many more as the same words take."""
    yield from (Text(line, style=style) for line in _bounded(fold(text, width, first=" " * _INDENT), width, at_most))


def _labelled(label: str, text: str, width: int, *, style: str = "") -> list[Text]:
    indent = " " * max(14, cell_len(label) + 1)
    lines = []
    for i, line in enumerate(_bounded(fold(text, width, first=indent), width, 2)):
        lines.append(Text.assemble((label if i == 0 else "", "bold"), line[cell_len(label) if i == 0 else 0 :]))
        lines[-1].stylize(style, len(lines[-1]) - len(line.lstrip()))
    return lines


def _bounded(lines: list[str], width: int, at_most: int) -> list[str]:
    at_most = at_most if width >= _USUAL else -(-at_most * _USUAL // (width - _WASTED))
    return lines if len(lines) <= at_most else [*lines[: at_most - 1], _cut(lines[at_most - 1] + " …", width)]


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"
