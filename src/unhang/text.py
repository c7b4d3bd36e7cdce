"""What is said to a user: English, and what it was made of, so that it can be said in another language where it is shown.

A template has {names}; what is filled in is never read as a template.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Text(str):
    """A string in English that knows its template, the values in it, and the context (gettext's msgctxt) of its translation.

    A template that no catalogue has is the same in all languages, but for its values. `edits` are patterns and what takes the place of what they
    find, in any language.
    """

    __slots__ = ("context", "edits", "template", "values")
    template: str
    context: str
    values: Mapping[str, Any]
    edits: tuple[tuple[str, str], ...]

    def __new__(
        cls,
        english: str,
        template: str | None = None,
        context: str = "",
        values: Mapping[str, Any] | None = None,
        edits: tuple[tuple[str, str], ...] = (),
    ) -> Text:
        made = super().__new__(cls, english)
        made.template = english if template is None else template
        made.context = context
        made.values = values or {}
        made.edits = edits
        return made

    def of(self, language: str) -> str:
        if language == "en":
            return str(self)
        said = translate(self.template, self.context) or self.template
        try:
            said = filled(said, self.values, language) if self.values else said
        except (KeyError, ValueError):
            # A document of another release may have other values than today's translation names.
            return str(self)
        for pattern, by in self.edits:
            said = re.sub(pattern, (by.of(language) if isinstance(by, Text) else by).replace("\\", r"\\"), said)
        return said

    def fill(self, **values: object) -> Text:
        """The template with these values in it, and in the templates that are values of it."""
        every = values | {name: value.fill(**values) if isinstance(value, Text) else value for name, value in self.values.items()}
        text = Text(filled(self.template, every), self.template, self.context, every)
        for pattern, by in self.edits:
            text = text.edited(pattern, by)
        return text

    def each(self, change: Callable[[str], str]) -> Text:
        """With a change made to each value; in English alone where a change of the whole text does more than those of the values."""
        whole = change(str(self))
        values = {n: v.each(change) if isinstance(v, Text) else change(v) if isinstance(v, str) else v for n, v in self.values.items()}
        made = Text(filled(self.template, values) if values else self.template, self.template, self.context, values)
        for pattern, by in self.edits:
            made = made.edited(pattern, by)
        return made if made == whole else same(whole)

    def edited(self, pattern: str, by: str) -> Text:
        """With another text in the place of what the pattern finds in it, in whatever language it is told."""
        found = re.sub(pattern, by.replace("\\", r"\\"), self)
        return self if found == self else Text(found, self.template, self.context, self.values, (*self.edits, (pattern, by)))

    def __add__(self, other: str) -> Text:
        return joined((self, other), NOTHING)

    def __radd__(self, other: str) -> Text:
        return joined((other, self), NOTHING)


# Patterns of `edited` that are no mere literals: those in a document that others wrote might take for ever.
OF_BYTES = r"(?<=\d) (?:bytes|字节)"
OF_DUMPS = "^(?:only flight-recorder dumps|只给了 flight recorder 转储)"
OF_RANK_0 = r"(?<!from )(?<!to )(?<!来自 )(?<!发往 )\brank 0\b"
OF_WHY = r"(?s)(?:; why is not in evidence|；从现有证据看不出原因).*"
WHOSE = "^.*?(?:: |：)"
PATTERNS = frozenset({OF_BYTES, OF_DUMPS, OF_RANK_0, OF_WHY, WHOSE})


def _translated(template: str, context: str) -> str:
    return ""


# Set where the catalogues are (`unhang.i18n`): of a template and its context the Chinese, "" for none.
translate: Callable[[str, str], str] = _translated


_WIDE = ("\uff09", "\uff0c", "\uff1b", "\uff1a", "\u3002")


def filled(template: str, values: Mapping[str, Any], language: str = "en") -> str:
    """How a value is shown may be part of its name (`unhang.knowledge.judge`)."""
    parts: list[str] = []
    for literal, name, form, conversion in string.Formatter().parse(template):
        # Chinese has no space behind the punctuation that a value may end with.
        parts.append(literal.removeprefix(" ") if parts and parts[-1].endswith(_WIDE) else literal)
        if name is not None:
            value, form = (values[key], "") if (key := f"{name}:{form}") in values else (values[name], form or "")
            value = repr(value) if conversion == "r" else value
            parts.append(value.of(language) if isinstance(value, Text) else format(value, form))
    return "".join(parts)


def msg(english: str, context: str = "", /, **values: object) -> Text:
    """A text that is written in English, with these values in it. `scripts/translations.py` finds it by this name."""
    return Text(english.format_map(values) if values else english, english, context, values)


def same(text: str) -> Text:
    """A name, a number, a line of code, which are the same in all languages; or what already knows how it is said in others."""
    return text if isinstance(text, Text) else Text(text, "{text}", "", {"text": text})


def joined(texts: Iterable[str], between: str | None = None) -> Text:
    parts: list[str] = []
    for text in texts:
        parts += [THEN if between is None else between, text] if parts else [text]
    shown = {f"part{n}": part for n, part in enumerate(parts) if part}
    return Text("".join(parts), "".join(f"{{{name}}}" for name in shown), "", shown)


def listed(texts: Iterable[str]) -> Text:
    """ "1, 2 and 3"."""
    *front, last = texts
    return joined((joined(front, COMMA), last), msg(" and ")) if front else same(last)


def size(count: float) -> str:
    """Bytes: 64 MiB, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" or count == int(count) else f"{count:.1f} {unit}"


def counted(number: int, one: str) -> str:
    """1 port, 2 ports."""
    return f"{number} {one}{'' if number == 1 else 's'}"


NOTHING = Text("")
THEN = msg("; ")
AND = msg(" and ", "clauses")
COMMA = msg(", ")
