"""How long is too long, learned from the training's own progress.

The usual gap is the median, over the recent steps, of the longest time within a step in which a rank did not move on
(no collective issued or completed, no step done). A training without optimizer steps is measured by its collectives.
"""

from __future__ import annotations

from collections import deque
from statistics import median

FLOOR_S = 8.0
# One step that takes twenty times the usual is a burst, not a hang.
PATIENCE = 22.0
# While the usual gap is below a second, a hang is found within 15 s of its start: this, and the time to take the evidence.
QUICK_CAP_S = 11.0
STARTUP_S = 180.0
# Where nobody waits for anybody, ranks may be uploading, or waiting for a service: silence there has to last longer.
SILENCE_FACTOR = 10.0
SILENCE_FLOOR_S = 120.0
MIN_GAPS = 3
WINDOW = 64


class Rhythm:
    """Learns from `progress`; tells `threshold_s`. Times are seconds of any monotonic clock, given by the caller."""

    def __init__(self, *, hang_after_s: float | None = None, startup_s: float = STARTUP_S) -> None:
        self._fixed = hang_after_s
        self._startup = startup_s
        self._last: dict[int, float] = {}
        self._longest: dict[int, float] = {}
        self._steps: deque[float] = deque(maxlen=WINDOW)
        self._moves: deque[float] = deque(maxlen=4 * WINDOW)

    def progress(self, rank: int, *, t: float, stepped: bool) -> None:
        """A rank has moved on at `t`; `stepped` where that ended an optimizer step."""
        last = self._last.get(rank)
        self._last[rank] = t
        if last is None:
            return
        gap = t - last
        self._moves.append(gap)
        self._longest[rank] = max(gap, self._longest.get(rank, 0.0))
        if stepped:
            self._steps.append(self._longest.pop(rank))

    @property
    def usual_gap_s(self) -> float | None:
        """None until enough was seen to say."""
        if len(self._steps) >= MIN_GAPS:
            return median(self._steps)
        if not self._steps and len(self._moves) >= 4 * MIN_GAPS:
            ordered = sorted(self._moves)
            return ordered[int(0.95 * (len(ordered) - 1))]
        return None

    @property
    def threshold_s(self) -> float:
        """How long a rank may wait inside a collective before something is taken to be wrong."""
        if self._fixed is not None:
            return self._fixed
        usual = self.usual_gap_s
        if usual is None:
            return self._startup
        threshold = max(FLOOR_S, PATIENCE * usual)
        return min(threshold, QUICK_CAP_S) if usual < 1.0 else threshold

    @property
    def silence_s(self) -> float:
        """How long all ranks may stand still while none waits for another."""
        if self._fixed is not None:
            return self._fixed
        return max(SILENCE_FLOOR_S, SILENCE_FACTOR * self.threshold_s)
