"""Which ranks strayed where calls of two groups wait for each other: those that came to them in another order than most, or than they did before.

Only ranks of both groups have an order. What may surprise: a group may be used several times in a round, so that numbers of two groups do not go
together; what came before in time does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from unhang.records.flight.columns import COMPLETED, ENDED, Track
from unhang.records.match.groups import Meeting

By = Literal["majority", "history", "nothing"]
_NOBODY: tuple[tuple[int, ...], By] = ((), "nothing")


def strayed(meetings: tuple[Meeting, Meeting], numbers: tuple[int, int], waiting: tuple[Sequence[int], Sequence[int]]) -> tuple[tuple[int, ...], By]:
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


def _is_through(meeting: Meeting, rank: int, number: int) -> bool:
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
