"""How fast the training goes: the first step said once, then the newest step and the recent rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from unhang.launch import events
from unhang.launch.watch import Watch

INTERVAL_S = 1.0
SPAN = 10
GATHERING_S = 10.0


class Pace:
    """Call `look` again and again, from the start of the attempt on. Times are seconds since the start of the run."""

    def __init__(self, watch: Watch, *, promised: int | None, tell: Callable[[events.Event], None]) -> None:
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
        if len(self._recent) < 2:
            return None
        (t0, s0), (t1, s1) = self._recent[0], self._recent[-1]
        return (s1 - s0) / (t1 - t0)

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
