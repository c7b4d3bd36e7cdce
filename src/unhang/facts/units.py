"""Quantities in the words of people."""

from __future__ import annotations

import re

from unhang.patterns import lazily

_SIZE = lazily(r"\s*(\d{1,12}(?:\.\d{1,3})?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE | re.ASCII)


def size(count: float) -> str:
    """Bytes: 64 MiB, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" or count == int(count) else f"{count:.1f} {unit}"


def parse_size(text: str) -> int:
    """Bytes of "8", "64k", "1.5 GiB", always in powers of 1024. Raises ValueError for what is no size, or none at all."""
    found = _SIZE.fullmatch(text)
    count = 0 if found is None else int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))
    if count < 1:
        raise ValueError(text)
    return count


def counted(number: int, one: str) -> str:
    """1 port, 2 ports."""
    return f"{number} {one}{'' if number == 1 else 's'}"
