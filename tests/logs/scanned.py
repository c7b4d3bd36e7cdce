"""The hits of signatures in one file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from unhang.logs import Hit, Needles, Signature, read


def scan(path: Path, signatures: Iterable[Signature], *, limit_bytes: int | None = None, source: str | None = None) -> list[Hit]:
    """In the order of the file."""
    return list(read(path, Needles(signatures), source=source, limit_bytes=limit_bytes).hits)
