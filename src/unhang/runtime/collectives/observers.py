"""Who is told of each guarded call when it has ended. Nobody, as a rule: then a call pays for one comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unhang.runtime.log import log


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One call of this rank: `ranks` are those of its group, `seconds` the time inside, `error` what it raised."""

    what: str
    ranks: tuple[int, ...]
    numel: int
    dtype: str
    seconds: float
    error: BaseException | None


Observer = Callable[[Observed], None]
observers: tuple[Observer, ...] = ()


def add(observer: Observer) -> None:
    global observers
    observers = (*observers, observer)


def remove(observer: Observer) -> None:
    global observers
    observers = tuple(one for one in observers if one != observer)


def tell(call: Observed) -> None:
    """Who raises is told nothing more: a training is not ended by who looks at it."""
    for observer in observers:
        try:
            observer(call)
        except Exception:
            remove(observer)
            log.exception("%r is told of no more calls; the training goes on", observer)
