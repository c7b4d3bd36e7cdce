"""process-stuck: a rank is alive and makes no progress outside any collective."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge import collective_waits, waits, words
from unhang.knowledge.blocked_threads import State, children_waited_for, held_back, keeping
from unhang.knowledge.cause import STANDINGS, cause, command
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.model import Standing
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.kernel_log import Event
    from unhang.records.incident_view import RankView

CAUSE = cause("process-stuck")
_HEARTBEAT = CAUSE.named("heartbeat")

_SLEEP = lazily(r"(?<![\w.])(?:time\.)?sleep\((?:(?P<seconds>\d+(?:\.\d+)?)\))?")
_NANOSLEEP = ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep")
# Ranks and child processes that the evidence names.
_SHOWN = 3
_STATES: tuple[State, ...] = ("stopped", "uninterruptible", "kept", "gil", "repeats", "idle", "unknown")
_STACK = "cat /proc/{pid:pid}/stack"
_BLOCKED = "dmesg -T | grep -A 30 'blocked for more than'"
# A rank that was held up longer ago has found its end, or its time-out.
_RECENT_S = 1800
# hung_task_timeout_secs is 120. Where somebody lowered it, the kernel also tells of what only waited for a busy disk.
_LONG_S = 60


def on_host(host: HostView) -> Findings:

    yield from _held_cpu(host.events)
    hung = [e for e in host.events if e.kind == "hung-task"]
    if not hung:
        return
    serious = [e for e in hung if (e.seconds is None or e.seconds >= _LONG_S) and e.last_age_s is not None and e.last_age_s < _RECENT_S]
    last = (serious or hung)[-1]
    others = sum(e.count for e in hung) - last.count
    yield Found(
        "hung-tasks",
        severity="warning" if serious else "note",
        commands={"look-at-io": command(_STACK, pid=last.pid) if last.process_is_there else command(_BLOCKED)},
        last=last,
        for_s="for-more-than-s" if last.seconds is not None else "",
        others=others,
        more="more-of-others" if others else "",
        each=[*[e for e in hung if e is not last][-2:], last],
    )


def _held_cpu(events: Iterable[Event]) -> Findings:
    locked = [e for e in events if e.kind == "soft-lockup"]
    for last in locked[-1:]:
        yield Found("held-processor", last=last, each=locked[-3:])


def in_run(picture: RunView) -> Answer:
    found = [(r, s) for r, s in held_back(picture) if s in _STATES]
    if not found:
        return None
    state = min((s for _, s in found), key=_STATES.index)
    chosen = [r for r, s in found if s == state]
    first = chosen[0]
    standing, doing, remedies = _described(picture, first, state)
    threads = keeping(first)
    children = children_waited_for(first) if state in ("idle", "unknown") else ()
    return Found(
        "held",
        standing=standing,
        ranks=[r.number for r in chosen],
        where=next((picture.place(t.started) for t in threads[:1] if t.started is not None), picture.where(first)),
        evidence=(
            *(words.child_evidence(picture, first, child) for child in children[:_SHOWN]),
            *(waits.evidence(picture, r.number, r.wait) for r in chosen[:_SHOWN] if waits.described(picture, r.wait)),
            *words.activity_evidence(picture, first),
            *words.stack_evidence(picture, first),
            *words.waiting_evidence(picture, at_most=1),
            *words.absence_evidence(picture, first),
        ),
        remedies=remedies,
        commands={**waits.commands(first.wait), **waits.longer(picture, lasts_s=_sleep_s(first))[1]},
        picture=picture,
        first=first,
        doing=doing,
        described=waits.described(picture, first.wait),
        at=words.at(picture, first),
        since=words.stall(picture) + words.while_waiting(picture),
        child=next(iter(children), None),
        ended=words.ended(children[0].record.exitcode) if children else None,
        stacks=first.record.stacks or "",
        each=threads[:_SHOWN],
    )


def in_logs(view: LogView) -> Answer:
    """torch's heartbeat also fails while a rank that has timed out dumps and aborts: then it is a consequence."""
    waited = bool(view.timeouts) or bool(view.hits_of("collective-timeout"))
    told = CAUSE.of_hits(tuple(h for h in view.hits_of(CAUSE.id) if not waited or h.signature not in _HEARTBEAT), view)
    seen = collective_waits.held(view, CAUSE, "stands", ("look-inside", "bound-the-wait"))
    found = [f for f in (told, seen) if f is not None]
    return min(found, key=lambda f: STANDINGS.index(f.standing), default=None)


def _described(picture: RunView, rank: RankView, state: State) -> tuple[Standing, str, tuple[str, ...]]:
    """How sure that is, what the rank does, and what helps."""
    if state == "stopped":
        return "established", "traced" if rank.activity is not None and rank.activity.state == "t" else state, ("continue-it",)
    if state == "uninterruptible":
        return "established", state, ("look-at-io", "mount-soft")
    if state == "kept":
        return "established", state, ("end-the-thread",)
    if state == "gil":
        # At first its heartbeats may only be late.
        certain = rank.stacks is not None and picture.incident.kind == "hang"
        return "established" if certain else "likely", state, ("end-the-loop", "look-inside", "release-the-gil")
    if state == "repeats":
        return "likely", state, ("end-the-loop", waits.longer(picture)[0])
    if state == "idle" or _sleeps(rank):
        return _idle(picture, rank)
    return "likely" if rank.frames else "possible", "unknown", ("look-inside", "bound-the-wait")


def _sleeps(rank: RankView) -> bool:
    """Whether it waits for time to pass. time.sleep has no frame of its own: the line that calls it is the innermost one."""
    in_kernel = rank.activity is not None and (rank.activity.wchan or "").startswith(_NANOSLEEP)
    return (
        in_kernel or (rank.wait is not None and rank.wait.kind == "sleep") or (bool(rank.frames) and _SLEEP.search(rank.frames[-1].code) is not None)
    )


def _sleep_s(rank: RankView) -> float:
    """How long its line says that it sleeps, 0 if that cannot be told."""
    found = _SLEEP.search(rank.frames[-1].code) if rank.frames else None
    return float(found["seconds"] or 0) if found else 0.0


def _idle(picture: RunView, rank: RankView) -> tuple[Standing, str, tuple[str, ...]]:
    certain = bool(rank.frames) and (picture.front is not None or len(picture.ranks) == 1)
    standing: Standing = "established" if certain and rank.wait is not None and not rank.wait.ends else "likely"
    # Of several ranks one sentence tells what all of them wait in.
    alike = {waits.described(picture, r.wait) for r, state in held_back(picture) if state == "idle"} == {doing := waits.described(picture, rank.wait)}
    if rank.wait is not None and doing and alike:
        return standing, "described", waits.remedies(rank.wait)
    if _sleeps(rank):
        return "likely", "asleep", (waits.longer(picture, lasts_s=_sleep_s(rank))[0], "bound-the-wait")
    return standing, "idle", ("look-inside", "bound-the-wait")
