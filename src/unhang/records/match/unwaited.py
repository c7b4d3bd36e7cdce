"""Calls of Gloo that nobody waited for, as DDP's buckets: that another one was issued behind them does not prove that they are over.

Of Gloo's calls a dump tells only that they have ended, well or not; mostly it proves that one went well that its rank has issued another behind it.
What may surprise: after a timeout calls that were issued together fail in any order, and the recorder may call one pending whose followers have
ended. That one tells of all of them: nobody waited for it, on any rank, for ranks issue the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unhang.records.flight.columns import COMPLETED, ENDED, ISSUED, STARTED, Track

# Who goes on behind a call for longer waits for it in a thread of its own, and for those behind it, too.
_TOGETHER_NS = 30_000_000_000
# So many calls are issued together at most: DDP's buckets.
_MOST = 64


def first_unwaited(tracks: Mapping[int, Track]) -> int | None:
    """The first number that a rank had pending when it issued the next one; None where no rank is known to, or anybody went on for long.

    Of a rank behind which others have issued more the dump may be older, and what these have issued since they may have waited for.
    """
    newest = max(t.last for t in tracks.values())
    front = [t for t in tracks.values() if t.gloo and t.last == newest]
    pending = [(n, ns) for t in front for n, ns in t.pending_ns.items() if n < newest and t.end(n) in (ISSUED, STARTED)]
    if not pending:
        return None
    number, ns = min(pending)
    newest_ns = max(max((*t.pending_ns.values(), *t.over_ns.values()), default=0) for t in tracks.values())
    return number if newest_ns - ns < _TOGETHER_NS and newest - number <= _MOST else None


def reopened(tracks: Mapping[int, Track], number: int) -> Mapping[int, Track]:
    """The tracks of Gloo with no call from this number on taken for completed."""
    return {rank: _reopened(t, number) if t.gloo else t for rank, t in tracks.items()}


def _reopened(track: Track, number: int) -> Track:
    again = [n for n in range(max(number, track.first), track.last + 1) if track.end(n) == COMPLETED and track.at(n)]
    if not again:
        return track
    ends = bytearray(track.ends)
    for n in again:
        ends[n - track.first] = ENDED
    # Only of the newest it is known when they were issued: those before them were at the latest then.
    latest = min((ns for n, ns in (*track.over_ns.items(), *track.pending_ns.items()) if n >= again[0]), default=0)
    pending = {n: track.over_ns.get(n, latest) for n in again} | dict(track.pending_ns)
    return replace(
        track,
        ends=ends,
        pending_ns=dict(sorted(pending.items())),
        over_ns={n: ns for n, ns in track.over_ns.items() if n < again[0]},
    )
