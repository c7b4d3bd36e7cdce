"""How long a guarded call may go on without anything being completed.

In this order: what the call itself says; `with unhang.deadline(seconds)` around it (the shortest of nested ones); what was learned from earlier
calls; a default by size. Time without progress counts, never the whole: a large tensor on a slow link is late only when it stands still.

Nothing here uses SIGALRM: a signal does not release a collective that waits inside Gloo, and it fires after those that end well.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from unhang.runtime import log

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
    _watch_blocks(1)
    try:
        yield
    finally:
        _watch_blocks(-1)
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


def found(given: Deadline, *, kind: str, numel: int = 1, step_bytes: int = 0) -> float:
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


# Torch's own collectives: no deadline of ours bounds them, and the first that is called inside of one warns. Ours do not take their place: a rank
# that calls torch's outside of such a block would wait forever for those inside. Nor is torch's call given up on a single rank: the ranks would be
# out of step, and a late peer would still write into this one's memory.
_NAMES = "all_reduce all_gather all_gather_into_tensor all_gather_object all_to_all all_to_all_single barrier broadcast broadcast_object_list gather"
_NAMES += " reduce reduce_scatter reduce_scatter_tensor scatter send recv"
_lock, _blocks, _warned, _plain = threading.Lock(), 0, list[str](), dict[Any, Any]()


def _watch_blocks(more: int) -> None:
    """Count open deadline blocks. While there is one, the first call of torch inside it logs a warning; then torch has its own functions again."""
    global _blocks
    with _lock:
        _blocks += more
        dist = sys.modules.get("torch.distributed")
        for name in filter(vars(dist).__contains__, _NAMES.split()) if dist is not None else ():
            plain = _plain.get(now := getattr(dist, name), now)
            setattr(dist, name, _watched(name, plain) if _blocks else plain)


@functools.cache  # What torch.compile has made of a block is made again for each other function.
def _watched(name: str, plain: Any) -> Any:
    is_compiling = sys.modules["torch"].compiler.is_compiling

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and not _warned and _around.get() is not None:
            _warned.append(name)
            log.warning("unhang.deadline() does not bound torch.distributed.%s, only calls of unhang such as unhang.all_reduce", name)
        return plain(*args, **kwargs)

    _plain[call] = plain
    return call
