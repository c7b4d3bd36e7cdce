"""Sentences in both languages, put together from pieces that have both: what a run or an answer told, said in numbers of that run.

A piece is a template with {names}; what is filled in is of the run, and is never read as a template. Names of ranks, calls, groups, files and
variables are the same in both languages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from unhang.knowledge import words
from unhang.model import Finding


@dataclass(frozen=True)
class Text:
    """One text in both languages."""

    en: str
    zh: str

    def of(self, language: str) -> str:
        return self.zh if language == "zh" else self.en

    def fill(self, **values: Text | str | int) -> Text:
        """The template with these values in it, each in its language."""
        sides = [{n: v.of(lang) if isinstance(v, Text) else v for n, v in values.items()} for lang in ("en", "zh")]
        return Text(self.en.format_map(sides[0]), self.zh.format_map(sides[1]))

    def __add__(self, other: Text) -> Text:
        return Text(self.en + other.en, self.zh + other.zh)

    def __bool__(self) -> bool:
        return bool(self.en)


NOTHING = Text("", "")
THEN = Text("; ", "；")
AND = Text(" and ", "，")
COMMA = Text(", ", "、")


def same(text: str) -> Text:
    """What is the same in both languages: a name, a number, a line of code."""
    return Text(text, text)


def joined(texts: Iterable[Text], between: Text = THEN) -> Text:
    found = tuple(texts)
    return Text(between.en.join(t.en for t in found), between.zh.join(t.zh for t in found))


def ranks(numbers: Iterable[int]) -> Text:
    """ "ranks 0 to 6", "rank 0 到 6"."""
    found = sorted(set(numbers))
    return Text(words.ranks(found), _ranks_zh(found))


def possible(causes: Sequence[str]) -> Text:
    """ " (possible: dns-resolution, network-blocked)"."""
    return Text(" (possible: {ids})", "（可能是：{ids}）").fill(ids=", ".join(causes))


def continued(finding: Finding, more: Text) -> Finding:
    """The finding with something put behind what it says, in each language that it has."""
    return replace(finding, says=finding.says + more.en, says_zh=finding.says_zh and finding.says_zh + more.zh)


def _ranks_zh(found: Sequence[int]) -> str:
    if not found:
        return "没有任何 rank"
    if len(found) > 2 and list(found) == list(range(found[0], found[-1] + 1)):
        return f"rank {found[0]} 到 {found[-1]}"
    shown = "、".join(map(str, found[:8]))
    return f"rank {shown} 等 {len(found)} 个" if len(found) > 8 else f"rank {shown}"
