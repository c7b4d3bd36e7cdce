"""A text in both languages that everything is told in.

A template has {names}; what is filled in is never read as a template.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """One text in both languages."""

    en: str
    zh: str

    def of(self, language: str) -> str:
        return self.zh if language == "zh" else self.en

    def fill(self, **values: object) -> Text:
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
