"""Escapes untrusted text (file names, log lines, variables) before it is printed."""

from __future__ import annotations

import io
import re
from typing import Any

from unhang.patterns import lazily

# Control characters other than tab and line feed steer a terminal, bidirectional ones reorder text, and zero-width characters, fillers, tags and
# variation selectors other than the two of emoji are invisible.
UNPRINTABLE = lazily(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def escape(text: str) -> str:
    """Replace unprintable characters by Python's escapes, so that nothing is lost."""
    return UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Escape a name, line breaks, tabs and undecodable bytes included."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escape(text))


def strip_unprintable(text: str) -> str:
    """Remove unprintable characters, for comparisons and pages."""
    return UNPRINTABLE.sub("", text)


def escape_json(text: str) -> str:
    """Escape unprintable characters in JSON text without changing its value."""
    return UNPRINTABLE.sub(lambda m: re.sub("(....)", r"\\u\1", m[0].encode("utf-16-be").hex()), text)


class Printable(io.TextIOWrapper):
    """A text stream that escapes what is written; `styled` bypasses it for our own escape sequences."""

    def write(self, text: str) -> int:
        return super().write(escape(text))

    @property
    def styled(self) -> Any:
        return _Styled(self)


class _Styled:
    def __init__(self, stream: Printable) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return io.TextIOWrapper.write(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def styled(stream: Any) -> Any:
    """The stream without escaping, also while rich replaces it."""
    stream = getattr(stream, "rich_proxied_file", stream)
    return getattr(stream, "styled", stream)
