"""One try at one data set: everything is done locally, then all ranks say how it went, and one decision follows for all, the late ones too.

A rank that left an evaluation by itself would meet the others' next collective with another one: a metric lands in a gradient, and nothing complains.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch

from unhang.errors import CollectiveTimeout, EvaluationFailed, PeerFailed, StoreLost
from unhang.model import frozen
from unhang.runtime import log
from unhang.runtime.collectives import deadlines
from unhang.runtime.collectives.agreement import Sums, add, paired, short
from unhang.runtime.collectives.call_sites import have_ended
from unhang.runtime.collectives.calls import Ended
from unhang.runtime.collectives.guarded_group import GuardedGroup
from unhang.runtime.evaluation.collective_counts import Calls, CollectiveCounts
from unhang.user_files import is_user_file

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
_OF_ITS_OWN = frozenset({"memory", "passing", "wrong"})
_TELLS_EVERY_S = 1.0
_MOST_CHARS = 300
_MOST_FRAMES = 40
_OURS = str(Path(__file__).resolve().parent)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How it went for one rank: `kind` is ok, memory, passing (worth another try), wrong, stood (still, until a deadline), ended (by another rank) or
    interrupted.

    `sums` are (sum, count) by metric, of complete batches; `calls` how many collectives its groups have seen meanwhile. `broke`: it has given its
    lanes up, and so all have to.
    """

    kind: str
    says: str = ""
    sums: Sums = {}
    calls: CollectiveCounts = CollectiveCounts()
    broke: bool = False


@frozen
class Outcome:
    """The status of each rank that answered, and of the others, why not; None where all did."""

    statuses: dict[int, Status]
    silent: str | None


class Progress:
    """Tells those that have finished that this rank goes on, and learns from them that they have given it up."""

    def __init__(self, circle: GuardedGroup, key: str, deadline_s: float) -> None:
        self._circle, self._key = circle, key
        self._every_s = min(_TELLS_EVERY_S, deadline_s / 4)
        self._told_s = time.monotonic()

    def step(self) -> None:
        """Raises Ended where another rank has failed in the attempt, or the others have decided without us."""
        self._circle.raise_if_ended(self._key)
        if time.monotonic() - self._told_s < self._every_s:
            return
        self._told_s = time.monotonic()
        if not self._circle.progressed(self._key):
            raise Ended("the other ranks have given it up")
        if ended := self._circle.ended_ranks():
            raise Ended(have_ended(sorted(ended)))


def tried(
    body: Callable[[Sums, Progress], None],
    circle: GuardedGroup,
    key: str,
    deadline_s: float,
    calls: Calls | None = None,
    *,
    about: str = "",
    logged: set[str] | None = None,
) -> Outcome:
    """Runs `body`, which adds to the sums it is given, and returns the status of each rank that answered, the same on all.

    `about`: which attempt at which data set, for the log; what has `logged` before is not told anew where it came from.

    Raises EvaluationFailed, on all ranks, where a group was used by some of its ranks more than by others. Raises KeyboardInterrupt, SystemExit and
    StoreLost; the others are told before.
    """
    sums: Sums = {}
    calls = calls or Calls(circle)
    raised: BaseException | None = None
    kind = "ok"
    try:
        with circle.scope(key), within(deadline_s), calls.told(key):
            body(sums, Progress(circle, key, deadline_s))
    except BaseException as e:
        raised, kind = e, _kind(e, deadline_s, circle.me)
    says = "" if raised is None else _says(raised)
    status = msgspec.msgpack.encode(Status(kind=kind, says=says, sums=sums, calls=calls.counted(), broke=circle.broke_in(key)))
    if isinstance(raised, StoreLost):
        raise raised
    if kind not in ("ok", "ended"):
        circle.end(key, f"rank {circle.me}: {says}")
    if kind == "interrupted" and raised is not None:
        circle.leave_at(key, status)
        with suppress(StoreLost):
            # As the others do.
            circle.broken()
        raise raised
    if kind not in ("ok", "ended"):
        # The others may be in a collective of the training's own, which ends at its timeout, or not at all. A handler of the user's may raise.
        with suppress(Exception):
            _log(circle, about, says, raised, logged if logged is not None else set())
    if raised is not None:
        # What its frames hold is what there may be too little of.
        traceback.clear_frames(raised.__traceback__)
        raised = None
    if kind == "memory":
        _make_room()

    def half_way() -> None:
        # Whoever now waits in a collective of this evaluation waits for us in vain.
        circle.end_calls(key, f"rank {circle.me} has finished, and nothing has moved for {deadline_s / 2:g} s")

    found = circle.exchange_at(key, status, deadline_s, half_way)
    statuses = {rank: msgspec.msgpack.decode(packed, type=Status) for rank, packed in sorted(found.items())}
    if len(statuses) < circle.size or any(s.kind != "ok" or s.broke for s in statuses.values()):
        # Lanes that some have broken: all do.
        circle.broken()
    silent = found.silent(circle.ranks, deadline_s)
    _in_step(statuses, key, calls, silent)
    return Outcome(statuses=statuses, silent=silent)


def _log(circle: GuardedGroup, about: str, says: str, raised: BaseException | None, logged: set[str]) -> None:
    waits = ", and waits for the others" if circle.size > 1 else ""
    stack = "" if raised is None or says in logged else _stack(raised)
    logged.add(says)
    log.warning("rank %d has failed in an evaluation%s%s: %s%s", circle.me, about and f" of {about}", waits, says, stack)


def _stack(error: BaseException) -> str:
    """Frames below ours, the innermost first. No traceback of Python's: whoever reads logs would take it for what ended a process."""
    frames = [f"{f.f_code.co_filename}:{n} in {f.f_code.co_name}" for f, n in reversed(_frames(error)) if not f.f_code.co_filename.startswith(_OURS)]
    return "".join(f"\n    at {frame}" for frame in frames[:_MOST_FRAMES])


def within(deadline_s: float) -> AbstractContextManager[None]:
    """Guarded collectives inside of an evaluation wait no longer than the evaluation does."""
    return deadlines.deadline(deadline_s) if deadline_s < deadlines.DEFAULT_S else nullcontext()


def batches(found: Any, sums: Sums, progress: Progress) -> None:
    """Adds what an evaluation function returned: a mapping of metrics, or an iterator that yields one for each batch."""
    if isinstance(found, Mapping):
        found = (found,)
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        raise TypeError(f"an evaluation function returns a mapping of metrics, or yields one for each batch; this returned {short(found)}")
    steps: Any = iter(found)
    # A generator that is left where it stands would leave its grad mode, autocast and files to the garbage collector, in the middle of a step.
    with closing(steps) if hasattr(steps, "close") else nullcontext():
        for metrics in steps:
            try:
                found = paired(metrics)
            except (TypeError, ValueError) as e:
                # Whoever gave it waits at the line that did, and is on no traceback.
                e.given_at = _given_at(steps)  # type: ignore[union-attr]
                raise
            add(sums, found)
            progress.step()


def _in_step(statuses: dict[int, Status], key: str, calls: Calls, silent: str | None) -> None:
    """Raises on all ranks where a group was used by some of its ranks more than by others."""
    gone = [rank for rank, status in statuses.items() if status.kind == "interrupted"]
    if found := calls.out_of_step(key, {rank: status.calls for rank, status in statuses.items()}, gone):
        # What put them out of step, where a rank has failed.
        began = "".join(f" Rank {rank} had failed with {status.says}." for rank, status in statuses.items() if status.kind in _OF_ITS_OWN)
        if silent:
            began += f" {silent[:1].upper()}{silent[1:]}."
        raise EvaluationFailed(
            f"{'; '.join(found)}.{began} To go on would mix results of the evaluation into the training. Use unhang's collectives inside of "
            "evaluations, or restart the training (unhang run does)."
        )


def _kind(error: BaseException, deadline_s: float, me: int) -> str:
    if isinstance(error, Ended):
        return "ended"
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        return "interrupted"
    # torch 2.5 and newer have one for all devices; the CPU's allocator raises a RuntimeError.
    kinds = tuple(kind for kind in (getattr(torch, "OutOfMemoryError", None), getattr(torch.cuda, "OutOfMemoryError", None)) if kind)
    said = _text(error)
    if isinstance(error, (MemoryError, *kinds)) or "can't allocate memory" in said or "CUDA out of memory" in said:
        return "memory"
    if isinstance(error, PeerFailed) and any(rank != me for rank in error.ranks):
        # That rank says so itself.
        return "ended"
    if isinstance(error, CollectiveTimeout):
        # Half an hour, and then another one.
        return "passing" if error.closed is not None and error.closed.waited_s < deadline_s / 2 else "stood"
    return "wrong" if isinstance(error, _WRONG) else "passing"


def _make_room() -> None:
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _says(error: BaseException) -> str:
    said = " ".join(_text(error).split())[:_MOST_CHARS]
    place = "".join(f" ({file.rpartition('/')[2]}:{line})" for file, line in _place(error))
    if isinstance(error, Ended):
        return said + place
    return f"{type(error).__name__}: {said}{place}" if said else f"{type(error).__name__}{place}"


def _place(error: BaseException) -> list[tuple[str, int]]:
    """The innermost line of the user's own on the traceback, or that which gave what is wrong, or that which called the evaluation; else the last."""
    raised = [(frame.f_code.co_filename, line) for frame, line in _frames(error)]
    called = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe())]
    for frames in (reversed(raised), getattr(error, "given_at", ()), called):
        if own := next((one for one in frames if is_user_file(one[0])), None):
            return [own]
    return raised[-1:]


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    frames = list(traceback.walk_tb(error.__traceback__))
    if isinstance(error.__cause__, StopIteration):
        # Raised in a generator; what Python makes of it has not been there.
        frames += traceback.walk_tb(error.__cause__.__traceback__)
    return frames


def _given_at(steps: Any) -> list[tuple[str, int]]:
    """Where a generator waits, the innermost first."""
    found: list[tuple[str, int]] = []
    while (frame := getattr(steps, "gi_frame", None)) is not None:
        found.insert(0, (frame.f_code.co_filename, frame.f_lineno))
        steps = steps.gi_yieldfrom
    return found


def _text(error: BaseException) -> str:
    try:
        # What UTF-8 cannot hold would not reach the others.
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:
        return ""
