"""What may be printed of what is not ours: names of files, lines of logs, values of variables. Every way out of a command leads through here."""

from __future__ import annotations

import io
import re
from typing import Any

from unhang.patterns import lazily

# What acts on a terminal (control characters but tab and line feed), shows a text in another order than it has (bidirectional controls), or is not
# seen at all (zero width, fillers, tags, variation selectors but the two of emoji).
UNPRINTABLE = lazily(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def escaped(text: str) -> str:
    """For people: what is not printable as Python writes it, so that nothing is lost."""
    return UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """A name: `escaped`, on one line, with bytes that are no text."""
    return escaped(text).replace("\n", "\\n").replace("\t", "\\t").encode(errors="backslashreplace").decode()


def removed(text: str) -> str:
    """For what is compared, and for pages: without what is not printable."""
    return UNPRINTABLE.sub("", text)


def json_escaped(text: str) -> str:
    """JSON that means the same, without what is not printable."""
    return UNPRINTABLE.sub(lambda m: re.sub("(....)", r"\\u\1", m[0].encode("utf-16-be").hex()), text)


class Printable(io.TextIOWrapper):
    """A stream on which text is `escaped`, whoever writes it; what styles its own text writes on `styled`."""

    def write(self, text: str) -> int:
        return super().write(escaped(text))

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
    """Where text goes as it is, of a stream like sys.stdout; that of a `Printable`, also while rich stands in for it."""
    stream = getattr(stream, "rich_proxied_file", stream)
    return getattr(stream, "styled", stream)
