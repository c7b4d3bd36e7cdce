"""crash-at-exit: a process failed while it was shutting down, after its work was done."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from unhang.knowledge import words
from unhang.knowledge.cause import cause
from unhang.knowledge.causes.store_disconnect import AT_THE_END
from unhang.knowledge.judge import Answer, Found, LogView, RunView
from unhang.knowledge.watchdogs import collective
from unhang.logs import Hit
from unhang.logs.alarms import DONE, FULL, LEAVING, SAVED
from unhang.logs.log_facts import At
from unhang.model import Standing

CAUSE = cause("crash-at-exit")


def in_run(picture: RunView) -> Answer:
    crashed = [r for r in picture.gone if r.ended is not None and r.ended.crashed_at_exit]
    if not crashed:
        return None
    first, numbers = crashed[0], [r.number for r in crashed]
    unfinished = [r.number for r in picture.ranks if r.ended is None or not r.ended.finished]
    code = first.ended.exitcode if first.ended is not None else None
    how = words.signal_name(code) if code is not None and code < 0 else f"exit code {code}"
    return Found(
        "crashed",
        ranks=numbers,
        evidence=words.hit_evidence([h for h in picture.hits_of("framework-bug") if h.rank is None or h.rank in numbers], at_most=1),
        how=how,
        unfinished=unfinished,
        picture=picture,
        first=first,
    )


# SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
_CRASHES = (-6, -7, -8, -11)


def in_logs(view: LogView) -> Answer:
    """The first of all failures stands behind lines that tell of the end of the training."""
    lost = [h for c in ("peer-lost", "store-disconnect", "collective-timeout") for h in view.hits_of(c) if not AT_THE_END.search(h.text)]
    ended = [e for e in view.exits if e.code in _CRASHES]
    # A line may tell of thousands of tasks.
    crashes: list[Hit | At] = [*view.crashed, *{(e.at.source, e.at.line, e.at.at_s): e.at for e in ended}.values()]
    failures: list[Hit | At] = [*crashes, *lost, *(t.at for t in view.timeouts)]
    if not failures:
        return None
    standings = [_standing(view, f, crash=n < len(crashes)) for n, f in enumerate(failures)]
    worst: Standing | None = None if None in standings else "possible" if "possible" in standings else "likely"
    first = min(failures, key=lambda f: f.line or 0)
    if worst is None or _has_a_name(view, first):
        return None
    speaking: list[Hit | At] = [t.at for t in view.timeouts] or [*view.crashed, *(e.at for e in ended)] or [*lost]
    numbers = {f.rank for f in speaking if f.rank is not None}
    # Who waited or lost another rank has not failed itself: its watchdog aborts it.
    died = not view.timeouts and bool(view.crashed or ended)
    if died:
        # Who leaves without ending its group says so right before.
        leaving = {h.rank for h in view.ends if h.signature == LEAVING and h.rank is not None}
        numbers = numbers or (leaving if len(leaving) == 1 else set())
    over = [h for h in _before(view, first) if h.signature != LEAVING]
    waited = next(iter(view.timeouts), None)
    return Found(
        "died" if died else "waited" if waited else "lost",
        ranks=sorted(numbers) if died else (),
        standing=worst,
        evidence=(*over[-1:], *speaking[:2]),
        hosts=speaking if died else (),
        numbers=numbers,
        what=next((h.groups["what"] for h in view.crashed if "what" in h.groups), ""),
        seconds=waited and waited.timeout_ms / 1000,
        call=waited and collective(waited),
    )


def _has_a_name(view: LogView, failure: Hit | At) -> bool:
    """Whether a root of another cause stands between the end and what is in the logs after it: that is what failed."""
    over = {h.source: h.line or 0 for h in _before(view, failure)}
    roots = [h for cause, hits in view.hits.items() if cause not in (CAUSE.id, "framework-bug") for h in hits if h.signature.role == "root"]
    return any((h.line or 0) > over[h.source] if h.source in over else True for h in roots)


def _before(view: LogView, failure: Hit | At) -> list[Hit]:
    """The lines that tell of the end before a failure, in its own log or by time."""
    own = [h for h in view.ends if h.source == failure.source and (h.line or 0) < (failure.line or 0)]
    return own or [h for h in view.ends if h.at_s is not None and failure.at_s is not None and h.at_s <= failure.at_s]


def _standing(view: LogView, failure: Hit | At, *, crash: bool) -> Standing | None:
    """What the lines before a failure prove; a full bar may be that of an evaluation, and something may be saved in between."""
    over = _before(view, failure)
    told = {h.signature for h in over}
    full, saved, leaving = FULL in told and not _of_epochs(over), not told.isdisjoint(SAVED), LEAVING in told
    if not told.isdisjoint(DONE) or (leaving and (full or saved)):
        return "likely"
    return "possible" if full and (saved or crash) else None


def _of_epochs(over: Sequence[Hit]) -> bool:
    """Whether bars of one length were full twice, with something saved in between: one for each epoch."""
    bars = [h for h in over if h.signature == FULL]
    saved = [h.place for h in over if h.signature in SAVED]
    return any(a.groups["total"] == b.groups["total"] and any(a.place < s < b.place for s in saved) for a, b in pairwise(bars))
