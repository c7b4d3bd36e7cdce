"""Tables and SVG charts of pages without a script."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.report.html.markup import Child, Markup, element

WIDTH = 900


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """The first cell of a row is its head."""
    head = element("tr", (element("th", text, scope="col") for text in heads))
    body = (element("tr", element("th", row[0], scope="row"), (element("td", text) for text in row[1:])) for row in rows)
    return element("div", element("table", element("thead", head), element("tbody", body)), class_="scroll")


def svg(height: float, label: str, drawn: Sequence[Child]) -> Markup:
    """A chart WIDTH units wide that scales with the page; `label` is for those who do not see it."""
    return element("div", element("svg", *drawn, viewBox=f"0 0 {WIDTH} {number(height)}", role="img", aria_label=label), class_="scroll")


def draw(tag: str, class_: str, *children: Child, **numbers: float) -> Markup:
    """An element of a chart."""
    return element(tag, *children, class_=class_, **{name: number(value) for name, value in numbers.items()})


def number(value: float) -> str:
    """For an attribute, to a tenth of a unit."""
    return f"{value:.1f}".removesuffix(".0")
