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
# At the end of a training the last rank may upload for long while the others have left.
FAREWELL_S = 600.0
MIN_GAPS = 3
# What a user interrupts is said to stand still when nothing has come for so long, and for so many usual gaps.
STANDS_S = 3.0
STANDS_GAPS = 2.0
WINDOW = 64
RECENT = 8


class Rhythm:
    """Learns from `progress`; tells `threshold_s`. Times are seconds of any monotonic clock, given by the caller."""

    def __init__(self, *, hang_after_s: float | None = None, startup_s: float = STARTUP_S) -> None:
        self._fixed = hang_after_s
        self._startup = startup_s
        self._last: dict[int, float] = {}
        self._longest: dict[int, float] = {}
        self._steps: dict[int, deque[float]] = {}
        self._moves: deque[float] = deque(maxlen=4 * WINDOW)
        self._usual: float | None = None

    def begin(self, rank: int, *, t: float) -> None:
        """A rank has come, or has joined its group: what it did before is no part of the rhythm."""
        self._last[rank] = t
        self._longest.pop(rank, None)

    def forget(self) -> None:
        """The ranks begin anew: what was learned of the ones before holds no longer."""
        for learned in (self._last, self._longest, self._steps, self._moves):
            learned.clear()
        self._usual = None

    def progress(self, rank: int, *, t: float, steps: int = 0) -> None:
        """A rank has moved on at `t`, which ended so many optimizer steps."""
        gap = t - self._last.get(rank, t)
        self._last[rank] = t
        self._moves.append(gap)
        self._longest[rank] = max(gap, self._longest.get(rank, 0.0))
        if steps:
            longest = self._steps.setdefault(rank, deque(maxlen=WINDOW))
            longest.append(self._longest.pop(rank))
            # Of several steps between two heartbeats only their number is known.
            longest.extend([gap / steps] * min(steps - 1, WINDOW - 1))
        self._usual = self._learn()

    @property
    def usual_gap_s(self) -> float | None:
        """None until enough was seen to say."""
        return self._usual

    @property
    def threshold_s(self) -> float:
        """How long a rank may wait inside a collective before the others are looked at and named. Nothing is ended for that: see `patience`."""
        threshold = self._startup
        if self._usual is not None:
            threshold = max(FLOOR_S, PATIENCE * self._usual)
            threshold = min(threshold, QUICK_CAP_S) if self._usual < 1.0 else threshold
        return threshold if self._fixed is None else min(threshold, self._fixed)

    @property
    def allowance_s(self) -> float | None:
        """What holds instead of a rhythm, as long as that is not known; None where it is, or where the threshold was given."""
        return self._startup if self._fixed is None and self._usual is None else None

    @property
    def divergence_s(self) -> float:
        """How long all ranks may wait before it is worth comparing the calls they wait in; that needs no rhythm."""
        return min(self.threshold_s, FLOOR_S)

    @property
    def silence_s(self) -> float:
        """How long all ranks may stand still while none waits for another."""
        silence = max(SILENCE_FLOOR_S, SILENCE_FACTOR * self.threshold_s)
        return silence if self._fixed is None else min(silence, self._fixed)

    @property
    def farewell_s(self) -> float:
        """The same once some ranks have left."""
        return max(self.silence_s, FAREWELL_S) if self._fixed is None else self.silence_s

    @property
    def stands_s(self) -> float:
        """How long without progress is out of the ordinary, though no hang yet: evidence of it is worth a moment before it is interrupted."""
        # Moves without steps are judged by their slowest, so that nothing is taken for a hang too early; this only asks for evidence.
        usual = (self._usual or 0.0) if self._steps else median(self._moves) if self._moves else 0.0
        return min(max(STANDS_S, STANDS_GAPS * usual), self.threshold_s)

    def _learn(self) -> float | None:
        if self._steps:
            if max(len(steps) for steps in self._steps.values()) < MIN_GAPS:
                return None
            whole = median(gap for steps in self._steps.values() for gap in steps)
            # Where a slower phase has begun, its first steps tell more than all those before.
            lately = median(gap for steps in self._steps.values() for gap in list(steps)[-RECENT:])
            return max(whole, lately)
        if len(self._moves) < 4 * MIN_GAPS * max(len(self._last), 1):
            return None
        ordered = sorted(self._moves)
        return ordered[int(0.95 * (len(ordered) - 1))]
