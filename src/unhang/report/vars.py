"""Variables on a terminal: one line for each, what it is, who reads it and by what that is known, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rich.text import Text as Shown

from unhang.diagnosis.redact import redact
from unhang.i18n import Words, chinese
from unhang.model import Severity
from unhang.printable import escape
from unhang.report import screen
from unhang.report.console import MARKS, Console, marked, styled
from unhang.report.language import Language
from unhang.report.terminal import unseen
from unhang.variables.examine import Examined
from unhang.variables.judge import Judged
from unhang.variables.known import CONTEXT
from unhang.variables.readers import Reader

_ORDER: tuple[Severity, ...] = ("error", "warning", "note")
_WORDS = Words("vars")


def redacted(examined: Examined) -> Examined:
    """Without credentials, and without characters that act on a terminal."""
    return replace(examined, variables=tuple(_redacted(v) for v in examined.variables))


def _redacted(one: Judged) -> Judged:
    value = None if one.value is None else _clean(f"{one.name}={one.value}").partition("=")[2]
    remarks = tuple(replace(r, says=r.says.each(_clean)) for r in one.remarks)
    return replace(one, name=_clean(one.name), value=value, source=_clean(one.source), remarks=remarks)


def _clean(text: str) -> str:
    return redact(escape(text))


def render(examined: Examined, console: Console, *, lang: Language) -> None:
    """Print all; `examined` is redacted already."""
    console.print_all(_lines(examined, screen.width(console), lang))


def _lines(examined: Examined, width: int, lang: Language) -> Iterator[Shown]:
    words = _WORDS[lang]
    libraries = ", ".join(f"{name} {version or words['release']}" for name, version in examined.libraries.items())
    yield from styled(words["libraries"].format(libraries=libraries) if libraries else words["none"], width, "", style="dim")
    for one in examined.variables:
        yield from _variable(one, width, lang)
    for missed in examined.not_examined:
        yield from styled(f"{words['not_examined']}: {': '.join(unseen(missed, lang))}", width, "", style="yellow")
    if not examined.variables:
        yield Shown(words["nothing"])
        return
    counts = {s: sum(r.severity == s for v in examined.variables for r in v.remarks) for s in _ORDER}
    yield from styled(words["totals"].format(n=len(examined.variables), **counts), width, "", style="bold")


def _variable(one: Judged, width: int, lang: Language) -> Iterator[Shown]:
    worst = min((r.severity for r in one.remarks), key=_ORDER.index, default=None)
    mark, style = MARKS[worst or (one.state if one.state in ("unknown", "not-here") else "ok")]
    value = f"={one.value}" if one.value is not None else f" {_WORDS[lang]['hidden']}" if one.source else ""
    source = _WORDS[lang]["environment"] if one.source == "environment" else one.source
    at = f"  {source}{f':{one.line}' if one.line else ''}" if source else ""
    yield Shown.assemble((mark, style), " ", (one.name, "bold"), value, (at, "dim"))
    facts = "; ".join(_facts(one, lang))
    if one.what is not None:
        yield from styled(one.what.of(lang) + (f" ({facts})" if facts else ""), width, "    ", style="dim")
    # A name that does not exist is the answer: that somebody's own program may read it comes behind.
    is_misspelt = one.state == "unknown" and any(r.kind == "typo" for r in one.remarks)
    for who in _who(replace(one, state="not-read") if is_misspelt else one, lang):
        yield from styled(who, width, "    ", style="dim")
    for remark in one.remarks:
        yield from marked(MARKS[remark.severity], remark.says.of(lang), width, indent="    ", deeper="      ")
    if is_misspelt:
        yield from styled(_WORDS[lang]["unknown-as-it-is"], width, "    ", style="dim")


def _facts(one: Judged, lang: Language) -> Iterator[str]:
    for name in ("default", "values", "since", "removed"):
        if text := getattr(one, name):
            yield _WORDS[lang][name].format(**{name: (chinese(text, CONTEXT) if lang == "zh" else "") or text})


def _who(one: Judged, lang: Language) -> Iterator[str]:
    words = _WORDS[lang]
    for answer in ("reads", "logs", "in-binary"):
        readers = [r for r in one.readers if r.answer == answer]
        if readers and (answer == "reads" or one.state != "read"):
            yield words[answer].format(who=", ".join(_reader(r, words) for r in readers))
    if one.state in ("not-here", "foreign", "unknown"):
        yield words[one.state]


def _reader(reader: Reader, words: Mapping[str, str]) -> str:
    by = words[reader.how].format(where=reader.where.rpartition("/")[2])
    return f"{f'{reader.library} {reader.version}'.strip()} ({by})"
