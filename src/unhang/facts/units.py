"""Quantities in the words of people."""

from __future__ import annotations


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
