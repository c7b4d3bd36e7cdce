"""Translations as gettext keeps them: a message is named by its English text, and `locale/` holds the others."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TypeVar

from unhang import text
from unhang.text import AND, COMMA, NOTHING, THEN, Text, joined, listed, msg, same

__all__ = ["AND", "COMMA", "NOTHING", "THEN", "Labels", "Text", "chinese", "in_language", "joined", "listed", "msg", "same", "sentences"]

K = TypeVar("K", bound=str)


def _texts() -> Mapping[str, str]:
    try:
        from unhang import data
    except ImportError:
        # Facts that were sent to another host are worded there in English alone.
        return {}
    texts: Mapping[str, str] = data.load()["zh_CN"]
    return texts


def chinese(english: str, context: str = "") -> str:
    """Return the Chinese text; "" if there is none. `context` (msgctxt) separates two meanings of one English text."""
    texts = _texts()
    return (context and texts.get(f"{context}\4{english}")) or texts.get(english, "")


text.translate = chinese


def in_language(said: str, language: str) -> str:
    """Return a text in a language. What a program or a file of the user says is returned unchanged."""
    return said.of(language) if isinstance(said, Text) else said


@functools.cache
def sentences(context: str) -> Mapping[str, str]:
    """Return everything of a context, in the order of the catalogue."""
    return {key.partition("\4")[2]: text for key, text in _texts().items() if key.startswith(f"{context}\4")}


class Labels(dict[str, Mapping[K, str]]):
    """Fixed words by language. A word that has no Chinese in the context has that of no context."""

    def __init__(self, english: Mapping[K, str], context: str = "") -> None:
        super().__init__(en=english)
        self._context = context

    def __missing__(self, language: str) -> Mapping[K, str]:
        self[language] = {key: chinese(en, self._context) or en for key, en in self["en"].items()}
        return self[language]
