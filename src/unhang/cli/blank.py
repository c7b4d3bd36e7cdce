"""Files beside dumps that are called as these are, and in which no dump is: a rank's process ended while it was writing, or a disk was full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unhang.records.logs.finding import Found


def set_apart(found: Found) -> tuple[Found, tuple[Path, ...]]:
    """What was found without those that are empty, and all of them. What else stands in one, as the error of a copy that failed, is read as a log."""
    from unhang.model import NotExamined
    from unhang.records.flight.naming import closed_ranks
    from unhang.records.logs.finding import EMPTY

    files = {str(s.path): s for s in found.sources if s.path is not None and s.seekable}
    alike = set(closed_ranks([*files, *map(str, found.blank)], [str(p) for p in found.dumps]).values())
    empty = {files[name] for name in alike & files.keys() if not files[name].size_bytes}
    missed = [n for n in found.not_examined if not (n.why == EMPTY and any(n.what == s.name for s in empty))]
    missed += [NotExamined(what=s.name, why=EMPTY, unread=True) for s in sorted(empty, key=lambda s: s.name)]
    sources = tuple(s for s in found.sources if s not in empty)
    return replace(found, sources=sources, not_examined=tuple(missed)), tuple(map(Path, sorted(alike)))
