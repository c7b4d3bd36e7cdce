"""Several hosts on a terminal: the areas, what stands against them, and a picture of all links."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from unhang.hosts.preflight import AREAS, Link, Result
from unhang.i18n import msg
from unhang.report import doctor
from unhang.report.console import Console

if TYPE_CHECKING:
    from unhang.report.language import Language

# Of a picture that fits a terminal.
_MOST = 48
_SHADES = " ░▒▓█"


def render(result: Result, console: Console, *, lang: Language) -> None:
    """Print the examination, and the picture where a link is bad or slow."""
    doctor.render(result.examination, console, lang=lang, titles=AREAS)
    if any(f.area == "links" for f in result.examination.findings):
        console.print_all(_picture(result, lang))
    if result.bad:
        console.print(msg("leave out: {hosts}", hosts=",".join(result.bad)).of(lang))


def _picture(result: Result, lang: Language) -> Iterator[Text]:
    links = {(link.sender, link.receiver): link for link in result.links}
    names = [name for name in result.hosts if any(name in edge for edge in links)]
    if len(names) > _MOST:
        return
    yield Text(msg("senders in rows, receivers in columns; full: as fast as the fastest, ✗: does not arrive").of(lang), style="dim")
    best = max((link.bytes_per_s for link in links.values() if link.bytes_per_s is not None), default=1.0)
    width = max(map(len, names))
    for a in names:
        yield Text(f"{a:>{width}} ").append(" ".join(_cell(links.get((a, b)), best) if a != b else "·" for b in names))


def _cell(link: Link | None, best: float) -> str:
    if link is None:
        return " "
    if link.failed is not None:
        return "✗"
    if link.bytes_per_s is None:
        return "?"
    # By orders of magnitude: a thousandth is as empty as a hundredth.
    share = 1 + math.log10(max(link.bytes_per_s / best, 1e-3)) / 3
    return _SHADES[max(1, min(len(_SHADES) - 1, round(share * (len(_SHADES) - 1))))]
