"""unhang run --fallback ask: the ways that work here, ranked, each with what was measured, for one of them to be chosen."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.i18n import Words
from unhang.report.ladder_report import Way, best_of, spread, stars_of, what
from unhang.report.language import Language

_WORDS = Words("ladder-choice")


def menu(found: Sequence[Way], *, lang: Language) -> str:
    """Numbered from 1, which is what an empty answer takes; 0 changes nothing."""
    words = _WORDS[lang]
    best = best_of(found)
    lines = [words["head"]]
    for number, way in enumerate(found, 1):
        speed = way.busbw_gbps
        measured = spread(way, lang) if speed is not None else words["not-measured"]
        if way.step_s is not None:
            measured += words["step"].format(s=way.step_s)
        stars = f"{stars_of(speed / best) if speed is not None and best else '-' * 5} {stars_of(way.passed / len(way.trials))}"
        lines.append(f"  {number}) {stars}  {what(way.trials[0].choice, lang)}  ({way.title}): {measured}")
        if way.cost:
            lines.append(f"     {words['cost'].format(cost=way.cost)}")
    if best is None and any(way.speeds_gbps for way in found):
        lines.append(f"  {words['varies']}")
    lines.append(f"  0) {words['none']}")
    return "\n".join(lines)


def question(*, lang: Language) -> str:
    return _WORDS[lang]["ask"]


def read(answer: str, most: int) -> int | None:
    """The number that was chosen; None where it is none of them."""
    text = answer.strip()
    if not text:
        return 1
    return int(text) if text.isdecimal() and int(text) <= most else None


def not_understood(most: int, *, lang: Language) -> str:
    return _WORDS[lang]["again"].format(most=most)
