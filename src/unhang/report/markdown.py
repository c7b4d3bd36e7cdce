"""A verdict as Markdown: everything that it holds, to read or to paste into a bug report."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.knowledge import catalogue
from unhang.model import Finding, Remedy, Verdict
from unhang.report.language import LABELS, STANDINGS, Language
from unhang.report.terminal import ran, says, title, went_well


def render(verdict: Verdict, *, lang: Language = "en") -> str:
    """The whole verdict."""
    return "\n".join(_lines(verdict, lang)) + "\n"


def _lines(verdict: Verdict, lang: Language) -> Iterator[str]:
    labels = LABELS[lang]
    if verdict.primary is None:
        yield f"# {labels['nothing' if went_well(verdict) else 'unrecognised']}"
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
    if verdict.not_examined:
        yield f"## {labels['not_examined']}"
        yield ""
        yield from (f"- {_plain(n.what)}: {_plain(n.why)}" for n in verdict.not_examined)
        yield ""
    if verdict.inputs:
        yield f"## {labels['inputs']}"
        yield ""
        yield from (f"- `{i.source}` ({i.kind}, {i.bytes} bytes)" for i in verdict.inputs)


def _finding(finding: Finding, lang: Language) -> Iterator[str]:
    labels = LABELS[lang]
    yield f"**{finding.cause}** ({STANDINGS[lang][finding.standing]}): {_plain(finding.says)}"
    yield ""
    if finding.ranks:
        on = f" ({', '.join(finding.hosts)})" if finding.hosts else ""
        yield f"- {labels['who']}: {labels['rank' if len(finding.ranks) == 1 else 'ranks']} {', '.join(map(str, finding.ranks))}{on}"
    if finding.where is not None:
        yield f"- {labels['where']}: `{finding.where}`"
    if finding.evidence:
        yield f"- {labels['evidence']}:"
        for e in finding.evidence:
            yield f"    - `{e.source}{f':{e.line}' if e.line is not None else ''}`: {_code(e.text)}"
    if finding.remedies:
        yield f"- {labels['remedy']}:"
        for r in finding.remedies:
            yield f"    - {_remedy(r, lang)}"
    yield ""


def _remedy(remedy: Remedy, lang: Language) -> str:
    line = ran(remedy, lang)
    tried = f" ({LABELS[lang]['trial']}: {remedy.trial})" if remedy.trial != "untried" else ""
    verified = f" ({LABELS[lang]['verify']}: {_code(remedy.verify)})" if remedy.verify else ""
    return _plain(says(remedy, lang)) + (f" {_code(line)}" if line else "") + verified + tried


def _plain(text: str) -> str:
    """Text in which nothing is taken for markup."""
    return text.replace("\\", "\\\\").replace("<", "\\<").replace("*", "\\*").replace("_", "\\_").replace("\n", " ")


def _code(text: str) -> str:
    """Verbatim, however many backticks it holds itself."""
    text = text.replace("\n", " ")
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"
