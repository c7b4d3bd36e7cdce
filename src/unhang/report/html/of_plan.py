"""A plan as one HTML file: the table of strategies, bars of where the memory goes, and each number with its formula and source."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from unhang.plan.memory_model import Term
from unhang.plan.recommend import Plan
from unhang.report import plan as texts
from unhang.report.html import without_script
from unhang.report.html.markup import Markup, element, svg, table
from unhang.report.html.sections import section
from unhang.report.language import Language
from unhang.text import Text

_WIDTH, _LEFT, _ROW = 900, 300, 26
_STRATEGIES = Text("Strategies", "策略")
_NUMBERS = Text("Where each number comes from", "每个数字的来源")
_COLUMNS = Text("part|bytes of a rank or host|formula|source", "部分|单个 rank 或主机的字节数|公式|来源")


def render(plan: Plan, lang: Language) -> str:
    """The page. It needs no script and nothing from elsewhere."""
    first, *others = [line.of(lang) for line in (texts.recommendation(plan), *texts.facts(plan), texts.preparation(plan), *plan.notes)]
    style = "open" if plan.recommended is None else "fine"
    said = (element("h1", first, id="verdict-title"), (element("p", line) for line in others))
    verdict = element("section", *said, class_=f"card verdict {style}", id="verdict", aria_labelledby="verdict-title")
    row = plan.row(None)
    numbers = [[t.name.of(lang), texts.spanned(t.low, t.high), t.formula.of(lang), t.source] for t in row.estimate.terms]
    strategies = table(texts.HEADS.of(lang).split("|"), [texts.cells(one, lang) for one in plan.rows])
    return without_script(
        first, plan.name, datetime.datetime.now().astimezone().isoformat(" ", "minutes"), verdict,
        section("strategies", _STRATEGIES.of(lang), strategies, class_="card"),
        section("memory", texts.where(plan).of(lang), _bars(texts.at_peak(row.estimate), texts.where(plan).of(lang), lang), class_="card"),
        section("numbers", _NUMBERS.of(lang), table(_COLUMNS.of(lang).split("|"), numbers), class_="card"),
        style="bench.css", lang=lang,
    )  # fmt: skip


def _bars(parts: Sequence[Term], label: str, lang: Language) -> Markup:
    """The low end in full, what the range adds in grey."""
    scale = (_WIDTH - _LEFT - 150) / max((t.high for t in parts), default=1)
    drawn = []
    for i, t in enumerate(parts):
        y, low, high = i * _ROW + 6, t.low * scale, t.high * scale
        drawn += [
            element("text", t.name.of(lang), x=str(_LEFT - 10), y=str(y + 13), class_="end"),
            element("rect", x=str(_LEFT), y=str(y), width=f"{high:.1f}", height="16", class_="margin"),
            element("rect", x=str(_LEFT), y=str(y), width=f"{low:.1f}", height="16", class_="bar"),
            element("text", texts.spanned(t.low, t.high), x=f"{_LEFT + high + 8:.1f}", y=str(y + 13)),
        ]
    return svg(len(parts) * _ROW + 10, label, drawn)
