"""Where ranks of a group issued different calls, how those of a rank became other ones, and which ranks strayed between two groups.

Agreement is found in blocks of bytes, without looking at one call.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Literal

from unhang.flight.job_groups import JobGroup
from unhang.flight.recording import COMPLETED, ENDED, Track
from unhang.model import frozen

_BLOCK = 64


@frozen
class Divergence:
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


def parted(tracks: Mapping[int, Track], *, members: int = 0) -> Divergence | None:
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


def _in_block(start: int, classes: Mapping[tuple[int, bytes], list[int]], members: int) -> Divergence | None:
    windows = [(begin, memoryview(ids).cast("I"), ranks) for (begin, ids), ranks in classes.items()]
    for number in range(start, start + _BLOCK):
        sides: dict[int, list[int]] = {}
        for begin, ids, ranks in windows:
            if 0 <= number - begin < len(ids) and (call := ids[number - begin]):
                sides.setdefault(call, []).extend(ranks)
        if len(sides) > 1:
            ordered = sorted(sides.items(), key=lambda s: (-len(s[1]), min(s[1])))
            return Divergence(number=number, sides=tuple((call, tuple(sorted(ranks))) for call, ranks in ordered), members=members)
    return None


# How the calls of a rank that went astray become those of the others. Trainings repeat themselves, and a shift by a whole step explains anything:
# the smallest change is asked for first, and it has to hold for several calls.
Change = Literal["content", "order", "extra", "lacking"]

_MOST = 3
_ENOUGH = 3
_LOOK = 64


@frozen
class Edit:
    """`count` calls too many or lacking, from the number on at which the ranks parted."""

    change: Change
    count: int = 1


def edit(odd: Track, usual: Track, number: int) -> Edit | None:
    """None where too few calls follow, or two explanations cost the same."""
    theirs, ours = (t.ids[number - t.first : number - t.first + _LOOK] for t in (odd, usual))
    if len(theirs) >= 2 and len(ours) >= 2 and (theirs[0], theirs[1]) == (ours[1], ours[0]) and _fits(theirs[2:], ours[2:], 0):
        return Edit(change="order")
    if _fits(theirs[1:], ours[1:], _ENOUGH):
        return Edit(change="content")
    for count in range(1, _MOST + 1):
        extra, lacking = _fits(theirs[count:], ours, _ENOUGH), _fits(theirs, ours[count:], _ENOUGH)
        if extra or lacking:
            if extra and lacking:
                return None
            return Edit(change="extra" if extra else "lacking", count=count)
    return None


def _fits(one: array[int], other: array[int], enough: int) -> bool:
    common = min(len(one), len(other))
    return common >= enough and one[:common] == other[:common]


# Where calls of two groups wait for each other only ranks of both groups have an order. What may surprise: a group may be used several times in a
# round, so that numbers of two groups do not go together; what came before in time does.
By = Literal["majority", "history", "nothing"]
_NOBODY: tuple[tuple[int, ...], By] = ((), "nothing")


def strayed(
    meetings: tuple[JobGroup, JobGroup], numbers: tuple[int, int], waiting: tuple[Sequence[int], Sequence[int]]
) -> tuple[tuple[int, ...], By]:
    """The ranks that came to the wrong one of two calls first, and how that is known. `waiting`: who waits in each of both."""
    both = set(meetings[0].members) & set(meetings[1].members)
    first = {r: n for n in (0, 1) for r in waiting[n] if r in both and not _is_through(meetings[1 - n], r, numbers[1 - n])}
    if len(set(first.values())) < 2:
        return _NOBODY
    habits = {r: _habit((meetings[0].tracks.get(r), meetings[1].tracks.get(r)), numbers) for r in first}
    kept = {r for r, n in first.items() if habits[r] == n}
    changed = {r for r, n in first.items() if habits[r] == 1 - n}
    for n in (0, 1):
        usual = {r for r, at in first.items() if at == n}
        if 2 * len(usual) > len(both):
            odd = first.keys() - usual
            # Most may have taken a new way, and the others have kept to the old one.
            return _NOBODY if odd <= kept and usual <= changed else (tuple(sorted(odd)), "majority")
    if changed and kept and kept | changed == first.keys():
        return tuple(sorted(changed)), "history"
    return _NOBODY


def _is_through(meeting: JobGroup, rank: int, number: int) -> bool:
    track = meeting.tracks.get(rank)
    return track is not None and track.end(number) in (COMPLETED, ENDED)


def _habit(tracks: tuple[Track | None, Track | None], numbers: tuple[int, int]) -> int | None:
    """Which of two groups a rank always came to next after it had used both as it has now; None where its earlier rounds do not tell."""
    if tracks[0] is None or tracks[1] is None:
        return None
    times = [_times(t, number) for t, number in zip(tracks, numbers, strict=True) if t is not None]
    if not all(times):
        return None
    # Of one of both more may be known.
    since = max(min(t) for t in times)
    turns = [n for _, n in sorted((ns, n) for n, of in enumerate(times) for ns in of if ns >= since)]
    for period in range(2, len(turns) // 2 + 1):
        latest = turns[-2 * period :]
        if latest[:period] == latest[period:] and len(set(latest)) == 2:
            next_ones = {turns[i] for i in range(2 * period, len(turns)) if turns[i - 2 * period : i] == latest}
            return next_ones.pop() if len(next_ones) == 1 else None
    return None


def _times(track: Track, number: int) -> list[int]:
    """When the newest calls before a number were issued that are over."""
    ended: Mapping[int, int] = {n: ns for n, ns in track.pending_ns.items() if track.end(n) == ENDED}
    return [ns for n, ns in {**track.over_ns, **ended}.items() if n < number and ns]
