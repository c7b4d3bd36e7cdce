"""Translations as gettext keeps them: a message is named by its English text, and `locale/` holds the others."""

from __future__ import annotations

from unhang import data
from unhang.text import Text


def chinese(english: str, context: str = "") -> str:
    """Return the Chinese text; "" if there is none. `context` (msgctxt) separates two meanings of one English text."""
    text: str = data.load()["zh_CN"].get(f"{context}\4{english}" if context else english, "")
    return text


def text(english: str, context: str = "") -> Text:
    return Text(english, chinese(english, context))
