"""What every rank is doing, from its heartbeats, how fast all go, and the moment when nothing moves any more.

Pure bookkeeping: time is passed in, nothing is read from the machine. Whether a rank that does not move is executing
or stuck is not decided here; the supervisor looks at the kernel's numbers for that.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from unhang.frames import OURS, Frame
from unhang.launch import events
from unhang.launch.step_rate import Rhythm
from unhang.model import Counters, frozen
from unhang.records.incident import Ended, Raised, is_own, silent

PLACES = 240
# As attach tells it.
_POLLS_A_LOCK = "file_baton"


@frozen
class Wait:
    """A rank inside a collective; `group` is None where only its stack tells."""

    group: str | None
    enqueued: int
    for_s: float


@dataclass
class RankState:
    """One rank as its messages describe it. Times are seconds since the start of the run.

    `told_world` and `told_local_world` are what its launcher told it, `world_size` what it has joined. `alone_s` is when it began to step without
    having joined a group, though its launcher promised others. `tid` is the thread that trains, where that is not the main one. `missed_s` is when
    others last said, by unhang's library, that they had waited for this rank in vain. `acted_s` is when it was last seen to take a step, or to begin
    or leave a collective: `last_progress_s` is told of one that has only joined a group, too.
    `argv`, only for unhang bench, is without credentials.
    """

    rank: int
    pid: int
    host: str
    local_rank: int | None
    since_s: float
    tid: int | None = None
    told_world: int | None = None
    told_local_world: int | None = None
    world_size: int | None = None
    alone_s: float | None = None
    backend: str | None = None
    device: str | None = None
    gpu: str | None = None
    timeout_s: float | None = None
    torch: str | None = None
    argv: tuple[str, ...] = ()
    joined: bool = False
    left: bool = False
    step: int = 0
    groups: dict[str, Counters] = field(default_factory=dict)
    inside: str | None = None
    promised_s: float = 0.0
    place: Frame | None = None
    last_beat_s: float | None = None
    last_progress_s: float = 0.0
    acted_s: float | None = None
    still_since_s: dict[str, float] = field(default_factory=dict)
    step_when_still: dict[str, int] = field(default_factory=dict)
    last_step_s: float | None = None
    places: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=PLACES))
    missed_s: float | None = None
    raised: Raised | None = None
    exit_frames: tuple[Frame, ...] = ()
    announced: bool = False
    finished: bool = False
    ended: Ended | None = None

    def wait(self, now: float, *, patient: bool = True) -> Wait | None:
        """The collective that the rank has been inside of for longest without any news of its group; None outside. Who is not `patient` counts what
        its own deadline still allows, too.

        A group whose collective stays open while the rank goes on stepping is served by a thread of its own (a stop signal, an asynchronous
        checkpoint): nobody waits for that one. Nor is it known of a rank that tells nothing any more: it may have left what it was in between two
        heartbeats, and have been stopped elsewhere.
        """
        if self.silent(now):
            return None
        waits = [
            Wait(group=name, enqueued=c.enqueued, for_s=now - self.still_since_s.get(name, now))
            for name, c in self.groups.items()
            # Of a group that only evidence has told of, no heartbeat has come yet.
            if c.enqueued > c.completed and self.step - self.step_when_still.get(name, self.step) < 2 and not is_own(name)
        ]
        if self.inside is not None and not self.polls:
            # For as long as the call's own deadline allows, whoever waits in unhang's library is served by it.
            waits.append(Wait(group=None, enqueued=0, for_s=max(0.0, now - self.last_progress_s - (self.promised_s if patient else 0.0))))
        return max(waits, key=lambda w: w.for_s, default=None)

    def silent(self, now: float) -> bool:
        """Whether its heartbeats have stopped: it is stopped itself, or some thread of it lets no other one run."""
        return silent(self.last_beat_s, now)

    @property
    def is_in_collective(self) -> bool:
        """Whether a collective of it is pending, or its main thread stands in one."""
        return self.inside is not None or any(c.enqueued > c.completed for c in self.groups.values())

    @property
    def polls(self) -> bool:
        """Whether the rank looks again and again for a lock file to vanish: it wakes up often, and does nothing."""
        return self.inside == _POLLS_A_LOCK

    @property
    def asks(self) -> bool:
        """Whether the rank waits in unhang's library, which asks the store again and again meanwhile."""
        return self.inside is not None and self.inside.startswith(OURS)

    def is_served(self, now: float) -> bool:
        """Whether what the rank waits in ends by itself, at a deadline that the user has given."""
        return self.asks and now - self.last_progress_s < self.promised_s

    @property
    def missed(self) -> bool:
        """Whether others have gone on without this rank, and it has not moved since."""
        return self.missed_s is not None and self.last_progress_s <= self.missed_s

    def places_seen(self, since_s: float) -> int:
        """At how many different instructions heartbeats have found the main thread since then."""
        return len({sig for t, sig in self.places if t >= since_s})

    def moved_share(self, since_s: float) -> float | None:
        """Share of the heartbeats since then that found the main thread elsewhere; None with too few of them."""
        sigs = [sig for t, sig in self.places if t >= since_s]
        if len(sigs) < 4:
            return None
        return sum(a != b for a, b in itertools.pairwise(sigs)) / (len(sigs) - 1)


@frozen
class Stall:
    """Nothing moves. `waiting` ranks are inside a collective, `absent` ones live elsewhere; without anybody waiting, all are `absent`."""

    since_s: float
    threshold_s: float
    waiting: tuple[int, ...]
    absent: tuple[int, ...]


class Watch:
    """All ranks of one attempt."""

    def __init__(self, rhythm: Rhythm) -> None:
        self.rhythm = rhythm
        self.ranks: dict[int, RankState] = {}

    def alive(self) -> list[RankState]:
        """The ranks that still belong to the training: neither ended nor out of the process group."""
        return [r for r in self._living() if not r.left]

    def beat(
        self,
        state: RankState,
        *,
        t: float,
        step: int,
        groups: dict[str, Counters],
        place: Frame | None,
        sig: int,
        inside: str | None = None,
        promised_s: float = 0.0,
    ) -> None:
        """Take in one heartbeat, sent at `t`."""
        steps = max(0, step - state.step)
        acted = steps > 0 or inside != state.inside
        moved = acted
        for name, counters in groups.items():
            if state.groups.get(name) != counters:
                moved = True
                acted = acted or counters.enqueued > 0
                state.still_since_s[name] = t
                state.step_when_still[name] = step
        for name in state.still_since_s.keys() - groups.keys():
            del state.still_since_s[name], state.step_when_still[name]
        state.step, state.groups, state.place, state.last_beat_s, state.inside = step, groups, place, t, inside
        state.promised_s = promised_s
        state.places.append((t, sig))
        if steps:
            state.last_step_s = t
        if acted:
            state.acted_s = t
        if moved:
            state.last_progress_s = t
            self.rhythm.progress(state.rank, t=t, steps=steps)

    def begin(self, state: RankState, *, t: float) -> None:
        """A first sign of life, or a group joined."""
        state.last_progress_s = t
        self.rhythm.begin(state.rank, t=t)

    def suspects(self, now: float, *, window_s: float) -> bool:
        """Whether it is time to look at the kernel's numbers: from `window_s` before anything would be decided, and when a user may lose patience."""
        quiet = max(min(self.rhythm.threshold_s - window_s, self.rhythm.stands_s * 2 / 3), 0.5)
        return any(max(now - r.last_progress_s, w.for_s if (w := r.wait(now)) else 0.0) >= quiet for r in self._living())

    def look(self, now: float) -> Stall | None:
        """Whether the training has stalled. Thresholds are the rhythm's."""
        return self._look(now, waited_s=self.rhythm.threshold_s, all_waited_s=self.rhythm.divergence_s, silent_s=self.rhythm.silence_s)

    def stands(self, now: float) -> Stall | None:
        """Whether nothing has moved for longer than is usual, though it may be no hang yet. The threshold told is that of a hang."""
        stands_s = self.rhythm.stands_s
        # A deadline may be an hour: whoever interrupts has no more patience, and where it stood would be lost.
        return self._look(now, waited_s=stands_s, all_waited_s=stands_s, silent_s=stands_s, patient=False)

    def _look(self, now: float, *, waited_s: float, all_waited_s: float, silent_s: float, patient: bool = True) -> Stall | None:
        alive = self.alive()
        waits = {r.rank: w for r in alive if (w := r.wait(now, patient=patient)) is not None}
        longest = max(waits.values(), key=lambda w: w.for_s, default=None)
        if longest is not None:
            # Whoever has been in a collective for half the time waits; the others never came.
            everybody = all(r.rank in waits and waits[r.rank].for_s >= all_waited_s / 2 for r in alive)
            needed = all_waited_s if everybody else waited_s
            if longest.for_s >= needed:
                waiting = [r for r in alive if r.rank in waits and waits[r.rank].for_s >= needed / 2]
                others = [r for r in alive if r not in waiting]
                absent = self._absent(others, longest, [waits[r.rank] for r in waiting], now) or [
                    r for r in others if now - r.last_progress_s >= needed / 2
                ]
                if others and not absent:
                    # Whoever was missing has just come.
                    return None
                return Stall(since_s=now - longest.for_s, threshold_s=self.rhythm.threshold_s, waiting=_numbers(waiting), absent=_numbers(absent))
        living = self._living()
        threshold = self.rhythm.silence_s
        if living and (all(r.polls for r in living) or all(r.missed for r in living)):
            # Nobody is left that could hold the lock; or somebody has waited for them already, for as long as the user allows.
            threshold = silent_s = waited_s
        elif len(alive) < len(self.ranks):
            # The training is coming to its end: whoever is left may be saving or uploading, and nobody waits for it.
            threshold = silent_s = self.rhythm.farewell_s
        if living and not waits and all(now - r.last_progress_s >= silent_s for r in living):
            since = min(r.last_progress_s for r in living)
            return Stall(since_s=since, threshold_s=threshold, waiting=(), absent=_numbers(living))
        return None

    def complete(self) -> bool:
        """Whether all ranks of the training are known here, or would be if they had come; those of other hosts are not."""
        worlds = [r.world_size or r.told_world or 1 for r in self.ranks.values()]
        return len(self.ranks) >= max(worlds, default=1) or all(
            r.told_world is not None and r.told_world == r.told_local_world == w for r, w in zip(self.ranks.values(), worlds, strict=True)
        )

    def _living(self) -> list[RankState]:
        return [r for r in self.ranks.values() if r.ended is None]

    @staticmethod
    def _absent(others: list[RankState], wait: Wait, waits: list[Wait], now: float) -> list[RankState]:
        """Of the ranks that do not wait, those that are behind in the group that is waited in; failing that, those without a trace of it. With them
        all that are silent: what they counted last says only how far they had come by then.

        Gloo counts sends and receives with the collectives: where those who wait in one collective count differently, nobody is behind by count.
        """
        if wait.group is None:
            return others
        if len({w.enqueued for w in waits if w.group == wait.group}) > 1:
            return [
                r for r in others if r.silent(now) or (wait.group in r.groups and r.groups[wait.group].enqueued == r.groups[wait.group].completed)
            ]
        behind = [r for r in others if r.silent(now) or (wait.group in r.groups and r.groups[wait.group].enqueued < wait.enqueued)]
        return behind or [r for r in others if wait.group not in r.groups]


def _numbers(ranks: list[RankState]) -> tuple[int, ...]:
    return tuple(sorted(r.rank for r in ranks))


INTERVAL_S = 1.0
SPAN = 10
GATHERING_S = 10.0


def rate(seen: Sequence[tuple[float, int]]) -> float | None:
    """Steps a second, of times and steps; None until there are two."""
    if len(seen) < 2:
        return None
    (t0, s0), (t1, s1) = seen[0], seen[-1]
    return (s1 - s0) / (t1 - t0) if t1 > t0 else None


class Pace:
    """How fast the training goes: the first step said once, then the newest step and the recent rate.

    Call `look` again and again, from the start of the attempt on. Times are seconds since the start of the run.
    """

    def __init__(self, watch: Watch, *, promised: int | None, tell: events.Tell) -> None:
        self._watch = watch
        self._promised = promised
        self._tell = tell
        self._recent: deque[tuple[float, int]] = deque(maxlen=SPAN)
        self._looked_s = 0.0
        self._since_s: float | None = None
        self._begun = False

    @property
    def steps_per_s(self) -> float | None:
        """Over the last SPAN looks; None until there are two."""
        return rate(self._recent)

    def look(self, now: float) -> None:
        """Tell what is new, at most every INTERVAL_S."""
        self._since_s = now if self._since_s is None else self._since_s
        alive = self._watch.alive()
        if not alive or now - self._looked_s < INTERVAL_S:
            return
        self._looked_s = now
        step = min(s.step for s in alive)
        world = self._promised or max((s.world_size or 1 for s in alive), default=1)
        # Ranks of other hosts do not report here: those of this one are there when no more have come for a while.
        here = len(alive) >= world or now - max(s.since_s for s in alive) > GATHERING_S
        # Of those that have failed already nobody knows whether they would have.
        whole = len(alive) == len(self._watch.ranks)
        if step > 0 and here and whole and not self._begun:
            self._begun = True
            self._recent.clear()
            devices = tuple(sorted({s.device or "unknown device" for s in alive}))
            self._tell(events.FirstStep(ranks=len(alive), devices=devices, backend=alive[0].backend, after_s=round(now - self._since_s, 1)))
        self._recent.append((now, step))
        if self._begun:
            self._tell(events.Pace(step=step, steps_per_s=self.steps_per_s, ranks=len(alive), elapsed_s=now))
