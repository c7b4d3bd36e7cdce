"""A live examination on a terminal: one line for each stage as it ends, why the first one failed, and what follows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text

from unhang.i18n import Words, in_language
from unhang.model import Live, StageResult
from unhang.probes.plan import STAGES, Stage
from unhang.report import screen
from unhang.report.console import MARKS, Console, fold, marked, styled
from unhang.report.language import STANDINGS, Language
from unhang.report.terminal import offered, says

_WORDS = Words("probing")


class Progress:
    """Prints each stage as it ends; while one runs, says which on standard error if that is a terminal. A context."""

    def __init__(self, console: Console, *, lang: Language) -> None:
        self._console = console
        self._lang = lang
        self._status = screen.console(stderr=True).status("")

    def __enter__(self) -> Progress:
        if self._status.console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def begun(self, stage: Stage, world_size: int) -> None:
        self._status.update(f"{_ranks(world_size, self._lang)}: {_title(stage, self._lang)}")

    def ended(self, stage: Stage, result: StageResult) -> None:
        self._console.print_all(_lines(result, screen.width(self._console), self._lang))


def render_end(live: Live, console: Console, *, lang: Language) -> None:
    """Print what was left untested, and the conclusion."""
    untested = [r for r in live.stages if r.state == "not-tested"]
    width = screen.width(console)
    if untested:
        titles = {s.id: _title(s, lang) for s in STAGES}
        named = ", ".join(dict.fromkeys(titles[r.stage] for r in untested))
        console.print_all(styled(f"{_WORDS[lang]['not-tested']}: {named}", width, "? ", "yellow", deeper="  "))
    console.print(Text(_WORDS[lang]["python"].format(python=live.python), style="dim"))
    mark = MARKS["failed" if any(r.state == "failed" for r in live.stages) else "passed"]
    console.print_all(marked(mark, in_language(live.conclusion, lang), width, deeper="  ", style="bold"))


def _lines(result: StageResult, width: int, lang: Language) -> Iterator[Text]:
    mark, style = MARKS[result.state]
    titles = {s.id: _title(s, lang) for s in STAGES}
    column = max(map(cell_len, titles.values()))
    title = titles[result.stage]
    ranks = _ranks(result.world_size, lang)
    head = f"  {ranks}{' ' * (10 - cell_len(ranks))}{title}{' ' * (column - cell_len(title))}{result.seconds:9.3f} s  "
    said = in_language(result.says, lang)
    text = {"lacking": _WORDS[lang]["lacking"].format(why=said)}.get(result.state, said)
    if result.state == "failed" or cell_len(head) + cell_len(text) > width:
        yield Text.assemble((mark, style), head[1:].rstrip())
        yield from (Text(line) for line in fold(text, width, first=" " * 6) if text)
    else:
        yield Text.assemble((mark, style), (head[1:] + text).rstrip())
    if result.verdict is not None and result.verdict.primary is not None:
        finding = result.verdict.primary
        yield Text.assemble("      ", (finding.cause, "bold"), f"  {STANDINGS[lang][finding.standing]}")
        yield from styled(says(finding, lang), width, " " * 6)
        for remedy in finding.remedies[:2]:
            yield from offered(remedy, lang, width)
    if result.logs:
        yield Text("      " + _WORDS[lang]["logs"].format(path=result.logs), style="dim")


def _title(stage: Stage, lang: Language) -> str:
    return in_language(stage.title, lang)


def _ranks(world_size: int, lang: Language) -> str:
    return _WORDS[lang]["rank"] if world_size == 1 else _WORDS[lang]["ranks"].format(n=world_size)
