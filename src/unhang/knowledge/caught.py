"""Errors that were printed and ended nothing: the program caught them and went on."""

from __future__ import annotations

import re

from unhang.knowledge.cause import LogView
from unhang.records.logs import Hit

# A warning that tells what the program does instead.
_INSTEAD = re.compile(r"\b(?:INFO|WARN(?:ING)?)\b.{0,200}?\b(?:re)?(?:trying|falling back|skipping)\b", re.IGNORECASE)

# More than teardown, launchers and other ranks print behind a failure that ended a process.
_LONG = 30


def went_on(view: LogView, source: str, line: int | None) -> bool:
    """Whether the log goes on long behind this line, and nobody reports an end, a wait or a lost peer. Where nothing is known, it did not."""
    last = view.lines.get(source)
    if last is None or line is None or last - line <= _LONG:
        return False
    return not any(e.code != 0 for e in view.exits) and not view.timeouts and not _symptoms(view)


def passed_over(view: LogView, hit: Hit) -> bool:
    """Whether the line of a hit ended nothing: its log goes on long behind it, or it says what was done instead, and no end is reported."""
    if went_on(view, hit.source, hit.line):
        return True
    quiet = not view.exits and not view.timeouts and not view.tracebacks and not _symptoms(view)
    return quiet and _INSTEAD.search(hit.text) is not None


def _symptoms(view: LogView) -> bool:
    return any(h.signature.role == "symptom" for hits in view.hits.values() for h in hits)
