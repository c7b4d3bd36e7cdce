"""Translations as gettext keeps them: a message is named by its English text, and `locale/` holds the others."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from unhang import text
from unhang.text import AND, COMMA, NOTHING, THEN, Text, joined, listed, msg, same

__all__ = ["AND", "COMMA", "NOTHING", "THEN", "Text", "Words", "chinese", "in_language", "joined", "listed", "msg", "same", "sentences", "texts"]


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


class Words(dict[str, Mapping[str, str]]):
    """A part of `report/words.toml` by language. A word that has no Chinese in the context has that of no context."""

    def __init__(self, part: str, context: str = "") -> None:
        self._part = part
        self._context = context

    def __missing__(self, language: str) -> Mapping[str, str]:
        from unhang import data

        english = data.table("report/words")[self._part]
        self[language] = english if language == "en" else {key: chinese(en, self._context) or en for key, en in english.items()}
        return self[language]


def texts(part: str, context: str = "") -> Mapping[str, Text]:
    """A part of `report/words.toml` as messages."""
    from unhang import data

    return {key: msg(english, context) for key, english in data.table("report/words")[part].items()}
