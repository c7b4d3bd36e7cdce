"""Where ranks were by their last heartbeats: what is left to tell where nobody could be asked any more."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from unhang.records.incident import SILENT_S
from unhang.records.now import Place


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Ranks whose last heartbeats told of one place, inside one `call` if in any. What is None is not known.

    `least_step` and `step`: the fewest and the most optimizer steps among them. `silent_s`: how old the oldest of these heartbeats was.
    """

    ranks: tuple[int, ...]
    place: Place | None = None
    call: str | None = None
    least_step: int | None = None
    step: int | None = None
    silent_s: float | None = None


def together(each: Iterable[Seen]) -> tuple[Seen, ...]:
    """Those at one place as one, in the order of their first ranks: of whom no steps are known, or no heartbeats came, stands apart."""
    found: dict[tuple[Place | None, str | None, bool, bool | None], Seen] = {}
    for one in sorted(each, key=lambda s: s.ranks):
        key = (one.place, one.call, one.step is None, None if one.silent_s is None else one.silent_s > SILENT_S)
        found[key] = one if (before := found.get(key)) is None else _joined(before, one)
    return tuple(found.values())


def fewer(seen: Seen, without: Set[int]) -> Seen | None:
    """The others of these ranks, None where there are none. A range of steps was that of all: which of them are whose is not known."""
    ranks = tuple(r for r in seen.ranks if r not in without)
    if not ranks or ranks == seen.ranks:
        return seen if ranks else None
    step = seen.step if seen.least_step == seen.step else None
    return replace(seen, ranks=ranks, least_step=step, step=step)


def _joined(a: Seen, b: Seen) -> Seen:
    return replace(
        a,
        ranks=tuple(sorted({*a.ranks, *b.ranks})),
        least_step=min((s for s in (a.least_step, b.least_step) if s is not None), default=None),
        step=max((s for s in (a.step, b.step) if s is not None), default=None),
        silent_s=max((s for s in (a.silent_s, b.silent_s) if s is not None), default=None),
    )
