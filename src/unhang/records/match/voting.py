"""The first number at which the ranks of a group issued different calls. Agreement is found in blocks of bytes, without looking at one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unhang.records.flight.columns import Track

_BLOCK = 64


@dataclass(frozen=True, kw_only=True)
class Parted:
    """`sides`: the ranks by what they issued as `number`, the largest side first. `members`: how many belong to the group."""

    number: int
    sides: tuple[tuple[int, tuple[int, ...]], ...]
    members: int = 0

    @property
    def meant(self) -> int | None:
        """What more than half of the members issued: those whose recorder does not have it, or of whom there is no dump, may be on either side."""
        total = max(self.members, sum(len(ranks) for _, ranks in self.sides))
        call, ranks = self.sides[0]
        return call if 2 * len(ranks) > total else None

    @property
    def odd(self) -> tuple[int, ...]:
        """Those outside the majority, () without one."""
        return tuple(sorted(r for _, ranks in self.sides[1:] for r in ranks)) if self.meant is not None else ()


def parted(tracks: Mapping[int, Track], *, members: int = 0) -> Parted | None:
    """Where the windows of two or more ranks meet and differ for the first time; None where they agree or never meet. `members`: of the group."""
    if len(tracks) < 2:
        return None
    lowest, highest = min(t.first for t in tracks.values()), max(t.last for t in tracks.values())
    if highest - lowest > 4 * max(len(t.ids) for t in tracks.values()) + _BLOCK:
        starts = sorted({n - n % _BLOCK for t in tracks.values() for n in range(t.first, t.last + _BLOCK, _BLOCK)})
    else:
        starts = list(range(lowest - lowest % _BLOCK, highest + 1, _BLOCK))
    for start in starts:
        classes: dict[tuple[int, bytes], list[int]] = {}
        for rank, track in tracks.items():
            begin, end = max(start, track.first), min(start + _BLOCK, track.last + 1)
            if begin < end:
                classes.setdefault((begin, track.ids[begin - track.first : end - track.first].tobytes()), []).append(rank)
        if len(classes) > 1 and (found := _in_block(start, classes, members)) is not None:
            return found
    return None


def _in_block(start: int, classes: Mapping[tuple[int, bytes], list[int]], members: int) -> Parted | None:
    windows = [(begin, memoryview(ids).cast("I"), ranks) for (begin, ids), ranks in classes.items()]
    for number in range(start, start + _BLOCK):
        sides: dict[int, list[int]] = {}
        for begin, ids, ranks in windows:
            if 0 <= number - begin < len(ids) and (call := ids[number - begin]):
                sides.setdefault(call, []).extend(ranks)
        if len(sides) > 1:
            ordered = sorted(sides.items(), key=lambda s: (-len(s[1]), min(s[1])))
            return Parted(number=number, sides=tuple((call, tuple(sorted(ranks))) for call, ranks in ordered), members=members)
    return None
