"""How much the clock of each rank's host is ahead, from the calls that both have been through.

Ranks issue one call within a moment of each other, for the slowest holds up the rest; recorders tell that moment by the clocks of their hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low

from unhang.records.match.groups import Meeting

# No two hosts of a job have clocks that differ by more.
MOST_NS = 600_000_000_000
# Within it ranks issue one call, and clocks that are kept agree.
CLOSE_NS = 5_000_000_000


def ahead(meetings: Sequence[Meeting]) -> Mapping[int, int]:
    """Nanoseconds by which each rank's clock is ahead of that of the lowest; only of ranks of which calls tell."""
    beside: dict[int, dict[int, int]] = {}
    for meeting in meetings:
        timed = {rank: track.over_ns for rank, track in meeting.tracks.items() if track.over_ns}
        if len(timed) < 2:
            continue
        # Beside one of them: not all pairs.
        first = max(timed, key=lambda rank: (max(timed[rank]), -rank))
        for rank, times in timed.items():
            common = sorted(times.keys() & timed[first].keys())
            if rank != first and common:
                apart = median_low([times[n] - timed[first][n] for n in common])
                beside.setdefault(first, {}).setdefault(rank, apart)
                beside.setdefault(rank, {}).setdefault(first, -apart)
    if not beside:
        return {}
    found = {min(beside): 0}
    todo = list(found)
    for rank in todo:
        for other, apart in beside[rank].items():
            if other not in found:
                found[other] = found[rank] + apart
                todo.append(other)
    return {rank: ns if abs(ns) > CLOSE_NS else 0 for rank, ns in found.items()}
