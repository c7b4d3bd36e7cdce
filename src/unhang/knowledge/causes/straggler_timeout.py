"""straggler-timeout: a rank is alive and merely slow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unhang.frames import place, user_frame
from unhang.knowledge import collective_waits, text, waits, words
from unhang.knowledge.blocked_threads import held_back, in_loader, workers_at_work
from unhang.knowledge.cause import cause, command, signature
from unhang.knowledge.causes.rank_exception import own_tracebacks
from unhang.knowledge.causes.store_disconnect import is_wait
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.knowledge.other_libraries import library
from unhang.knowledge.text import NOTHING, Text, joined, msg
from unhang.knowledge.watchdogs import ranks_of
from unhang.logs import Hit, Traceback
from unhang.model import Evidence, Finding, Standing
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.records.incident import Slow

CAUSE = cause("straggler-timeout")

_LEFT_AT_BARRIER = signature("peer-lost", "left-at-barrier")
# Functions in which all ranks but one wait for the work of that one: transformers, accelerate, fastai, YOLO, and scripts after them.
_WAITING_ROOMS = ("main_process_first", "local_main_process_first", "_goes_first", "torch_distributed_zero_first", "zero_first", "rank_zero_first")
# Every rank does these at the start, and they are over quickly.
_SHARED = lazily(r"Loading (?:extension module|(?:safetensors )?checkpoint shards)|Load weight begin")
_PROGRESS = lazily(r"(?P<percent>\d{1,3})%\|")
_ELAPSED = lazily(r"\[(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)<")
_LEFT = lazily(r"<(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)[,\]]")
# A bar's own guess is rough: a timeout has a quarter more, in steps of so much.
_STEP_S = 600
_LONGER = "--ddp_timeout {s:number}   # transformers; elsewhere init_process_group(timeout=timedelta(seconds={s:number}))"
# A line that stands this close before the first complaint was the last that its rank said.
_LAST_LINES = 60
# Their lines stand in healthy logs, too.
_HARMLESS_TOO = ("dns-resolution", "ineffective-setting", "interface-selection")


@dataclass(frozen=True, kw_only=True)
class _Wait:
    """When somebody gave up waiting."""

    source: str
    line: int | None
    text: str
    ranks: tuple[int, ...]
    at_s: float | None
    waited_s: float | None


def in_run(picture: RunView) -> Answer:
    if picture.incident.slow is not None:
        return _of_hosts(picture.incident.slow)
    slow = [
        r for r, state in held_back(picture) if state == "busy" or (picture.incident.kind == "straggler" and state in ("unknown", "idle", "loader"))
    ]
    if not slow:
        return None
    first, numbers = slow[0], [r.number for r in slow]
    workers = workers_at_work(first)
    at = picture.place(workers[0].place) if workers and workers[0].place else picture.where(first)
    # It may be any long call or loop, also one that does not end.
    loops = first.activity is not None and first.activity.repeats
    what = msg("executing")
    if workers and workers[0].place:
        what = msg(
            "executing {name}() ({at}) in worker {n} (pid {pid}) of its data loader",
            name=workers[0].place.name,
            at=str(at),
            n=str(workers[0].record.worker),
            pid=workers[0].record.pid,
        )
    elif first.place is not None:
        seen = msg("last seen at ") if first.only_last_seen else NOTHING
        what = msg(
            "executing {lines}{name}() ({seen}{at})",
            name=first.place.name,
            seen=seen,
            at=str(at),
            lines=msg("the same few lines of ") if loops else NOTHING,
        )
    meant, commands = waits.longer(picture) if loops else ("raise-the-timeout", None)
    certain = first.busy and not loops and bool(first.frames) and picture.front is not None
    return CAUSE.finding(
        standing="established" if certain else "likely",
        says=msg(
            "{who} {are} alive and {what}{since}",
            who=text.ranks(numbers),
            are=words.verb(numbers, "is", "are"),
            what=what,
            since=text.stall(picture) + text.while_waiting(picture),
        ),
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        where=at,
        evidence=(
            *words.activity_evidence(picture, first),
            *(words.child_evidence(picture, first, worker) for worker in workers[:1]),
            *words.stack_evidence(picture, first),
            *words.waiting_evidence(picture, at_most=1),
            *words.absence_evidence(picture, first),
        ),
        remedies=("feed-the-loader", meant) if in_loader(first) else ("share-the-work", *(("end-the-loop",) if loops else ()), meant),
        commands=commands,
    )


def _of_hosts(slow: Slow) -> Finding:
    pace = msg("the training takes {now} steps a second, before it took {before}", now=f"{slow.steps_per_s:.3g}", before=f"{slow.before_per_s:.3g}")
    says = msg("all others wait for {host}", host=slow.hosts[0])
    why = NOTHING
    if slow.waiting is not None:
        why = msg(
            "its ranks were in a collective in {own} % of all looks, those of the other hosts in {others} % and more",
            own=round(100 * slow.waiting[0]),
            others=round(100 * slow.waiting[1]),
        )
    elif slow.bytes_per_s is not None and slow.before_bytes_per_s is not None:
        says = msg("the link from {a} to {b} has become slow", a=slow.hosts[0], b=slow.hosts[1])
        why = msg(
            "it carries {now} MB/s while bytes are on their way, before it carried {before}; {again} % were sent again; no other link has changed so",
            now=f"{slow.bytes_per_s / 1e6:.3g}",
            before=f"{slow.before_bytes_per_s / 1e6:.3g}",
            again=f"{100 * (slow.again or 0.0):.2g}",
        )
    return CAUSE.finding(
        standing="likely",
        says=joined((says, pace)),
        hosts=slow.hosts,
        evidence=(Evidence(source="now.json" if slow.waiting else "ss", text=why),),
        remedies=("look-at-the-hosts",),
    )


def in_logs(view: LogView) -> Answer:
    """Somebody gave up waiting, and another rank was at work then. A timeout alone says nothing about who was late."""
    return _of_lines(view) or collective_waits.held(view, CAUSE, "executes", ("share-the-work", "raise-the-timeout"))


def _of_lines(view: LogView) -> Finding | None:
    wait = _wait(view)
    if wait is None:
        return _of_comers(view)
    if (found := _at_work(view, wait)) is not None:
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
    room = next(((t, n) for t in view.tracebacks for n in (_room(t),) if n is not None and _gave_up(view, t)), None)
    if room is not None:
        return _of_room(room[0], room[1], wait)
    return _of_comers(view)


def _wait(view: LogView) -> _Wait | None:
    if view.timeouts:
        first = min(view.timeouts, key=lambda t: (t.at.at_s is None, t.at.at_s or 0.0))
        numbers = ranks_of(view.timeouts)
        if view.world_size is not None and len(numbers) >= view.world_size:
            # All of them came: nobody was late.
            return None
        return _Wait(
            source=first.at.source,
            line=first.at.line,
            text=first.at.text,
            ranks=numbers,
            at_s=first.at.at_s,
            waited_s=(first.ran_ms or first.timeout_ms) / 1000,
        )
    hits = [h for h in view.hits_of("store-disconnect") if is_wait((h,))]
    hits += [h for h in view.hits_of("collective-timeout") if (h.groups.get("timeout_ms") or library(h) is not None) and "missing" not in h.groups]
    # Other ranks came to a monitored barrier, and rank 0 had given up on one that did not.
    hits += [h for h in view.hits_of("peer-lost") if h.signature == _LEFT_AT_BARRIER]
    if not hits:
        return None
    first_hit = hits[0]
    told = next((h.groups["timeout_ms"] for h in hits if "timeout_ms" in h.groups), None)
    return _Wait(
        source=first_hit.source,
        line=first_hit.line,
        text=first_hit.text,
        ranks=tuple(sorted({h.rank for h in hits if h.rank is not None})),
        at_s=first_hit.at_s,
        waited_s=None if told is None else int(told) / 1000,
    )


def _at_work(view: LogView, wait: _Wait) -> Hit | None:
    """The last line of work of a rank that did not wait, unfinished, within the waiting time."""
    found = [h for h in view.work if not _SHARED.search(h.text) and (h.rank is None or h.rank not in wait.ranks) and _then(h, wait)]
    return max(found, key=lambda h: (h.at_s or 0.0, h.place, h.line or 0), default=None)


def _then(hit: Hit, wait: _Wait) -> bool:
    progress = _PROGRESS.search(hit.text)
    if progress is not None and int(progress["percent"]) >= 100:
        return False
    if hit.at_s is not None and wait.at_s is not None:
        return (wait.waited_s is None or hit.at_s >= wait.at_s - wait.waited_s - 60) and hit.at_s <= wait.at_s + 60
    elapsed = _elapsed_s(hit)
    if elapsed is not None and wait.waited_s is not None:
        return elapsed >= wait.waited_s / 2
    if hit.source == wait.source and hit.line is not None and wait.line is not None:
        return 0 <= wait.line - hit.line <= _LAST_LINES
    return False


def _elapsed_s(hit: Hit) -> int | None:
    return _seconds(_ELAPSED.search(hit.text))


def _seconds(found: re.Match[str] | None) -> int | None:
    return None if found is None else int(found["h"] or 0) * 3600 + int(found["m"]) * 60 + int(found["s"])


def _of_work(hit: Hit, wait: _Wait, *, standing: Standing) -> Finding:
    who = text.ranks((hit.rank,)) if hit.rank is not None else msg("another rank")
    what = hit.groups.get("what", "").strip() or hit.text.strip()[:60]
    elapsed = _elapsed_s(hit)
    since = msg(", {s} so far", s=words.seconds(elapsed)) if elapsed is not None else NOTHING
    left, commands = _seconds(_LEFT.search(hit.text)), None
    if elapsed is not None and left is not None:
        since += msg(", {s} left", s=words.seconds(left))
        timeout_s = -(-(elapsed + left) * 5 // (4 * _STEP_S)) * _STEP_S
        commands = {"raise-the-timeout": command(_LONGER, s=timeout_s)}
    waiting = text.ranks(wait.ranks) if wait.ranks else msg("the others")
    return CAUSE.finding(
        standing=standing,
        says=msg(
            "{who} was still at work ({what}{since}) when {waiting} gave up waiting{after}",
            who=who,
            what=what,
            since=since,
            waiting=waiting,
            after=_after(wait),
        ),
        ranks=(hit.rank,) if hit.rank is not None else (),
        hosts=(hit.host,) if hit.host is not None else (),
        evidence=(
            Evidence(source=hit.source, line=hit.line, text=hit.text.strip()[-300:]),
            Evidence(source=wait.source, line=wait.line, text=wait.text.strip()),
        ),
        remedies=("work-beforehand", "raise-the-timeout"),
        commands=commands,
    )


def _room(back: Traceback) -> str | None:
    return next((f.name for f in reversed(back.frames) if f.name in _WAITING_ROOMS), None)


def _gave_up(view: LogView, back: Traceback) -> bool:
    """Whether a traceback ends in a timeout or a store that did not answer."""
    symptoms = (*view.hits_of("store-disconnect"), *view.hits_of("collective-timeout"))
    return any(h.source == back.source and h.line is not None and back.line <= h.line <= back.end for h in symptoms)


def _of_room(back: Traceback, room: str, wait: _Wait) -> Finding:
    frame = user_frame(back.frames)
    at = place(frame, "") if frame is not None else None
    waiting = text.ranks(wait.ranks) if wait.ranks else msg("ranks", "straggler_timeout")
    return CAUSE.finding(
        standing="likely",
        says=msg(
            "{waiting} gave up in {room}(){after}: the one rank that goes first had not finished its work",
            waiting=waiting,
            room=room,
            after=_after(wait),
        ),
        where=at,
        evidence=(
            back.evidence(),
            *((Evidence(source=back.source, text=words.frame(frame)),) if frame else ()),
        ),
        remedies=("work-beforehand", "raise-the-timeout"),
    )


def _after(wait: _Wait) -> Text:
    return msg(" after {s}", s=words.seconds(wait.waited_s)) if wait.waited_s is not None else NOTHING


def _of_comers(view: LogView) -> Finding | None:
    """Most ranks came to the first meeting and some did not in time; where one alone came, its address is the first suspect."""
    for h in view.hits_of("store-disconnect"):
        joined, expected = h.groups.get("joined"), h.groups.get("expected")
        if joined is not None and expected is not None and 1 < int(joined) < int(expected):
            return CAUSE.finding(
                standing="possible",
                says=msg("{n} of {all} ranks came to the first meeting in time; the others were late, or never started", n=joined, all=expected),
                evidence=words.hit_evidence((h,)),
                remedies=("start-together", "raise-the-timeout"),
            )
    return None


def on_host(host: HostView) -> Findings:
    from unhang.facts import speed

    seen = host.get(speed.SUBJECT)
    if seen is not None and (check := seen.check).slower:
        name, change = max(check.slower.items(), key=lambda one: one[1])
        yield Found("slower", name=name, change=change * 100, n=len(check.slower), check=check)
