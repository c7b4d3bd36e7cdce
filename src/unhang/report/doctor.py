"""An examination on a terminal: one line for each area, details only where something is wrong, and totals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text

from unhang.diagnosis.doctor import SEVERITIES
from unhang.facts import snapshot
from unhang.i18n import Words, in_language
from unhang.model import Area, Difference, Examination, HostFinding
from unhang.report import screen
from unhang.report.console import MARKS, Console, fold, styled
from unhang.report.language import Language, unseen
from unhang.report.terminal import offered
from unhang.text import Text as Said

_OURS = "unhang doctor --fix"
_WORDS = Words("doctor")


def render(
    examination: Examination,
    console: Console,
    *,
    lang: Language,
    details: bool = False,
    elsewhere: bool = False,
    titles: Mapping[str, Said] | None = None,
) -> None:
    """Print all areas, each with what stands against it, and in detail if asked for; whose and when first, where that is not here and now.

    `titles` are those of areas that are no subjects of a machine.
    """
    if elsewhere:
        console.print(_WORDS[lang]["taken"].format(host=examination.host, taken=examination.taken))
    console.print_all(_lines(examination, screen.width(console), lang, details, titles or {}))


def render_differences(differences: Sequence[Difference], a: str, b: str, console: Console, *, lang: Language) -> None:
    """Print what differs, area by area."""
    width = screen.width(console)
    if not differences:
        console.print(_WORDS[lang]["same"].format(a=a, b=b))
    titles = {s.id: in_language(s.title, lang) for s in snapshot.subjects().values()}
    for area in dict.fromkeys(d.area for d in differences):
        console.print(Text(titles[area], style="bold"))
        for d in (d for d in differences if d.area == area):
            if d.path:
                console.print(Text(f"  {d.path}", style="cyan"))
            for name, value in ((a, d.a), (b, d.b)):
                console.print_all(fold(f"{name}: {value}", width, first="    ", deeper="      "))


def _lines(examination: Examination, width: int, lang: Language, details: bool, named: Mapping[str, Said]) -> Iterator[Text]:
    titles = {id: title.of(lang) for id, title in named.items()} or {s.id: in_language(s.title, lang) for s in snapshot.subjects().values()}
    column = max((cell_len(titles[a.id]) for a in examination.areas), default=0)
    for area in examination.areas:
        against = [f for f in examination.findings if f.area == area.id]
        yield from _area(area, titles[area.id], column, against, width, lang)
        # Tables: folded they would be no help to anybody.
        yield from (Text(f"    {line}") for line in (area.details if details else ()))
        for finding in against:
            yield from _finding(finding, width, lang)
    for missed in examination.not_examined:
        yield from (Text(t, style="yellow") for t in fold(f"{_WORDS[lang]['unread']}: {missed.what}: {unseen(missed.why, lang)}", width))
    states = [a.state for a in examination.areas]
    counts = {s: sum(f.severity == s for f in examination.findings) for s in SEVERITIES}
    totals = _WORDS[lang]["totals"].format(
        **counts, ok=states.count("ok") + states.count("noted"), **{s: states.count(s) for s in ("unknown", "absent")}
    )
    yield from (Text(t, style="bold") for t in fold(totals, width))


def _area(area: Area, title: str, column: int, against: list[HostFinding], width: int, lang: Language) -> Iterator[Text]:
    # What is only worth knowing is no fault, and no reason to be silent about it either.
    mark, style = MARKS[min((f.severity for f in against), key=SEVERITIES.index) if against and area.state in ("found", "noted") else area.state]
    said = unseen(area.summary, lang)
    if area.unread:
        said += _WORDS[lang]["besides"].format(what=_WORDS[lang]["comma"].join(unseen(what, lang) for what in area.unread))
    indent = " " * (column + 4)
    if 2 * len(indent) > width:
        # Beside the titles there would be room for a word or two.
        yield Text.assemble((mark, style), " ", (title, "bold"))
        yield from styled(said, width, " " * 4)
        return
    for i, line in enumerate(fold(said, width, first=indent)):
        head = f"{mark} {title}{' ' * (column - cell_len(title) + 2)}" if i == 0 else indent
        text = Text(head + line[len(indent) :])
        if i == 0:
            text.stylize(style, 0, 1)
            text.stylize("bold", 2, 2 + len(title))
        yield text


def _finding(finding: HostFinding, width: int, lang: Language) -> Iterator[Text]:
    mark, style = MARKS[finding.severity]
    yield Text.assemble("    ", (mark, style), " ", (finding.cause, "bold"))
    told = in_language(finding.says, lang)
    leads_to = in_language(finding.leads_to, lang)
    yield from styled(told, width, " " * 6)
    yield from styled(f"{_WORDS[lang]['leads_to']}: {leads_to}", width, " " * 6, "dim", deeper=" " * 8)
    # A note asks for nothing; what we can do ourselves is offered.
    for remedy in (r for r in finding.remedies if finding.severity != "note" or (r.command or "").startswith(_OURS)):
        yield from offered(remedy, lang, width)
