"""A verdict as Markdown: everything that it holds, to read or to paste into a bug report."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unhang.i18n import in_language
from unhang.knowledge import catalogue
from unhang.model import Evidence, Finding, Remedy, Verdict
from unhang.printable import strip_unprintable
from unhang.report.language import LABELS, STANDINGS, Language
from unhang.report.terminal import nothing, ran, says, source, stood, title, unseen, where


def render(verdict: Verdict, *, lang: Language = "en") -> str:
    """The whole verdict."""
    return strip_unprintable("\n".join(_lines(verdict, lang))) + "\n"


def _lines(verdict: Verdict, lang: Language) -> Iterator[str]:
    labels = LABELS[lang]
    if verdict.primary is None:
        yield f"# {nothing(verdict, lang)}"
    else:
        yield f"# {title(verdict.primary, lang)}"
        yield ""
        yield from _finding(verdict.primary, lang)
        cause = catalogue.load().get(verdict.primary.cause)
        if cause is not None:
            yield f"## {labels['what']}"
            yield ""
            yield cause.explain[lang]
            yield ""
    for label, findings in ((labels["also"], verdict.contributing), (labels["symptoms"], verdict.symptoms)):
        if findings:
            yield f"## {label}"
            yield ""
            for finding in findings:
                yield from _finding(finding, lang)
    if verdict.contradictions:
        yield f"## {labels['contradictions']}"
        yield ""
        for c in verdict.contradictions:
            yield f"- {_plain(says(c, lang))}"
            yield from (f"    - {_stands(e, lang)}" for e in c.statements)
        yield ""
    if verdict.not_examined:
        yield f"## {labels['not_examined']}"
        yield ""
        yield from (f"- {': '.join(map(_plain, unseen(n, lang)))}" for n in verdict.not_examined)
        yield ""
    if verdict.inputs:
        yield f"## {labels['inputs']}"
        yield ""
        yield from (f"- {code(i.source)} ({i.kind}, {i.bytes} bytes)" for i in verdict.inputs)


def _finding(finding: Finding, lang: Language) -> Iterator[str]:
    labels = LABELS[lang]
    yield f"**{finding.cause}** ({STANDINGS[lang][finding.standing]}): {_plain(says(finding, lang))}"
    yield ""
    if finding.ranks:
        on = f" ({', '.join(map(code, finding.hosts))})" if finding.hosts else ""
        yield f"- {labels['who']}: {labels['rank' if len(finding.ranks) == 1 else 'ranks']} {', '.join(map(str, finding.ranks))}{on}"
    elif finding.hosts:
        yield f"- {labels['who']}: {', '.join(map(code, finding.hosts))}"
    if finding.where is not None:
        yield f"- {labels['where']}: {code(where(finding, lang))}"
    if finding.evidence:
        yield f"- {labels['evidence']}:"
        yield from (f"    - {_stands(e, lang)}" for e in finding.evidence)
    if finding.remedies:
        yield f"- {labels['remedy']}:"
        for r in finding.remedies:
            yield f"    - {_remedy(r, lang)}"
    yield ""


def _stands(evidence: Evidence, lang: Language) -> str:
    return f"{code(source(evidence))}: {code(stood(evidence, lang))}"


def _remedy(remedy: Remedy, lang: Language) -> str:
    line = ran(remedy)
    tried = f" ({LABELS[lang]['trial']}: {remedy.trial})" if remedy.trial != "untried" else ""
    verified = f" ({LABELS[lang]['verify']}: {code(remedy.verify)})" if remedy.verify else ""
    return _plain(says(remedy, lang)) + (f" {code(line)}" if line else "") + verified + tried


# Hosts of issues link these after the markup was read, so that no backslash keeps them from it: people, issues and addresses. Code is left alone.
_LINKED = re.compile(r"@|#\d|://|www\.", re.IGNORECASE)
_MARKUP = re.compile(r"[\\`*_\[\]<>!|~&#$]")
# What makes a list or a rule of the line that it begins.
_BEGINNING = re.compile(r"^(\d{0,9})([-+=.)])")


def _plain(text: str) -> str:
    """Text in which nothing is taken for markup; words that would become links stand as code."""
    words = (code(w) if _LINKED.search(w) else _MARKUP.sub(r"\\\g<0>", w) for w in text.split())
    return _BEGINNING.sub(r"\1\\\2", " ".join(words))


def code(text: str) -> str:
    """Verbatim, however many backticks it holds itself."""
    text = " ".join(text.split("\n"))
    if not text:
        return ""
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def cell(text: str) -> str:
    """Text of one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def filled(template: str, lang: Language, **values: object) -> str:
    """A template of this room, which ends in one line feed. Filters are `told`, which says a text in the language, and functions among the values."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(loader=PackageLoader("unhang.report", ""), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters.update(code=code, cell=cell, told=lambda said: in_language(said, lang))
    made.filters.update({name: value for name, value in values.items() if callable(value)})
    return made.get_template(f"{template}.md.j2").render(lang=lang, **values).rstrip("\n") + "\n"
