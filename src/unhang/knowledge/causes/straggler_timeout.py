"""straggler-timeout: a rank is alive and merely slow."""

from __future__ import annotations

import re

from unhang.frames import place, user_frame
from unhang.knowledge import collective_waits, waits, words
from unhang.knowledge.blocked_threads import held_back, in_loader, workers_at_work
from unhang.knowledge.cause import cause, signature
from unhang.knowledge.causes.rank_exception import own_tracebacks
from unhang.knowledge.causes.store_disconnect import is_wait
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.knowledge.other_libraries import library
from unhang.knowledge.watchdogs import ranks_of
from unhang.logs import Hit, Traceback
from unhang.logs.log_facts import At
from unhang.model import Standing, frozen
from unhang.patterns import lazily

CAUSE = cause("straggler-timeout")

_LEFT_AT_BARRIER = signature("peer-lost", "left-at-barrier")
# Every rank does these at the start, and they are over quickly.
_SHARED = lazily(r"Loading (?:extension module|(?:safetensors )?checkpoint shards)|Load weight begin")
_PROGRESS = lazily(r"(?P<percent>\d{1,3})%\|")
_ELAPSED = lazily(r"\[(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)<")
_LEFT = lazily(r"<(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)[,\]]")
# A bar's own guess is rough: a timeout has a quarter more, in steps of so much.
_STEP_S = 600
# A line that stands this close before the first complaint was the last that its rank said.
_LAST_LINES = 60
# Functions in which all ranks but one wait for the work of that one: transformers, accelerate, fastai, YOLO, and scripts after them.
_WAITING_ROOMS = ("main_process_first", "local_main_process_first", "_goes_first", "torch_distributed_zero_first", "zero_first", "rank_zero_first")
# Their lines stand in healthy logs, too.
_HARMLESS_TOO = ("dns-resolution", "ineffective-setting", "interface-selection")


@frozen
class _Wait:
    """When somebody gave up waiting, as a line tells."""

    line: Hit | At
    ranks: tuple[int, ...]
    waited_s: float | None


def in_run(picture: RunView) -> Answer:
    if (late := picture.incident.slow) is not None:
        if late.waiting is not None:
            return Found("slow-host", hosts=late.hosts, late=late, shares=[100 * share for share in late.waiting])
        speeds = [(speed or 0.0) / 1e6 for speed in (late.bytes_per_s, late.before_bytes_per_s)]
        return Found("slow-link", hosts=late.hosts, late=late, speeds=speeds, again=100 * (late.again or 0.0))
    slow = [
        r for r, state in held_back(picture) if state == "busy" or (picture.incident.kind == "straggler" and state in ("unknown", "idle", "loader"))
    ]
    if not slow:
        return None
    first = slow[0]
    worker = next(iter(workers_at_work(first)), None)
    # It may be any long call or loop, also one that does not end.
    loops = first.activity is not None and first.activity.repeats
    meant, commands = waits.longer(picture) if loops else ("raise-the-timeout", None)
    certain = first.busy and not loops and bool(first.frames) and picture.front is not None
    at = picture.where(first) if worker is None or worker.place is None else picture.place(worker.place)
    return Found(
        "alive",
        standing="established" if certain else "likely",
        ranks=[r.number for r in slow],
        where=at,
        evidence=(
            *words.activity_evidence(picture, first),
            *((words.child_evidence(picture, first, worker),) if worker is not None else ()),
            *words.stack_evidence(picture, first),
            *words.waiting_evidence(picture, at_most=1),
            *words.absence_evidence(picture, first),
        ),
        remedies=("feed-the-loader", meant) if in_loader(first) else ("share-the-work", *(("end-the-loop",) if loops else ()), meant),
        commands=commands,
        picture=picture,
        doing="in-worker" if worker is not None else "at-line" if first.place is not None else "executing",
        first=first,
        worker=worker,
        loops=loops,
        since=words.stall(picture) + words.while_waiting(picture),
    )


def in_logs(view: LogView) -> Answer:
    """Somebody gave up waiting, and another rank was at work then. A timeout alone says nothing about who was late."""
    return _of_lines(view) or collective_waits.held(view, CAUSE, "executes", ("share-the-work", "raise-the-timeout"))


def _of_lines(view: LogView) -> Answer:
    wait = _wait(view)
    if wait is not None and (found := _at_work(view, wait)) is not None:
        # Whether something that names a cause was printed too: a rank that works is an ordinary thing.
        named = any(
            h.signature.role == "root" and h.signature.standing in ("established", "likely")
            for cause, hits in view.hits.items()
            if cause not in _HARMLESS_TOO
            for h in hits
        )
        # Against an exception speaks only that the work itself tells how long it took.
        return _of_work(
            found, wait, standing="possible" if named or (_elapsed_s(found) is None and bool(own_tracebacks(view.tracebacks, view))) else "likely"
        )
    if wait is None:
        return None
    for back in view.tracebacks:
        for frame in back.frames:
            if frame.name in _WAITING_ROOMS and _gave_up(view, back):
                at = user_frame(back.frames)
                return Found("in-waiting-room", where=None if at is None else place(at, ""), evidence=(back,), room=frame.name, wait=wait)
    return None


def _gave_up(view: LogView, back: Traceback) -> bool:
    """Whether a traceback ends in a timeout or a store that did not answer."""
    symptoms = (*view.hits_of("store-disconnect"), *view.hits_of("collective-timeout"))
    return any(h.source == back.source and h.line is not None and back.line <= h.line <= back.end for h in symptoms)


def _wait(view: LogView) -> _Wait | None:
    if view.timeouts:
        first = min(view.timeouts, key=lambda t: (t.at.at_s is None, t.at.at_s or 0.0))
        numbers = ranks_of(view.timeouts)
        if view.world_size is not None and len(numbers) >= view.world_size:
            # All of them came: nobody was late.
            return None
        return _Wait(line=first.at, ranks=numbers, waited_s=(first.ran_ms or first.timeout_ms) / 1000)
    hits = [h for h in view.hits_of("store-disconnect") if is_wait((h,))]
    hits += [h for h in view.hits_of("collective-timeout") if (h.groups.get("timeout_ms") or library(h) is not None) and "missing" not in h.groups]
    # Other ranks came to a monitored barrier, and rank 0 had given up on one that did not.
    hits += [h for h in view.hits_of("peer-lost") if h.signature == _LEFT_AT_BARRIER]
    if not hits:
        return None
    told = next((h.groups["timeout_ms"] for h in hits if "timeout_ms" in h.groups), None)
    ranks = tuple(sorted({h.rank for h in hits if h.rank is not None}))
    return _Wait(line=hits[0], ranks=ranks, waited_s=None if told is None else int(told) / 1000)


def _at_work(view: LogView, wait: _Wait) -> Hit | None:
    """The last line of work of a rank that did not wait, unfinished, within the waiting time."""
    found = [h for h in view.work if not _SHARED.search(h.text) and (h.rank is None or h.rank not in wait.ranks) and _then(h, wait)]
    return max(found, key=lambda h: (h.at_s or 0.0, h.place, h.line or 0), default=None)


def _then(hit: Hit, wait: _Wait) -> bool:
    progress = _PROGRESS.search(hit.text)
    if progress is not None and int(progress["percent"]) >= 100:
        return False
    gave_up = wait.line
    if hit.at_s is not None and gave_up.at_s is not None:
        return (wait.waited_s is None or hit.at_s >= gave_up.at_s - wait.waited_s - 60) and hit.at_s <= gave_up.at_s + 60
    elapsed = _elapsed_s(hit)
    if elapsed is not None and wait.waited_s is not None:
        return elapsed >= wait.waited_s / 2
    return hit.source == gave_up.source and None not in (hit.line, gave_up.line) and 0 <= (gave_up.line or 0) - (hit.line or 0) <= _LAST_LINES


def _elapsed_s(hit: Hit) -> int | None:
    return _seconds(_ELAPSED.search(hit.text))


def _seconds(found: re.Match[str] | None) -> int | None:
    return None if found is None else int(found["h"] or 0) * 3600 + int(found["m"]) * 60 + int(found["s"])


def _of_work(hit: Hit, wait: _Wait, *, standing: Standing) -> Found:
    elapsed, left = _elapsed_s(hit), _seconds(_LEFT.search(hit.text))
    known = elapsed is not None and left is not None
    return Found(
        "at-work",
        standing=standing,
        ranks=(hit,),
        hosts=(hit,),
        evidence=(hit, wait.line),
        what=hit.groups.get("what", "").strip() or hit.text.strip()[:60],
        elapsed=elapsed,
        left=left if known else None,
        wait=wait,
        timeout_s=-(-((elapsed or 0) + (left or 0)) * 5 // (4 * _STEP_S)) * _STEP_S if known else None,
    )


def on_host(host: HostView) -> Findings:
    if (check := host.speed.check).slower:
        name, change = max(check.slower.items(), key=lambda one: one[1])
        yield Found("slower", name=name, change=change * 100, n=len(check.slower), check=check)
