"""One try at one data set: everything is done locally, then all ranks say how it went, and one decision follows for all, the late ones too.

A rank that left an evaluation by itself would meet the others' next collective with another one: a metric lands in a gradient, and nothing complains.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import torch

from unhang.errors import StoreLost
from unhang.runtime.collectives.circle import Circle, Ended
from unhang.runtime.evaluation.results import Sums, add

# Of a user's code that is wrong: it will be wrong again.
_WRONG = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    ValueError,
)
_TELLS_EVERY_S = 1.0
_MOST_CHARS = 300


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How it went for one rank: `kind` is ok, memory, passing (worth another try), wrong, ended (by another rank) or interrupted.

    `sums` are (sum, count) by metric, of complete batches; `calls` how many collectives the training's own group has seen meanwhile.
    """

    kind: str
    says: str = ""
    sums: dict[str, tuple[float | None, float]] = {}
    calls: int = 0


class Progress:
    """Tells those that have finished that this rank goes on, and learns from them that they have given it up."""

    def __init__(self, circle: Circle, key: str) -> None:
        self._circle, self._key = circle, key
        self._told_s = time.monotonic()

    def step(self) -> None:
        """Raises Ended where the others have decided without us."""
        if time.monotonic() - self._told_s < _TELLS_EVERY_S:
            return
        self._told_s = time.monotonic()
        if not self._circle.progressed(self._key):
            raise Ended("the other ranks have given it up")


def tried(body: Callable[[Sums, Progress], None], circle: Circle, key: str, deadline_s: float) -> dict[int, Status]:
    """Runs `body`, which adds to the sums it is given, and returns the status of each rank that answered, the same on all.

    Raises KeyboardInterrupt, SystemExit and StoreLost; the others are told before.
    """
    sums: Sums = {}
    before = _calls(circle)
    raised: BaseException | None = None
    kind = "ok"
    try:
        with circle.scope(key):
            body(sums, Progress(circle, key))
    except BaseException as e:
        raised, kind = e, _kind(e)
        if kind not in ("ended", "ok"):
            circle.end(key, f"rank {circle.me}: {_says(e)}")
    status = Status(kind=kind, says="" if raised is None else _says(raised), sums=_sendable(sums), calls=_calls(circle) - before)
    if kind == "memory":
        # What the exception's frames hold is what there is too little of.
        traceback.clear_frames(raised.__traceback__ if raised else None)
        raised = None
        _make_room()
    found = circle.exchange_at(key, msgspec.json.encode(status), deadline_s)
    if kind == "interrupted" and raised is not None:
        raise raised
    if isinstance(raised, StoreLost):
        raise raised
    statuses = {rank: msgspec.json.decode(packed, type=Status) for rank, packed in sorted(found.items())}
    if len(statuses) < circle.size or any(s.kind != "ok" for s in statuses.values()):
        # Lanes that some have broken: all do.
        circle.broken()
    return statuses


def batches(found: Any, sums: Sums, progress: Progress, pair: Callable[[str, Any], tuple[float, float]]) -> None:
    """Adds what an evaluation function returned: a mapping of metrics, or an iterator that yields one for each batch."""
    steps: Iterator[Any] = iter((found,)) if isinstance(found, Mapping) else iter(found)
    for metrics in steps:
        add(sums, {name: pair(name, value) for name, value in metrics.items()})
        progress.step()


def _kind(error: BaseException) -> str:
    if isinstance(error, Ended):
        return "ended"
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        return "interrupted"
    if _is_memory(error):
        return "memory"
    return "wrong" if isinstance(error, _WRONG) else "passing"


def _is_memory(error: BaseException) -> bool:
    # torch 2.5 and newer have one for all devices; the CPU's allocator raises a RuntimeError.
    kinds = tuple(kind for name in ("OutOfMemoryError",) for kind in (getattr(torch, name, None), getattr(torch.cuda, name, None)) if kind)
    said = str(error)
    return isinstance(error, (MemoryError, *kinds)) or "can't allocate memory" in said or "CUDA out of memory" in said


def _make_room() -> None:
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _calls(circle: Circle) -> int:
    try:
        return int(circle.group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):
        return 0


def _says(error: BaseException) -> str:
    said = " ".join(str(error).split())[:_MOST_CHARS]
    frame = traceback.extract_tb(error.__traceback__)[-1:] if error.__traceback__ else []
    place = f" ({frame[0].filename.rpartition('/')[2]}:{frame[0].lineno})" if frame else ""
    return f"{type(error).__name__}: {said}{place}" if said else f"{type(error).__name__}{place}"


def _sendable(sums: Sums) -> dict[str, tuple[float | None, float]]:
    # JSON has neither NaN nor infinity.
    return {name: (total if abs(total) < float("inf") else None, count) for name, (total, count) in sums.items()}
