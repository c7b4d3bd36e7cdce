"""What every rank is doing, from its heartbeats, and the moment when nothing moves any more.

Pure bookkeeping: time is passed in, nothing is read from the machine. Whether a rank that does not move is executing
or stuck is not decided here; the supervisor looks at the kernel's numbers for that.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from unhang.launch.rhythm import Rhythm
from unhang.records.incident import Counters, Ended, Frame, Raised

PLACES = 240


@dataclass
class RankState:
    """One rank as its messages describe it. Times are seconds since the start of the run."""

    rank: int
    pid: int
    host: str
    local_rank: int | None
    since_s: float
    world_size: int | None = None
    backend: str | None = None
    device: str | None = None
    timeout_s: float | None = None
    torch: str | None = None
    joined: bool = False
    left: bool = False
    step: int = 0
    groups: dict[str, Counters] = field(default_factory=dict)
    inside: str | None = None
    place: Frame | None = None
    last_beat_s: float | None = None
    last_progress_s: float = 0.0
    still_since_s: dict[str, float] = field(default_factory=dict)
    places: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=PLACES))
    raised: Raised | None = None
    announced: bool = False
    ended: Ended | None = None

    def waiting_for_s(self, now: float) -> float:
        """How long the rank has been inside its oldest unfinished collective without any news of that group; 0.0 outside."""
        waits = [now - self.still_since_s[name] for name, c in self.groups.items() if c.enqueued > c.completed]
        if self.inside is not None:
            waits.append(now - self.last_progress_s)
        return max(waits, default=0.0)

    def moved_share(self, since_s: float) -> float | None:
        """Share of the heartbeats since then that found the main thread elsewhere; None with too few of them."""
        sigs = [sig for t, sig in self.places if t >= since_s]
        if len(sigs) < 4:
            return None
        return sum(a != b for a, b in itertools.pairwise(sigs)) / (len(sigs) - 1)


@dataclass(frozen=True, kw_only=True)
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
        return [r for r in self.ranks.values() if r.ended is None and not r.left]

    def beat(
        self, state: RankState, *, t: float, step: int, groups: dict[str, Counters], place: Frame | None, sig: int, inside: str | None = None
    ) -> None:
        """Take in one heartbeat, sent at `t`."""
        stepped = step > state.step
        moved = stepped
        for name, counters in groups.items():
            if state.groups.get(name) != counters:
                moved = True
                state.still_since_s[name] = t
        for name in state.still_since_s.keys() - groups.keys():
            del state.still_since_s[name]
        if inside != state.inside:
            moved = True
        state.step, state.groups, state.place, state.last_beat_s, state.inside = step, groups, place, t, inside
        state.places.append((t, sig))
        if moved:
            self.progress(state, t=t, stepped=stepped)

    def progress(self, state: RankState, *, t: float, stepped: bool = False) -> None:
        """A rank has moved on: a collective, a step, or a first sign of life."""
        state.last_progress_s = t
        self.rhythm.progress(state.rank, t=t, stepped=stepped)

    def suspects(self, now: float) -> bool:
        """Whether it is time to look at the kernel's numbers, before anything is decided."""
        quiet = min(2.0, self.rhythm.threshold_s / 2)
        return any(now - r.last_progress_s >= quiet for r in self.alive())

    def look(self, now: float) -> Stall | None:
        """Whether the training has stalled. Thresholds are the rhythm's."""
        alive = self.alive()
        if not alive:
            return None
        threshold = self.rhythm.threshold_s
        if any(r.waiting_for_s(now) >= threshold for r in alive):
            # Whoever has been in a collective for half the threshold waits; the others never came.
            waiting = [r for r in alive if r.waiting_for_s(now) >= threshold / 2]
            return self._stall(now, threshold, waiting, (r for r in alive if r not in waiting))
        if any(r.left or (r.ended is not None and r.ended.announced) for r in self.ranks.values()):
            # The training is coming to its end: whoever is left may be saving or uploading, and nobody waits for it.
            return None
        silence = self.rhythm.silence_s
        if all(now - r.last_progress_s >= silence for r in alive):
            return self._stall(now, silence, [], alive)
        return None

    @staticmethod
    def _stall(now: float, threshold: float, waiting: list[RankState], absent: Iterable[RankState]) -> Stall:
        absent = list(absent)
        since = min([now - r.waiting_for_s(now) for r in waiting] or [r.last_progress_s for r in absent])
        return Stall(
            since_s=since,
            threshold_s=threshold,
            waiting=tuple(sorted(r.rank for r in waiting)),
            absent=tuple(sorted(r.rank for r in absent)),
        )
