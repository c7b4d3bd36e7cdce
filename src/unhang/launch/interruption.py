"""Ctrl-C, or SIGTERM at the end of the time: what stands still is looked at before it is interrupted, for afterwards nothing tells where it stood.

A training that moves is interrupted at once. Otherwise the signal is held back for a few seconds, and no longer once it comes again; when it comes
after it was passed on, everything is ended at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Protocol

from unhang.i18n import COMMA, NOTHING, Text, joined, msg, same
from unhang.launch import events, hang_detector, still_running
from unhang.launch.incidents import EvidenceRequest, Incidents, Judged, PendingIncident, Situation
from unhang.launch.outside_view import Sampler, window_s
from unhang.launch.watch import RankState, Stall, Watch

# For so long a signal is held back; what it takes to judge what was seen goes on behind that.
EVIDENCE_S = 5.0
JUDGING_S = 30.0
_LEEWAY_S = 1.0
_POLL_S = 0.05
# Two looks at one and the same stall date its beginning alike.
_SAME_S = 1.0
# Of those that are still there the rest is counted.
_MOST_NAMED = 8


def asked_to_end(number: int, grace_s: float, *, launchers_s: float | None = None) -> events.Note:
    """The signal was passed on: what is waited for from here on. `launchers_s`: after so long a launcher, which got it, too, may end its ranks."""
    sooner = msg("; its launcher may end it after {s} s", s=_seconds(launchers_s))
    said = msg(
        "interrupted; waiting up to {s} s for the training to end by itself{sooner} ({again} ends it at once)",
        s=_seconds(grace_s),
        sooner=NOTHING if launchers_s is None else sooner,
        again=_again(number),
    )
    return events.Note(text=said)


def still_there(
    number: int, ranks: Sequence[RankState], others: str, *, after_s: float, left_s: float, launchers_s: float | None = None
) -> events.Note:
    """Who is waited for still: `others` where it is no rank. `left_s` until they are ended by force, `launchers_s` until their launcher may do so."""
    named = [same(f"rank {s.rank} (pid {s.pid})") for s in ranks[:_MOST_NAMED]] or [same(others)]
    if len(ranks) > _MOST_NAMED:
        named.append(msg("{n} more ranks", n=len(ranks) - _MOST_NAMED))
    sooner = msg(", by their launcher maybe in {s} s", s=_seconds(launchers_s))
    said = msg(
        "still there {after} s after it: {who}; to be ended by force in {left} s{sooner} ({again} ends all at once)",
        after=_seconds(after_s),
        who=joined(named, COMMA),
        left=_seconds(left_s),
        sooner=NOTHING if launchers_s is None else sooner,
        again=_again(number),
    )
    return events.Note(text=said)


def _seconds(s: float | None) -> str:
    return "" if s is None else f"{s:g}"


def _again(number: int) -> Text:
    return msg("Ctrl-C again") if number == signal.SIGINT else msg("another signal")


class Ground(hang_detector.Ground, Protocol):
    """The attempt that is interrupted. `hand_on` passes the signal on to the command, `force` ends everything at once."""

    def anybody_failed(self) -> bool: ...
    def hand_on(self, number: int) -> None: ...
    def force(self) -> None: ...


@dataclass(eq=False)
class Interruption:
    """Call `arrive` for each signal, from the event loop; `over` before the attempt is closed. `count` signals have come."""

    ground: Ground
    _: KW_ONLY
    watch: Watch
    sampler: Sampler
    incidents: Incidents
    alarm: hang_detector.Alarm
    clock: Callable[[], float]
    tell: events.Tell

    def __post_init__(self) -> None:
        self._handed_on = False
        self._enough = asyncio.Event()
        self._look: asyncio.Task[None] | None = None
        self._seen: events.LastSeen | None = None
        # The newest incident that was judged before the signal came.
        self._last: Judged | None = None
        self.count = 0

    def arrive(self, number: int) -> None:
        """A signal has come."""
        self.count += 1
        if self.count == 1 and self.ground.running():
            self._seen = still_running.at_signal(signal.Signals(number).name, self.watch.ranks.values(), self.clock())
        if self._handed_on:
            self.ground.force()
            return
        look = self._worth_a_look(number) if self.count == 1 and self.ground.running() else None
        if look is None:
            if self._look is None:
                self._tell_seen()
            self._hand_on(number)
            return
        loop = asyncio.get_running_loop()
        loop.call_later(EVIDENCE_S, self._enough.set)
        loop.call_later(EVIDENCE_S + _LEEWAY_S, self._hand_on, number)
        self._last = self.incidents.last
        self._look = asyncio.ensure_future(self._and_hand_on(look, number))

    async def over(self) -> None:
        """Wait, bounded, until what was seen is judged; where nothing came of it, tell where the ranks were."""
        if self._look is None:
            return
        await asyncio.wait({self._look}, timeout=EVIDENCE_S + JUDGING_S)
        if not self._look.done():
            self._look.cancel()
        for failed in await asyncio.gather(self._look, return_exceptions=True):
            if isinstance(failed, Exception):
                self.incidents.trouble(f"the look before the interruption failed: {type(failed).__name__}: {failed}")
        if self.incidents.last is self._last:
            self._tell_seen()

    def _tell_seen(self) -> None:
        """Once: where the ranks were as the signal came, of whom nothing else will tell it."""
        told, self._seen = self._seen, None
        if told is not None:
            self.tell(told)

    def _hand_on(self, number: int) -> None:
        self._enough.set()
        if not self._handed_on:
            self._handed_on = True
            self.ground.hand_on(number)

    async def _and_hand_on(self, look: Coroutine[Any, Any, None], number: int) -> None:
        try:
            await look
        finally:
            self._hand_on(number)

    def _worth_a_look(self, number: int) -> Coroutine[Any, Any, None] | None:
        """The look to be taken; None where the training moves, or where what stands still has had its verdict."""
        current = self.incidents.current
        if current is not None and (current.kind != "failure" or self.ground.anybody_failed()):
            return self._finish(current, number)
        if current is not None or self.alarm.concluded or (stall := self._stands()) is None:
            return None
        return self._look_at(stall, number)

    def _stands(self) -> Stall | None:
        """What stands still, though it may be no hang yet. Where nobody waits for anybody, ranks that execute do not."""
        stall = self.watch.stands(self.clock())
        if stall is None or stall.waiting:
            return stall
        window = window_s(stall.threshold_s)
        seen = [self.sampler.activity(self.watch.ranks[rank], window_s=window, since_s=stall.since_s) for rank in stall.absent]
        return None if any(a is None or a.busy for a in seen) else stall

    def _look_at(self, stall: Stall, number: int) -> Coroutine[Any, Any, None]:
        opened = self.incidents.open("interrupted", stall, told=False)
        opened.interrupted_by = signal.Signals(number).name
        # Batch systems send their signals to all processes: what a rank does from now on may be the signal's doing.
        situation = self.ground.situation(opened)
        ranks = {s.pid: copy(s) for s in situation.states}
        situation = replace(situation, states=tuple(ranks.values()))
        asked = [replace(a, state=ranks.get(a.state.pid) or copy(a.state)) for a in self.ground.everybody(stall)]
        count = f"{len(asked)} rank{'' if len(asked) == 1 else 's'}"
        for_s = f"nothing has moved for {self.clock() - stall.since_s:.0f} s"
        self.tell(events.Note(text=f"{for_s}: taking stacks of {count}, up to {EVIDENCE_S:g} s; Ctrl-C again to skip"))
        return self._take(opened, stall, asked, situation, number)

    async def _take(self, opened: PendingIncident, stall: Stall, asked: list[EvidenceRequest], situation: Situation, number: int) -> None:
        await self.incidents.gather(opened, asked, enough=self._enough)
        # Once it is passed on, it is the signal that moves them.
        if not self._handed_on and self._has_moved(stall, asked):
            self.incidents.abandon()
            return
        self._hand_on(number)
        self.incidents.announce(opened)
        await self.incidents.draw(opened, situation)

    def _has_moved(self, stall: Stall, asked: list[EvidenceRequest]) -> bool:
        """Whether the training has gone on by itself; one whose ranks have ended meanwhile has not."""
        now = {s.pid: s for s in self.watch.ranks.values()}
        if any(a.state.pid not in now or now[a.state.pid].ended is not None for a in asked):
            return False
        stands = self.watch.stands(self.clock())
        return stands is None or stands.since_s > stall.since_s + _SAME_S

    async def _finish(self, current: PendingIncident, number: int) -> None:
        """Evidence is being taken already, of a hang or of a rank that has failed."""
        if not current.gathered.is_set():
            self.tell(events.Note(text=f"evidence is being taken, up to {EVIDENCE_S:g} s; Ctrl-C again to skip"))
        last = self.incidents.last
        while self.incidents.current is current and not self._enough.is_set() and self.ground.running():
            if current.kind == "failure" and current.gathered.is_set():
                situation = self.ground.situation(current)
                self.incidents.current = None
                self._hand_on(number)
                await self.incidents.draw(current, situation)
                return
            await asyncio.sleep(_POLL_S)
        found_none = self.incidents.current is None and self.incidents.last is last
        if found_none and not self._enough.is_set() and self.ground.running() and (stall := self._stands()) is not None:
            await self._look_at(stall, number)
