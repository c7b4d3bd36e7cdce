"""Finding out that a training hangs, and telling that from one that is slow.

Others wait for a rank that does nothing: a hang. Others wait for a rank that executes: a straggler, said once and given time. All wait,
in calls that do not fit each other: a hang at once. All wait in the same call: a hang if no data moves in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from unhang.launch import events
from unhang.launch.incidents import Asked, Incidents, Open, Situation
from unhang.launch.listener import Peer
from unhang.launch.sampling import MIN_WINDOW_S, Sampler, window_s
from unhang.launch.watch import RankState, Stall, Watch
from unhang.records.incident import Activity

# A rank in uninterruptible I/O is being served by a slow disk or file server, at first.
IO_GRACE_S = 120.0
# All ranks are inside one and the same collective, and data moves (or GPUs spin): that may be a very large one.
JOINED_GRACE_S = 120.0
# Where ranks wait before the training's rhythm is known, its user is told after so long how long that may go on.
TOLD_AFTER_S = 15.0
# How often the dumps are waited for where all ranks wait.
COMPARISONS = 3


class Ground(Protocol):
    """The attempt that is watched."""

    def states(self) -> Sequence[RankState]: ...
    def everybody(self, stall: Stall | None) -> list[Asked]: ...
    def situation(self, opened: Open) -> Situation: ...
    def running(self) -> bool: ...
    def failed(self, waiting: Peer | None) -> None: ...
    def release_all(self) -> None: ...
    async def draw(self, opened: Open) -> None: ...
    async def end(self) -> None: ...


class Alarm:
    """Call `look` again and again. `failed_meanwhile` is set by whoever sees a rank fail while an incident of ours is open."""

    def __init__(
        self,
        ground: Ground,
        *,
        watch: Watch,
        sampler: Sampler,
        incidents: Incidents,
        leave_hung: bool,
        clock: Callable[[], float],
        tell: Callable[[events.Event], None],
    ) -> None:
        self._ground = ground
        self._watch = watch
        self._sampler = sampler
        self._incidents = incidents
        self._leave_hung = leave_hung
        self._clock = clock
        self._tell = tell
        self._reported: Stall | None = None
        self._allowance_told = False
        self._compared: float | None = None
        self._concluded = False
        self.failed_meanwhile = False

    @property
    def concluded(self) -> bool:
        """Whether what stands still now has had its verdict."""
        return self._concluded

    async def look(self, now: float) -> None:
        """Look once; what is found is told, written down and acted upon before this returns."""
        window = window_s(self._watch.rhythm.threshold_s)
        if self._watch.suspects(now, window_s=window):
            self._sampler.look(self._ground.states(), now=now)
        self._tell_allowance(now)
        stall = self._watch.look(now)
        if stall is None:
            self._moves_again(now)
            return
        if not stall.absent and (await self._compare(stall) or now - stall.since_s < stall.threshold_s):
            return
        seen = {rank: self._sampler.activity(self._watch.ranks[rank], window_s=window) for rank in stall.absent or stall.waiting}
        if any(a is None or a.window_s < MIN_WINDOW_S for a in seen.values()):
            return
        served = [rank for rank in seen if self._watch.ranks[rank].is_served(now)]
        busy = tuple(rank for rank, a in seen.items() if a is not None and self._lives(self._watch.ranks[rank], a, now, stall) and rank not in served)
        if not stall.absent:
            await self._all_wait(stall, busy, now)
        elif not busy and not served:
            await self._hang(stall)
        elif busy and stall.waiting and self._reported is None:
            self._reported = stall
            await self._take_straggler(stall, busy)

    def _tell_allowance(self, now: float) -> None:
        """Ranks wait, and what is usual is not known yet: how long that may go on is said once."""
        allowed_s = self._watch.rhythm.allowance_s
        if self._allowance_told or allowed_s is None or allowed_s <= TOLD_AFTER_S:
            return
        stands = self._watch.stands(now)
        if stands is None or not stands.waiting or now - stands.since_s < TOLD_AFTER_S:
            return
        self._allowance_told = True
        steps = max((r.step for r in self._watch.alive()), default=0)
        seen = "no optimizer step" if not steps else f"only {steps} optimizer step{'' if steps == 1 else 's'}"
        self._tell(events.Note(text=f"{seen} seen yet: a standstill is taken for a hang after {allowed_s:g} s (--startup)"))

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
        opened = self._incidents.open("hang", stall, told=False)
        await self._incidents.gather(opened, self._ground.everybody(stall))
        for again in range(COMPARISONS):
            if again:
                await opened.taker.wait_on(opened.taken)
            if await self._incidents.parted(opened, self._ground.situation(opened)):
                await self._conclude(opened, announce=True)
                return True
            if not opened.taker.late or self.failed_meanwhile or self._watch.look(self._clock()) is None:
                break
        self._abandon()
        return False

    async def _all_wait(self, stall: Stall, busy: tuple[int, ...], now: float) -> None:
        """All ranks of this host are inside the same collective: a hang if nothing moves in it and no other host is missing."""
        for_s = now - stall.since_s
        if not self._watch.complete():
            if self._reported is None:
                self._reported = stall
                self._tell(events.Note(text=f"all ranks of this host have waited for {for_s:.0f} s for ranks of other hosts"))
        elif not busy or for_s >= max(JOINED_GRACE_S, 10 * stall.threshold_s):
            await self._hang(stall)

    async def _hang(self, stall: Stall) -> None:
        if self._concluded:
            return
        self._reported = stall
        opened = self._incidents.open("hang", stall)
        await self._incidents.gather(opened, self._ground.everybody(stall))
        await self._conclude(opened)

    async def _conclude(self, opened: Open, *, announce: bool = False) -> None:
        """The evidence of a hang is in: judge it, and end the training unless it has gone on or failed meanwhile."""
        if announce:
            self._incidents.announce(opened)
            self._reported = opened.stall
        if self.failed_meanwhile:
            self.failed_meanwhile = False
            opened.kind = "failure"
            self._ground.release_all()
            return
        if not self._ground.running() or self._watch.look(self._clock()) is None:
            self._abandon()
            return
        await self._ground.draw(opened)
        self._concluded = True
        if self._leave_hung:
            self._after_incident()
        elif self._ground.running():
            await self._ground.end()

    async def _take_straggler(self, stall: Stall, busy: tuple[int, ...]) -> None:
        opened = self._incidents.open("straggler", stall)
        await self._incidents.gather(opened, [a for a in self._ground.everybody(stall) if a.state.rank in (*busy, *stall.waiting)])
        self._tell(events.Straggling(ranks=busy, waiting=stall.waiting, for_s=round(self._clock() - stall.since_s, 1), incident=opened.number))
        await self._ground.draw(opened)
        self._after_incident()

    def _abandon(self) -> None:
        self._incidents.abandon()
        self._after_incident()

    def _after_incident(self) -> None:
        """A rank may have failed while another incident was open."""
        if self.failed_meanwhile:
            self.failed_meanwhile = False
            self._ground.failed(None)

    def _moves_again(self, now: float) -> None:
        if self._reported is not None:
            self._tell(events.CaughtUp(after_s=round(now - self._reported.since_s, 1)))
        self._reported = self._compared = None
        self._concluded = False
