"""What is known of one cause, as a page for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len

from unhang.i18n import in_language
from unhang.knowledge.cause import Cause
from unhang.report.console import fold
from unhang.report.language import LABELS, Language
from unhang.report.markdown import filled


def for_terminal(cause: Cause, lang: Language) -> str:
    """As Markdown that rich can show."""
    return f"# {cause.id}\n\n{part(cause, lang)}"


def part(cause: Cause, lang: Language) -> str:
    """The page in one language, without its heading."""
    return filled("cause", lang, cause=cause, labels=LABELS[lang])


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
