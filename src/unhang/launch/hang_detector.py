"""Notices a stall, names it early, and ends the training late.

Naming takes evidence and draws a verdict, and harms nobody. Ending follows at once only if nothing can end the stall any more: ranks wait in calls
that do not fit each other, or one waits for a lock that nobody can release. Otherwise `patience` says how long the others may wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from unhang.frames import Frame
from unhang.i18n import Text, msg
from unhang.knowledge import waits
from unhang.launch import events
from unhang.launch.evidence import Taken
from unhang.launch.incidents import EvidenceRequest, Incidents, PendingIncident, Situation
from unhang.launch.listener import Peer
from unhang.launch.outside_view import MIN_WINDOW_S, Sampler, window_s
from unhang.launch.patience import Kind, Patience, kind_of, place_of
from unhang.launch.watch import RankState, Stall, Watch
from unhang.model import Wait, frozen
from unhang.records.incident import Activity
from unhang.records.stacks import is_endless

# A rank in uninterruptible I/O is being served by a slow disk or file server, at first.
IO_GRACE_S = 120.0
# All ranks are inside the same collective, and data moves (or GPUs spin): it may be a very large one.
JOINED_GRACE_S = 120.0
# While ranks wait and the training's pace is not known yet, its user is told after this long how long that may go on.
TOLD_AFTER_S = 15.0
# How often the dumps are waited for if all ranks wait.
COMPARISONS = 3
# How often a stall that was named is looked at, and the first of the growing intervals at which it is reported again.
LOOK_S = 1.0
REPORT_S = 30.0
# Heartbeats that come so long after a look have seen what the kernel showed then.
HEARD_S = 0.25
# After that it is named without waiting for the confirmation.
CONFIRMED_S = 3.0
# A pause at a place that this script survived before gets evidence only if it is this much longer.
LONGER = 1.5
LONGER_S = 60.0
# If the reason of a stall changes, and its time would be over sooner, the training is not ended before this.
WARNED_S = 60.0
# Of so many looks in a row another kind is believed: a tracer stops a process for an instant.
SETTLED = 5
# Pauses whose length teaches something: debuggers and signals come from outside.
LEARNED = ("waits", "repeats", "works")
ENDLESS = msg("nothing can end this stall")
OVER = msg("the time of this stall is over")


@dataclass(kw_only=True)
class _Named:
    """A stall that was reported. `taken` is the evidence of its incident, if it has one; `until_s` is when it ends the training, infinite for never;
    `changed` counts the looks that have shown another kind.
    """

    stall: Stall
    place: str | None
    kind: Kind
    until_s: float
    incident: int | None = None
    taken: Mapping[int, Taken] = field(default_factory=dict)
    changed: int = 0
    report_s: float = 0.0
    interval_s: float = REPORT_S


@frozen
class _Reason:
    """The rank for which the others may wait for the shortest time, until when, and the timeout of their collective."""

    rank: int
    kind: Kind
    wait: Wait | None
    until_s: float
    timeout_s: float | None


class Ground(Protocol):
    """The attempt that is watched."""

    def states(self) -> Sequence[RankState]: ...
    def everybody(self, stall: Stall | None) -> list[EvidenceRequest]: ...
    def situation(self, opened: PendingIncident) -> Situation: ...
    def running(self) -> bool: ...
    def failed(self, waiting: Peer | None) -> None: ...
    def release_all(self) -> None: ...
    async def draw(self, opened: PendingIncident) -> None: ...
    async def end(self) -> None: ...


@dataclass(eq=False)
class Alarm:
    """Call `look` again and again. `failed_meanwhile` is set by whoever sees a rank fail while an incident of ours is open."""

    ground: Ground
    _: KW_ONLY
    watch: Watch
    sampler: Sampler
    incidents: Incidents
    patience: Patience
    leave_hung: bool
    clock: Callable[[], float]
    tell: events.Tell

    def __post_init__(self) -> None:
        self._named: _Named | None = None
        self._looked_s = -LOOK_S
        # When a rank was first seen in a wait that nothing can end, and where it stood then.
        self._stuck: dict[int, tuple[float, object]] = {}
        self._allowance_told = False
        self._compared: float | None = None
        self._concluded = False
        self.failed_meanwhile = False

    @property
    def concluded(self) -> bool:
        """Whether the present stall has had its verdict."""
        return self._concluded or (self._named is not None and self._named.incident is not None)

    async def look(self, now: float) -> None:
        """Look once. What is found is reported, written down and acted upon before this returns."""
        window = window_s(self.watch.rhythm.threshold_s)
        if self.watch.suspects(now, window_s=window):
            self.sampler.look(self.ground.states(), now=now)
        self._tell_allowance(now)
        stall = self.watch.look(now)
        if stall is None:
            self._moves_again(now)
            return
        if self._concluded:
            return
        if not stall.absent and (await self._compare(stall) or now - stall.since_s < stall.threshold_s):
            return
        if now - self._looked_s < LOOK_S:
            return
        seen = {rank: self.sampler.activity(self.watch.ranks[rank], window_s=window) for rank in stall.absent or stall.waiting}
        if any(a is None or a.window_s < MIN_WINDOW_S for a in seen.values()):
            return
        self._looked_s = now
        reason = await self._reason(stall, {rank: a for rank, a in seen.items() if a is not None}, now)
        if reason is None:
            return
        if self._named is None or (self._named.incident is None and self._is_worth_evidence(stall, self._named.kind, now)):
            await self._name(stall, reason, now)
        if self._named is not None and not self._concluded:
            await self._wait_on(stall, self._named, reason)

    async def look_now(self) -> None:
        """Take evidence and draw a verdict because somebody asks, who may know of other hosts what is not known here."""
        opened = self.incidents.open("hang", self.watch.stands(self.clock()))
        opened.spares = True
        await self.incidents.gather(opened, self.ground.everybody(opened.stall))
        await self.ground.draw(opened)
        self._after_incident()

    async def _reason(self, stall: Stall, seen: Mapping[int, Activity], now: float) -> _Reason | None:
        """Who keeps the others waiting; None if a rank executes that nobody waits for, or all of them wait under deadlines of the user's own."""
        starting = self.watch.rhythm.usual_gap_s is None
        timeout_s = min((t for rank in stall.waiting if (t := self.watch.ranks[rank].timeout_s) is not None), default=None)
        taken = self._named.taken if self._named is not None else {}
        reasons: dict[int, _Reason] = {}
        for rank, activity in seen.items():
            state = self.watch.ranks[rank]
            if state.is_served(now):
                continue
            idle, workers = (taken[rank].idle, taken[rank].workers) if rank in taken else ((), ())
            # For a pipe all processes of the machine are looked at.
            wait = await asyncio.to_thread(self.sampler.wait, state, idle=idle, workers=workers)
            kind = kind_of(activity, wait, busy=self._lives(state, activity, now, stall))
            if kind == "stuck" and not self._is_confirmed(state, now):
                if self._named is None and now - stall.since_s < stall.threshold_s + CONFIRMED_S:
                    return None
                kind = "waits"
            if not stall.waiting and (kind == "works" or (kind == "repeats" and not self._holds_other_hosts(state))):
                # Nobody waits for it, and it executes: that is what a training does.
                return None
            if not stall.absent:
                kind = "remote" if not self.watch.complete() else "works" if kind in ("works", "repeats") else "joined"
                if kind == "works" and now - stall.since_s < JOINED_GRACE_S:
                    return None
            limit_s = self.patience.limit_s(kind, place_of(_current_place(state, now, taken)), starting=starting, timeout_s=timeout_s)
            if kind != "stuck" and not stall.waiting:
                # Nobody's collective times out: a rank may be uploading, and the last one more than others.
                limit_s = max(limit_s, stall.threshold_s)
            reasons[state.pid] = _Reason(rank=rank, kind=kind, wait=wait, until_s=stall.since_s + limit_s, timeout_s=timeout_s)
        # Who waits for another of them is waited for as long as that one is.
        own = [r for r in reasons.values() if r.kind == "stuck" or r.wait is None or r.wait.holder not in reasons] or list(reasons.values())
        return min(own, key=lambda r: (r.until_s, r.rank), default=None)

    def _holds_other_hosts(self, state: RankState) -> bool:
        """Whether ranks that are not known here wait for it, or soon will: it is in a loop that it cannot leave."""
        return not self.watch.complete() and state.place is not None and is_endless(state.place.file, state.place.line)

    def _is_confirmed(self, state: RankState, now: float) -> bool:
        """Whether a rank that seems stuck was so a second ago, too, and its heartbeats say that it is in no collective.

        The kernel shows a rank that has just come to its collective as waiting for its own threads, before a heartbeat has told of it.
        """
        if state.is_in_collective:
            return False
        stands = (state.pid, state.last_progress_s, state.places[-1][1] if state.places else None)
        since_s, stood = self._stuck.get(state.rank, (now, None))
        if stood != stands:
            since_s = now
        self._stuck[state.rank] = since_s, stands
        heard = state.silent(now) or (state.last_beat_s or 0.0) > since_s + HEARD_S
        return now - since_s >= LOOK_S and heard

    def _tell_allowance(self, now: float) -> None:
        """Ranks wait, and what is usual is not known yet: how long that may go on is said once."""
        allowed_s = self.watch.rhythm.allowance_s
        if self._allowance_told or allowed_s is None or allowed_s <= TOLD_AFTER_S:
            return
        stands = self.watch.stands(now)
        if stands is None or not stands.waiting or now - stands.since_s < TOLD_AFTER_S:
            return
        self._allowance_told = True
        steps = max((r.step for r in self.watch.alive()), default=0)
        seen = "no optimizer step" if not steps else f"only {steps} optimizer step{'' if steps == 1 else 's'}"
        self.tell(events.Note(text=f"{seen} seen yet: a standstill is taken for a hang after {allowed_s:g} s (--startup)"))

    def _lives(self, state: RankState, activity: Activity, now: float, stall: Stall) -> bool:
        """Whether a rank executes: by the kernel's numbers, by its steps, or because a slow disk serves it."""
        stepping = state.last_step_s is not None and now - state.last_step_s < stall.threshold_s / 2
        executes = activity.computes if state.polls or state.asks else activity.busy
        return executes or stepping or (activity.state == "D" and now - stall.since_s < IO_GRACE_S)

    async def _compare(self, stall: Stall) -> bool:
        """All ranks of this host wait: whether in calls that do not fit each other, or in a circle: a hang that needs no rhythm and no patience."""
        if self._compared == stall.since_s:
            return False
        self._compared = stall.since_s
        opened = self.incidents.open("hang", stall, told=False)
        await self.incidents.gather(opened, self.ground.everybody(stall))
        for again in range(COMPARISONS):
            if again:
                await opened.taker.wait_on(opened.taken)
            if await self.incidents.parted(opened, self.ground.situation(opened)):
                self.incidents.announce(opened)
                await self._conclude(opened)
                return True
            if not opened.taker.late or self.failed_meanwhile or self.watch.look(self.clock()) is None:
                break
        self._abandon()
        return False

    def _is_worth_evidence(self, stall: Stall, kind: Kind, now: float) -> bool:
        """Of a pause that the script survived before at this place, a line is enough; and a rank of another host leaves no evidence here."""
        usual_s = max((self.patience.usual_s(place_of(_current_place(self.watch.ranks[rank], now, {}))) for rank in stall.absent), default=0.0)
        return kind != "remote" and now - stall.since_s >= min(LONGER * usual_s, usual_s + LONGER_S)

    async def _name(self, stall: Stall, reason: _Reason, now: float) -> None:
        """Take evidence of a stall and draw its verdict, whatever becomes of it. One that ends the training right now is left to `_end`."""
        named = _Named(stall=stall, place=None, kind=reason.kind, until_s=reason.until_s)
        if (now < reason.until_s or self.leave_hung) and self._is_worth_evidence(stall, reason.kind, now):
            busy = bool(stall.absent) and reason.kind in ("works", "repeats")
            opened = self.incidents.open("straggler" if busy else "hang", stall)
            opened.spares, opened.bound_s = True, _bound_s(named)
            concerned = (*stall.absent, *stall.waiting) if busy else None
            await self.incidents.gather(opened, [a for a in self.ground.everybody(stall) if concerned is None or a.state.rank in concerned])
            seen = opened.taken[reason.rank].activity if reason.rank in opened.taken else None
            wait = seen.wait if seen is not None else None
            if reason.kind == "waits" and wait is not None and not wait.ends and not self.leave_hung:
                # Only its stacks tell which threads release nothing, and which workers it waits for.
                opened.kind, opened.spares = "hang", False
                await self._conclude(opened)
                return
            if not self._is_still_there(opened):
                return
            await self.ground.draw(opened)
            named.incident, named.taken = opened.number, opened.taken
        named.place = place_of(_current_place(self.watch.ranks[reason.rank], now, named.taken))
        self._named = named

    async def _wait_on(self, stall: Stall, named: _Named, reason: _Reason) -> None:
        """Wait for a stall that was named, report it at growing intervals, and end the training when its time is over."""
        now = self.clock()
        named.changed = named.changed + 1 if reason.kind != named.kind else 0
        is_new = named.changed >= SETTLED or (reason.kind == "stuck" and named.changed > 0)
        if is_new:
            # The end may come sooner than announced, but surprises nobody; at once only if there is nothing to wait for.
            sooner_s = reason.until_s if reason.kind == "stuck" else min(named.until_s, now + WARNED_S)
            named.kind, named.until_s, named.changed = reason.kind, max(reason.until_s, sooner_s), 0
        elif reason.kind == named.kind:
            named.until_s = max(named.until_s, reason.until_s)
        if now >= named.until_s and not self.leave_hung:
            await self._end(stall, named, reason)
        elif is_new or now >= named.report_s:
            named.report_s, named.interval_s = now + named.interval_s, 2 * named.interval_s
            place = _current_place(self.watch.ranks[reason.rank], now, named.taken)
            self.tell(
                events.Stalled(
                    ranks=(reason.rank,) if stall.absent else stall.waiting,
                    waiting=stall.waiting if stall.absent else (),
                    for_s=round(now - stall.since_s, 1),
                    kind=reason.kind,
                    place=None if place is None else f"{Path(place.file).name}:{place.line}",
                    wait=reason.wait,
                    left_s=None if self.leave_hung or math.isinf(named.until_s) else round(named.until_s - now, 1),
                    met_before=self.patience.pauses.ended.get(named.place or "", 0),
                    longer_s=waits.longer_s(_bound_s(named) or 0.0, timeout_s=reason.timeout_s),
                    incident=named.incident,
                )
            )

    async def _end(self, stall: Stall, named: _Named, reason: _Reason) -> None:
        """Take the last evidence, and end the training unless it has gone on meanwhile."""
        opened = self.incidents.open("hang", stall)
        opened.bound_s = _bound_s(named)
        await self.incidents.gather(opened, self.ground.everybody(stall))
        if reason.kind == "stuck" and self.watch.ranks[reason.rank].is_in_collective:
            # Its evidence is newer than its heartbeats: it has come.
            self._abandon()
            return
        await self._conclude(opened, ENDLESS if reason.kind == "stuck" else OVER)
        if self._concluded and reason.kind in LEARNED:
            self.patience.ended(named.place or place_of(_current_place(self.watch.ranks[reason.rank], self.clock(), opened.taken)))

    async def _conclude(self, opened: PendingIncident, why: Text = ENDLESS) -> None:
        """The evidence of a hang is in: judge it and end the training, unless it has gone on or failed meanwhile."""
        if not self._is_still_there(opened):
            return
        await self.ground.draw(opened)
        self._concluded = True
        if self.leave_hung:
            self._after_incident()
        elif self.ground.running():
            self.tell(events.Note(text=msg("ending the training: {why}", why=why)))
            await self.ground.end()

    def _is_still_there(self, opened: PendingIncident) -> bool:
        """Whether the stall has outlasted the taking of its evidence."""
        if self.failed_meanwhile:
            self.failed_meanwhile = False
            opened.kind = "failure"
            self.ground.release_all()
            return False
        if not self.ground.running() or self.watch.look(self.clock()) is None:
            self._abandon()
            return False
        return True

    def _abandon(self) -> None:
        self.incidents.abandon()
        self._after_incident()

    def _after_incident(self) -> None:
        """A rank may have failed while another incident was open."""
        if self.failed_meanwhile:
            self.failed_meanwhile = False
            self.ground.failed(None)

    def _moves_again(self, now: float) -> None:
        named, self._named = self._named, None
        self._compared = None
        self._concluded = False
        self._stuck.clear()
        if named is not None:
            for_s = now - named.stall.since_s
            self.tell(events.CaughtUp(after_s=round(for_s, 1)))
            if named.kind in LEARNED:
                self.patience.survived(named.place, for_s)


def _current_place(state: RankState, now: float, taken: Mapping[int, Taken]) -> Frame | None:
    """Where a rank stands. The last heartbeat of a silent one is of another moment: its evidence tells, if there is any."""
    if not state.silent(now):
        return state.place
    return taken[state.rank].place if state.rank in taken else None


def _bound_s(named: _Named) -> float | None:
    """How long the others wait in all; None for without end."""
    return None if math.isinf(named.until_s) else round(named.until_s - named.stall.since_s, 1)
