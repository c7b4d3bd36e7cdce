"""What a guarded call is, how it ends, and how that is said; and who is told of each when it has ended."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from unhang.errors import CollectiveError, CollectiveMismatch
from unhang.model import frozen
from unhang.runtime import log
from unhang.runtime.collectives import bounded_store
from unhang.runtime.collectives.abortable_group import AbortableGroup
from unhang.runtime.collectives.call_sites import STOPPED

NOTHING_SENT = " Nothing was sent."
# The scope around all others.
OUTERMOST = "main"
# Of what goes through the store, as users know it.
_NAMES = {"metrics": "reduce_metrics", "sync": "sync_check", "evaluation": "an evaluation", "attempt": "an attempt of an evaluation"}


class Ended(CollectiveError):
    """Another rank has ended what all of them were in."""


class Call(msgspec.Struct, frozen=True, kw_only=True, array_like=True, cache_hash=True):
    """What all ranks have to want alike. `what` is the collective; `detail` its operation, root and the order of dimensions."""

    what: str
    numel: int
    dtype: str
    device: str
    chunk: int
    detail: str = ""

    def __str__(self) -> str:
        # What a barrier sends is nobody's.
        if not self.dtype or self.what == "barrier":
            return self.what
        pieces = f", in pieces of {self.chunk:,}" if self.chunk < self.numel else ""
        detail = f", {self.detail}" if self.detail else ""
        return f"{self.what} of {self.numel:,} {self.dtype.removeprefix('torch.')} elements ({self.device}{detail}{pieces})"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank knows of a call that was closed; `done` of `chunks` were complete for it."""

    rank: int
    says: str
    call: str = ""
    done: int = 0
    chunks: int = 0
    place: str | None = None
    # Its own error: nothing that others did.
    own: bool = False
    # Ranks whose processes have ended, as it has seen: the call was given up for them alone.
    ended: tuple[int, ...] = ()
    # Of its host, by a signal, when it reported.
    stopped: tuple[int, ...] = ()


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended for all ranks. Ranks are global ones."""

    number: int
    scope: str
    call: str
    says: str
    missing: tuple[int, ...]
    reports: tuple[Report, ...]
    places: dict[int, str]
    waited_s: float
    # Of those that are missing, by a signal.
    stopped: tuple[int, ...] = ()


class Go(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided before a call: `how` is common, own (a lane of its own), anew (all lanes), differs or closed."""

    how: str
    odd: tuple[int, ...] = ()
    calls: dict[int, str] = {}


GIVEN_UP = msgspec.json.encode(Go(how="closed"))


@dataclass(eq=False)
class Scope:
    """Counts calls by itself, so that what went wrong in an evaluation is left behind with it."""

    name: str
    number: int = 0
    finished: int = 0
    # This rank has given its lanes up in it.
    broke: bool = False


class Turn(msgspec.Struct, eq=False, gc=False):
    """One guarded call of this rank."""

    number: int
    scope: str
    call: Call
    deadline_s: float
    lane: AbortableGroup | None = None
    works: list[Any] = []
    done: int = 0
    chunks: int = 0
    reported: bool = False
    said: bool = False
    committed: bool = False
    # Of the evaluation around it, as it was told last.
    progress: bytes | None = None
    moved_s: float = msgspec.field(default_factory=time.monotonic)
    began_s: float = msgspec.field(default_factory=time.monotonic)

    @property
    def key(self) -> str:
        return f"{self.scope}/{self.number}"

    def moved(self) -> None:
        """Something was completed: the deadline begins anew."""
        self.moved_s = time.monotonic()

    @property
    def left_s(self) -> float:
        return self.moved_s + self.deadline_s - time.monotonic()


def turn_of(key: str, deadline_s: float) -> Turn:
    """Of what goes through the store under `key`, which ends with what it is."""
    scope, number, what = key.rsplit("/", 2)
    call = Call(what=_NAMES.get(what, what), numel=0, dtype="", device="", chunk=0)
    return Turn(number=int(number), scope=scope, call=call, deadline_s=deadline_s)


def odd(calls: Mapping[int, object]) -> tuple[int, ...]:
    """Those that want something else than most; nobody where there is no most."""
    counts = Counter(calls.values())
    (_, most), *rest = counts.most_common(2)
    if rest and rest[0][1] == most:
        return ()
    return tuple(rank for rank, call in calls.items() if counts[call] != most)


def mismatch(calls: Mapping[int, str], odd: Sequence[int], more: str, closed: Closed | None = None) -> CollectiveMismatch:
    by_call: dict[str, list[int]] = {}
    for rank, call in calls.items():
        by_call.setdefault(call, []).append(rank)
    said = "; ".join(f"{_ranks(ranks)}: {call}" for call, ranks in sorted(by_call.items(), key=lambda item: -len(item[1])))
    differ = f" {_ranks(odd)} differ{'s' if len(odd) == 1 else ''} from most." if odd else ""
    return CollectiveMismatch(
        f"the ranks' calls do not fit together. {said}.{differ}{more}", calls=calls, odd=odd, missing=closed.missing if closed else (), closed=closed
    )


def named(closed: Closed) -> str:
    known = {rank: f" (at {place})" for rank, place in closed.places.items()} | dict.fromkeys(closed.stopped, f" ({STOPPED})")
    return ", ".join(f"{rank}{known.get(rank, '')}" for rank in closed.missing)


def _ranks(ranks: Sequence[int]) -> str:
    some = ", ".join(map(str, sorted(ranks)[:8]))
    return f"rank {some}" if len(ranks) == 1 else f"ranks {some}{', …' if len(ranks) > 8 else ''}"


def all_ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def said(error: BaseException) -> str:
    # A file's name may hold what no encoder takes.
    said = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
    return said.partition("\n")[0].removesuffix(": ")[:300]


def first_line(error: BaseException) -> str:
    # Gloo begins with a path of its maker's, and ends with good advice.
    return re.sub(r"^\[\S*/gloo/(\S+)\] ", "", bounded_store.first_line(error)).partition(". This is typically")[0][:200]


@frozen
class Observed:
    """One call of this rank: `ranks` are those of its group, `seconds` the time inside, `error` what it raised."""

    what: str
    ranks: tuple[int, ...]
    numel: int
    dtype: str
    seconds: float
    error: BaseException | None


Observer = Callable[[Observed], None]
# Nobody, as a rule: then a call pays for one comparison.
observers: tuple[Observer, ...] = ()


def add_observer(observer: Observer) -> None:
    global observers
    observers = (*observers, observer)


def remove_observer(observer: Observer) -> None:
    global observers
    observers = tuple(one for one in observers if one != observer)


def tell_observers(call: Observed) -> None:
    """Who raises is told nothing more: a training is not ended by who looks at it."""
    for observer in observers:
        try:
            observer(call)
        except Exception:
            remove_observer(observer)
            log.exception("%r is told of no more calls; the training goes on", observer)
