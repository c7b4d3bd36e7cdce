"""Errors that were printed and ended nothing: the program caught them and went on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView
    from unhang.records.logs import Hit, Traceback

# A warning that tells what the program does instead.
_INSTEAD = re.compile(r"\b(?:INFO|WARN(?:ING)?)\b.{0,200}?\b(?:re)?(?:trying|falling back|skipping)\b", re.IGNORECASE)

# More than teardown, launchers and other ranks print behind a failure that ended a process.
LONG = 30
# Ranks that lost one finish the step that they are in.
STEPS = 2
_BASES = ("<module>", "_run_module_as_main")


def went_on(view: LogView, source: str, line: int | None) -> bool:
    """Whether more than LONG lines follow this one, and nobody reports an end, a wait or a lost peer. Where nothing is known, it did not."""
    last = view.lines.get(source)
    return last is not None and line is not None and last - line > LONG and not _ended(view)


def _ended(view: LogView) -> bool:
    """Whether anybody reports an end, a wait or a lost peer."""
    return any(e.code != 0 for e in view.exits) or bool(view.timeouts) or bool(_of_symptoms(view))


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
    """Without what was caught and logged: its process goes on with its steps, or the log does long behind the last of its tracebacks."""
    last: dict[str, int] = {}
    for t in view.tracebacks:
        last[t.source] = max(last.get(t.source, 0), t.end)
    survived = _survived(view)
    return [t for t in own if not ended_nothing(t) and (t.source, t.end) not in survived and not went_on(view, t.source, last[t.source])]


def _survived(view: LogView) -> set[tuple[str, int]]:
    """Where tracebacks end that were logged and ended nothing: steps enough behind them, or one where the same was survived before."""
    found: set[tuple[str, int]] = set()
    if _ended(view):
        return found
    by_writer: dict[tuple[str, int | None], list[Traceback]] = {}
    for t in view.tracebacks:
        by_writer.setdefault((t.source, t.rank), []).append(t)
    for told in by_writer.values():
        steps: set[str] = set()
        logged = [t for t in told if t.logged and _steps_are_its_own(t, view)]
        enough = 0
        for t in sorted(told, key=lambda t: t.end, reverse=True):
            steps.update(t.steps)
            if len(steps) >= STEPS:
                enough = t.end
                break
        kinds = {_kind(t) for t in logged if t.end <= enough}
        found.update((t.source, t.end) for t in logged if t.end <= enough or (t.steps and _kind(t) in kinds))
    return found


def _kind(back: Traceback) -> tuple[object, ...]:
    """What was raised, and who caught it."""
    return (back.type, back.frames[:1])


def _steps_are_its_own(back: Traceback, view: LogView) -> bool:
    """Whether the steps behind a traceback are of the process that printed it: it is named, or there is only one, as far as anything tells."""
    if back.rank is not None or back.pid is not None:
        return True
    one = view.world_size == 1 or (view.world_size is None and not view.printed)
    # What begins where the process does was caught by nobody in between.
    return one and not (back.frames and back.frames[0].name in _BASES)


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
