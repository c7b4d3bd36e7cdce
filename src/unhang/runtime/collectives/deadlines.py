"""How long a guarded call may go on without anything being completed.

In this order: what the call itself says; `with unhang.deadline(seconds)` around it (the shortest of nested ones); what was learned from earlier
calls; a default by size. Time without progress counts, never the whole: a large tensor on a slow link is late only when it stands still.

Nothing here uses SIGALRM: a signal does not release a collective that waits inside Gloo, and it fires after those that end well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from unhang.runtime import torch_calls

Deadline = float | Literal["tiers"] | None

# Ranks come seconds apart in healthy trainings (a checkpoint, a data loader that refills), minutes apart around evaluations.
DEFAULT_S = 300.0
EVALUATION_S = 1800.0
# What a link has to bring at the very least: a tenth of 1 GbE.
_SLOWEST_BYTES_PER_S = 12_500_000
# Learned deadlines: so many times the longest of the last, and never less than this.
_TIMES = 20.0
_LEAST_S = 30.0
_ENOUGH = 20
_KEPT = 200


class Given(float):
    """Seconds that the user has named, or that were learned from the training itself: `unhang run` does not end sooner what waits for so long."""


# Of the call that this process waits in, where it is Given. Read by the hook of `unhang run`.
promised_s = 0.0

_around: ContextVar[float | None] = ContextVar("unhang_deadline", default=None)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Guarded calls inside end when nothing moves for `seconds`. Raises ValueError for what is no time. Nested ones: the shortest counts.

    Torch's own calls are not bounded by it; the first that is made inside warns.
    """
    seconds = checked(seconds)
    outer = _around.get()
    token = _around.set(seconds if outer is None else min(outer, seconds, key=float))
    torch_calls.blocks(1, _around.get)
    try:
        yield
    finally:
        torch_calls.blocks(-1, _around.get)
        _around.reset(token)


def waits_for(deadline_s: float) -> None:
    """A call with this deadline begins to wait."""
    global promised_s
    promised_s = float(deadline_s) if isinstance(deadline_s, Given) else 0.0


def checked(seconds: float) -> Given:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ValueError(f"a deadline is a positive number of seconds, not {seconds!r}")
    return Given(seconds)


def tier(numel: int) -> float:
    """By size alone: 5 minutes below 10 million elements, 15 below 100 million, 30 above. `deadline="tiers"` asks for it."""
    if numel < 10_000_000:
        return 300.0
    return 900.0 if numel < 100_000_000 else 1800.0


class Learned:
    """How long calls of one kind took, from which the deadline of the next follows (`adaptive`)."""

    def __init__(self) -> None:
        self._took: dict[str, deque[float]] = {}
        self._gave: dict[str, float] = {}

    def saw(self, kind: str, seconds: float) -> None:
        if kind not in self._took:
            self._took[kind] = deque(maxlen=_KEPT)
        self._took[kind].append(seconds)

    def deadline_s(self, kind: str) -> float | None:
        """None until enough was seen."""
        took = self._took.get(kind, ())
        return max(_LEAST_S, _TIMES * max(took)) if len(took) >= _ENOUGH else None

    def asked(self, kind: str) -> float | None:
        """For a call that wants it."""
        if (found := self.deadline_s(kind)) is not None:
            self._gave[kind] = found
        return found

    def in_force(self) -> dict[str, float]:
        """By kind, that of the last call that wanted one."""
        return dict(self._gave)


learned = Learned()
_adaptive = False


@contextmanager
def adaptive(on: bool = True) -> Iterator[None]:
    """Inside, calls without a deadline take one that is learned from those before: 20 times the longest of the last 200, at least 30 s."""
    global _adaptive
    before, _adaptive = _adaptive, on
    try:
        yield
    finally:
        _adaptive = before


def found(given: Deadline, *, kind: str, numel: int, step_bytes: int) -> float:
    """The deadline in force, in seconds. `step_bytes` is what has to be completed for anything to be seen of it."""
    if given == "tiers":
        return Given(tier(numel))
    if given is not None:
        return checked(given)
    if (around := _around.get()) is not None:
        return around
    if _adaptive and (seen := learned.asked(kind)) is not None:
        return Given(seen)
    return DEFAULT_S + step_bytes / _SLOWEST_BYTES_PER_S
