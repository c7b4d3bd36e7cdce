"""Which ranks are shown, and in which order: whoever is stuck, late or failed comes first, and the rest is folded into a line for each state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from unhang.records.run_snapshot import STATES, Rank, State
from unhang.report.top.words import STATES as STATE_WORDS

# So many are shown one by one, whatever there is to be said of them.
UNFOLDED = 32
_DULL: frozenset[State] = frozenset({"starting", "running", "left", "stopped", "done"})
_ORDER = {state: i for i, state in enumerate(STATES)}
_NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True)
class Chosen:
    """`folded` are those of which nothing is to be said, by state."""

    shown: tuple[Rank, ...]
    folded: dict[State, tuple[Rank, ...]]


def choose(ranks: Sequence[Rank], *, by: str = "interest", pattern: str = "", everything: bool = False, at_most: int | None = None) -> Chosen:
    """`by` is one of `words.SORTS`. A pattern that is given folds nothing; `at_most` folds also what is of interest, from the end."""
    found = [r for r in ranks if matches(r, pattern)]
    found.sort(key=lambda r: _key(r, by))
    folds = not everything and not pattern.strip() and len(found) > UNFOLDED
    shown = [r for r in found if not folds or r.blamed or r.state not in _DULL]
    if folds and not shown:
        # Nobody stands out: the slowest ones are as good to look at as any.
        shown = sorted(found, key=lambda r: (r.step if r.step is not None else -1, r.rank))[: UNFOLDED // 4]
    if at_most is not None and not everything:
        shown = shown[:at_most]
    kept = {r.rank for r in shown}
    folded: dict[State, list[Rank]] = {}
    for rank in found:
        if rank.rank not in kept:
            folded.setdefault(rank.state, []).append(rank)
    return Chosen(tuple(shown), {state: tuple(folded[state]) for state in STATES if state in folded})


def matches(rank: Rank, pattern: str) -> bool:
    """Whether all words of a filter fit: a number or a range of ranks, or a part of its state, host, file, function, call or device."""
    text = ""
    for word in pattern.lower().split():
        numbers = _NUMBERS.fullmatch(word)
        if numbers is not None:
            first = int(numbers[1])
            if not first <= rank.rank <= int(numbers[2] or first):
                return False
            continue
        text = text or _text(rank)
        if word not in text:
            return False
    return True


def _text(rank: Rank) -> str:
    place = f"{rank.place.file}:{rank.place.line} {rank.place.name}" if rank.place is not None else ""
    parts = (rank.state, STATE_WORDS["zh"][rank.state], rank.host, place, rank.call, rank.device, rank.gpu, rank.raised)
    return " ".join(p for p in parts if p).lower()


def _key(rank: Rank, by: str) -> tuple[float, ...]:
    if by == "rank":
        return (rank.rank,)
    if by == "step":
        return (rank.step if rank.step is not None else -1, rank.rank)
    if by == "beat":
        return (-(rank.age_s if rank.age_s is not None else float("inf")), rank.rank)
    if by == "waiting":
        return (-(rank.waits_s or 0.0), rank.rank)
    return (not rank.blamed, _ORDER[rank.state], rank.rank)
