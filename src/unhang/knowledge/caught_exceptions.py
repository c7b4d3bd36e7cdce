"""Errors that were printed and ended nothing: the program caught them and went on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhang.logs import owner_of
from unhang.logs.signature import DOES_INSTEAD
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView
    from unhang.logs import Hit, Traceback

# A warning that tells what the program does instead.
_INSTEAD = lazily(rf"\b(?:INFO|WARN(?:ING)?)\b.{{0,200}}?\b{DOES_INSTEAD}\b", re.IGNORECASE)

# More than teardown, launchers and other ranks print behind a failure that ended a process.
LONG = 30
# Ranks that lost one finish the step that they are in.
STEPS = 2
_BASES = ("<module>", "_run_module_as_main")


def went_on(view: LogView, hit: Hit) -> bool:
    """Whether its log goes on long behind a hit, with its own writer's steps where he is known; nobody reports an end, a wait or a lost peer."""
    back = view.traceback_of(hit)
    heard = back is None or not _among_others(back) or _key(back) in _stepped(view)
    return heard and _is_long(view, hit.source, hit.line if back is None else back.end + back.native) and not _ended(view)


def stepped_over(view: LogView, hit: Hit) -> bool:
    """Whether the training went on behind a root's line: STEPS steps follow. A process that ended, ended."""
    if (back := view.traceback_of(hit)) is not None:
        return back in logged_over(view)
    if hit.signature.role != "root" or len(hit.steps) < STEPS:
        return False
    return not any((e.at.source, e.at.line) == (hit.source, hit.line) for e in view.exits if e.code != 0)


def logged_over(view: LogView) -> list[Traceback]:
    """Of a job that ended badly: the exceptions that were logged, with steps behind them, of whomever, or where the same was survived before."""
    if not _ended(view):
        return []
    kinds = {_kind(t) for t in view.tracebacks if t.logged and len(t.steps) >= STEPS}
    return [t for t in view.tracebacks if t.logged and t.steps and _kind(t) in kinds]


def failed(view: LogView) -> bool:
    """Whether anything but a root's own line says that the job failed."""
    return _ended(view) or bool(that_ended_something(view.tracebacks, view))


def _is_long(view: LogView, source: str, line: int | None) -> bool:
    """Whether more than LONG lines follow this one. Where nothing is known, they do not."""
    last = view.lines.get(source)
    return last is not None and line is not None and last - line > LONG


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
    survived = _survived(view)
    return [t for t in own if not ended_nothing(t) and _key(t) not in survived]


def caught(view: LogView) -> list[Traceback]:
    """The exceptions that are passed over because the log goes on as if they were caught: the first of each kind."""
    survived = _survived(view)
    kinds: dict[tuple[object, ...], Traceback] = {}
    for t in view.tracebacks:
        if _key(t) in survived and not ended_nothing(t):
            kinds.setdefault(_kind(t), t)
    return list(kinds.values())


def surely_caught(view: LogView, hit: Hit) -> bool:
    """Whether the exception that a hit tells of, in a traceback or in the record right above it, was survived: steps of its own process follow."""
    below = (t for t in view.tracebacks if (t.source, t.line - 1, t.rank) == (hit.source, hit.line, hit.rank))
    back = view.traceback_of(hit) or next(below, None)
    if back is None or _key(back) not in _survived(view) & _stepped(view):
        return False
    return _steps_are_its_own(back, view) or (back.logged and _is_alone(view))


def _key(back: Traceback) -> tuple[str, int]:
    return (back.source, back.end)


def _by_writer(view: LogView) -> list[list[Traceback]]:
    """The tracebacks of each writer, as far as anything tells."""
    found: dict[tuple[object, ...], list[Traceback]] = {}
    for t in view.tracebacks:
        found.setdefault((t.source, t.rank, (t.host, t.pid) if t.rank is None else None), []).append(t)
    return list(found.values())


def _stepped(view: LogView) -> set[tuple[str, int]]:
    """The tracebacks behind which their writer counts STEPS steps or more."""
    found: set[tuple[str, int]] = set()
    for told in _by_writer(view):
        steps: set[str] = set()
        for t in sorted(told, key=lambda t: t.end, reverse=True):
            steps.update(t.steps)
            if len(steps) >= STEPS:
                found.add(_key(t))
    return found


def _survived(view: LogView) -> set[tuple[str, int]]:
    """The tracebacks that ended nothing.

    Those that were logged: steps enough behind them, or one where the same was survived before. Others: their log goes on long behind the last
    of its tracebacks, and the writer's steps do where it is the log of several and names him, or if the traceback looks like the end of a script.
    """
    found: set[tuple[str, int]] = set()
    if _ended(view):
        return found
    stepped = _stepped(view)
    last: dict[str, int] = {}
    for t in view.tracebacks:
        last[t.source] = max(last.get(t.source, 0), t.end + t.native)
    for told in _by_writer(view):
        logged = [t for t in told if t.logged and _steps_are_its_own(t, view)]
        kinds = {_kind(t) for t in logged if _key(t) in stepped}
        found.update(_key(t) for t in logged if _key(t) in stepped or (t.steps and _kind(t) in kinds))
        found.update(
            _key(t)
            for t in told
            if _is_long(view, t.source, last[t.source]) and (_key(t) in stepped or not (_among_others(t) or _ended_its_script(t)))
        )
    return found


def _kind(back: Traceback) -> tuple[object, ...]:
    """What was raised, and who caught it."""
    return (back.type, back.frames[:1])


def _is_named(back: Traceback) -> bool:
    return back.rank is not None or back.pid is not None


def _among_others(back: Traceback) -> bool:
    """Whether a traceback names its writer in a log that is not his own: what others print there tells nothing of him."""
    return _is_named(back) and not _has_owner(back.source)


def _has_owner(source: str) -> bool:
    """Whether the name of a log tells whose it is."""
    owner = owner_of(source)
    return owner.rank is not None or owner.local_rank is not None or owner.pid is not None


def _is_alone(view: LogView) -> bool:
    """Whether there is only one process, as far as anything tells."""
    return view.world_size == 1 or (view.world_size is None and not view.printed)


def _steps_are_its_own(back: Traceback, view: LogView) -> bool:
    """Whether the steps behind a traceback are of the process that printed it: it is named, or alone."""
    # What begins where the process does was caught by nobody in between.
    return _is_named(back) or (_is_alone(view) and not _begins_with_its_process(back))


def _begins_with_its_process(back: Traceback) -> bool:
    return bool(back.frames) and back.frames[0].name in _BASES


def _ended_its_script(back: Traceback) -> bool:
    """Whether a traceback is one that Python itself prints at the end: no logger's, and from the very top. In a log of several others print on."""
    return _begins_with_its_process(back) and not back.logged and not _has_owner(back.source)


def passed_over(view: LogView, hit: Hit) -> bool:
    """Whether the line of a hit ended nothing: its log goes on long behind it, or it says what was done instead, and no end is reported."""
    if went_on(view, hit):
        return True
    if _INSTEAD.search(hit.text) is None:
        return False
    # What the program did instead is told by its own log; other logs of the job may tell of other things.
    told = (*(e.at.source for e in view.exits), *(t.at.source for t in view.timeouts), *(t.source for t in view.tracebacks), *_of_symptoms(view))
    return hit.source not in told


def _of_symptoms(view: LogView) -> list[str]:
    return [h.source for hits in view.hits.values() for h in hits if h.signature.role == "symptom"]
