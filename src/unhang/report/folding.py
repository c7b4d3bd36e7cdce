"""Text in lines of a terminal's cells: Chinese takes two for a character, and may be broken behind each."""

from __future__ import annotations

from rich.cells import cell_len, chop_cells

from unhang.patterns import lazily

_WIDE = "\u2e80-\u9fff\uf900-\ufaff"
# What closes stays with what it closes.
_CLOSING = "\u3001\u3002\uff01\uff09\uff0c\uff1a\uff1b\uff1f"
# A class of characters beyond those of ASCII takes ten times as long to compile.
_WORD = lazily(r"\s+|\S+")
_PIECE = lazily(rf"\s+|[{_WIDE}{_CLOSING}][{_CLOSING}]*|[^\s{_WIDE}{_CLOSING}]+[{_CLOSING}]*")


def fold(text: str, width: int, *, first: str = "", deeper: str | None = None) -> list[str]:
    """All of it in lines of at most `width` cells, which begin with `first` and then `deeper`; at least one line."""
    deeper = first if deeper is None else deeper
    lines, line, empty = list[str](), first, True
    for piece in (_WORD if text.isascii() else _PIECE).findall(" ".join(text.split())):
        if cell_len(line) + cell_len(piece) <= width:
            line += piece if not (empty and piece == " ") else ""
            empty = empty and piece == " "
            continue
        if not empty:
            lines.append(line.rstrip())
            line, empty = deeper, True
        if piece == " ":
            continue
        *full, last = chop_cells(piece, max(2, width - max(cell_len(line), cell_len(deeper))))
        for part in full:
            lines.append(line + part)
            line = deeper
        line, empty = line + last, False
    return [*lines, line.rstrip()] if not empty or not lines else lines


def cut(text: str, most: int) -> str:
    """As much of it as fits, cut behind a word, and visibly."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    return (text[: most + 1].rpartition(" ")[0].rstrip(" ;:,.") or text[:most]) + " ..."
