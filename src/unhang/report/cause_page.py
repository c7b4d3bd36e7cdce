"""What is known of one cause, as a page for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len

from unhang.i18n import in_language
from unhang.knowledge.cause import Cause
from unhang.report.console import fold
from unhang.report.language import LABELS, Language
from unhang.report.markdown import code
from unhang.report.terminal import says


def for_terminal(cause: Cause, lang: Language) -> str:
    """As Markdown that rich can show."""
    return "\n".join([f"# {cause.id}", "", *part(cause, lang)])


def list_for_terminal(causes: Iterable[Cause], lang: Language, width: int) -> Iterator[str]:
    """Names are never cut; titles are wrapped, below the name where there is no room beside it."""
    causes = list(causes)
    labels = LABELS[lang]
    names = max(len(c.id) for c in causes) + 2
    roles = max(cell_len(labels[c.role]) for c in causes) + 2
    beside = names + roles <= width // 2
    for c in causes:
        role = labels[c.role]
        head = f"{c.id:{names}}{role}{' ' * (roles - cell_len(role))}"
        if not beside:
            yield c.id
            head = f"  {role}  "
        yield from fold(in_language(c.title, lang), width, first=head, deeper=" " * cell_len(head))


def part(cause: Cause, lang: Language) -> Iterator[str]:
    """The page in one language, without its heading, in lines of Markdown."""
    labels = LABELS[lang]
    yield f"## {in_language(cause.title, lang)}"
    yield ""
    yield f"*{labels[cause.role]}*"
    yield ""
    if lang == "en":
        yield cause.explain[lang]
        yield ""
        for label, text in ((labels["what"], cause.what), (labels["why"], cause.why)):
            if not text:
                continue
            yield f"**{label}.** {text}"
            yield ""
    else:
        # Details are kept in English only: they quote programs. The explanation says both.
        yield f"**{labels['what']}，{labels['why']}。** {cause.explain[lang]}"
        yield ""
    if cause.remedies:
        yield f"### {labels['remedies']}"
        yield ""
        for remedy in cause.remedies:
            yield f"- {says(remedy, lang)}"
            ran = [*(f"export {k}={v}" for k, v in remedy.env.items()), *([remedy.command] if remedy.command else [])]
            if ran:
                yield ""
                yield "  ```sh"
                yield from (f"  {line}" for line in ran)
                yield "  ```"
            if remedy.verify:
                yield ""
                yield f"  {LABELS[lang]['verify']}: {code(remedy.verify)}"
        yield ""
    if cause.mistaken_for:
        yield f"### {labels['mistaken_for']}"
        yield ""
        yield from (f"- **{other}**: {how}" for other, how in cause.mistaken_for.items())
        yield ""
    if cause.hits:
        yield f"### {labels['looks']}"
        yield ""
        yield "```text"
        yield from (line.strip() for line in cause.hits)
        yield "```"
        yield ""
    if lang == "en":
        yield f"### {labels['sources']}"
        yield ""
        yield from (f"- <{source}>" for source in cause.sources)
        yield ""
