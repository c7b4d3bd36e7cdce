"""Errors that were printed and ended nothing: the program caught them and went on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unhang.knowledge.cause import LogView
from unhang.records.logs import Hit, Traceback

# A warning that tells what the program does instead.
_INSTEAD = re.compile(r"\b(?:INFO|WARN(?:ING)?)\b.{0,200}?\b(?:re)?(?:trying|falling back|skipping)\b", re.IGNORECASE)

# More than teardown, launchers and other ranks print behind a failure that ended a process.
LONG = 30
# Behind an error that a logger printed: who logs and ends prints hardly anything more.
FEW = 3


def went_on(view: LogView, source: str, line: int | None, *, behind: int = LONG) -> bool:
    """Whether more than `behind` lines follow this one, and nobody reports an end, a wait or a lost peer. Where nothing is known, it did not."""
    last = view.lines.get(source)
    if last is None or line is None or last - line <= behind:
        return False
    return not any(e.code != 0 for e in view.exits) and not view.timeouts and not _of_symptoms(view)


def closed_pipe(back: Traceback) -> bool:
    """Output into a pipe whose reader has left (`| head`): raised where something is printed, logged or flushed."""
    if back.type.rpartition(".")[2] != "BrokenPipeError" or not back.frames:
        return False
    frame = back.frames[-1]
    return "logging/" in frame.file or frame.name in ("emit", "flush") or any(w in frame.code for w in ("print(", "stdout", "stderr", ".write("))


def ended_nothing(back: Traceback) -> bool:
    """Whether a traceback by itself tells that no process ended with it."""
    return back.ignored or closed_pipe(back)


def that_ended_something(own: Sequence[Traceback], view: LogView) -> list[Traceback]:
    """Without what was caught and logged: after the last of a log's tracebacks the log goes on as if nothing had been."""
    last: dict[str, int] = {}
    for t in view.tracebacks:
        last[t.source] = max(last.get(t.source, 0), t.end)
    # Who logs and ends prints little after it.
    return [t for t in own if not ended_nothing(t) and not went_on(view, t.source, last[t.source], behind=FEW if t.logged else LONG)]


def passed_over(view: LogView, hit: Hit) -> bool:
    """Whether the line of a hit ended nothing: its log goes on long behind it, or it says what was done instead, and no end is reported."""
    if went_on(view, hit.source, hit.line):
        return True
    if _INSTEAD.search(hit.text) is None:
        return False
    # What the program did instead is told by its own log; other logs of the job may tell of other things.
    told = (*(e.at.source for e in view.exits), *(t.at.source for t in view.timeouts), *(t.source for t in view.tracebacks), *_of_symptoms(view))
    return hit.source not in told


def _of_symptoms(view: LogView) -> list[str]:
    return [h.source for hits in view.hits.values() for h in hits if h.signature.role == "symptom"]
