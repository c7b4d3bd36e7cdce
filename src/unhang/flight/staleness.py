"""Which dumps are of one run, and which of them are older than the others: what an older one lacks, its rank may have done since.

Dumps are seldom taken at one moment, and nothing in them tells when. Yet no rank can finish an all_reduce to which another one has not come: where a
member has completed what this dump lacks, this dump is older. Files of an earlier run stay in a folder, too. What may surprise: clocks of hosts may
differ by minutes, and a rank that hangs may have made its newest call before the oldest that the rings of the others still hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import islice
from statistics import median_low

from unhang.flight import operations
from unhang.flight.job_groups import Job, JobGroup
from unhang.flight.recording import COMPLETED, ENDED, ISSUED, STARTED, Recording, Track, world_of
from unhang.model import frozen

# So many ranks tell whether two dumps can be of one run.
_COMPARED = 16


@frozen
class StaleDumps:
    """`ranks`: those whose dump is older than that of another one; for each of them such another one. `doubtful`: (identity of a meeting, rank) where
    only a name tells that both are of one group, which may as well be two. `perhaps`: those whose dump lacks what another one went on from on Gloo:
    it may have been asynchronous, and have failed."""

    ranks: Mapping[int, int]
    doubtful: frozenset[tuple[int, int]] = frozenset()
    perhaps: Mapping[int, int] = field(default_factory=dict)


def behind(job: Job) -> StaleDumps:
    """Whose dump lacks a call, or has it pending, that another member of its group could not have completed without this rank."""
    needs = dict[int, bool]()
    ranks, doubtful = dict[int, int](), set[tuple[int, int]]()
    for meeting in job.meetings:
        number, owner = _newest_over(job, meeting, needs)
        if owner is None:
            continue
        certain = meeting.known or meeting.is_default
        for rank in meeting.members:
            recording = job.recordings.get(rank)
            if recording is None or not _lacks(recording, meeting.tracks.get(rank), number, meeting.tracks[owner]):
                continue
            if certain:
                ranks.setdefault(rank, owner)
            else:
                doubtful.add((id(meeting), rank))
    perhaps = dict[int, int]()
    newest = {rank: _newest_of_gloo(r) for rank, r in job.recordings.items()}
    for meeting in job.meetings:
        number, owner = max(_gone_on_from(job, meeting, newest), _newest_over(job, meeting, needs, gloo=True), key=lambda found: found[0])
        if owner is None:
            continue
        for rank in meeting.members:
            recording = job.recordings.get(rank)
            if recording is None or rank in ranks or not _lacks(recording, meeting.tracks.get(rank), number, meeting.tracks[owner]):
                continue
            if recording.heard is not None and (heard := recording.heard.get(meeting.name)) is not None and heard.most < number:
                continue
            if meeting.known or meeting.is_default:
                perhaps.setdefault(rank, owner)
            else:
                doubtful.add((id(meeting), rank))
    return StaleDumps(ranks=ranks, doubtful=frozenset(doubtful), perhaps=perhaps)


def _newest_of_gloo(recording: Recording) -> int:
    """When the newest call that is known of any group of Gloo was issued."""
    return max((ns for t in recording.tracks if t.gloo for ns in (*t.pending_ns.values(), *t.over_ns.values())), default=0)


def _gone_on_from(job: Job, meeting: JobGroup, newest: Mapping[int, int]) -> tuple[int, int | None]:
    """The newest call of Gloo that has ended, needs all, and is followed by one of another group on the same rank, and that rank.

    Who waits in it until it fails does not come to another one, unless it was not waited for, or in another thread.
    """
    until = meeting.unwaited or math.inf
    gone = [
        (n, -rank)
        for rank, t in meeting.tracks.items()
        if t.gloo
        for n, ns in t.pending_ns.items()
        if n < until and t.end(n) == ENDED and newest[rank] > ns and (call := t.at(n)) and operations.needs_all(job.calls[call].split(" ")[0])
    ]
    number, owner = max(gone, default=(0, None))
    return number, None if owner is None else -owner


def _newest_over(job: Job, meeting: JobGroup, needs: dict[int, bool], *, gloo: bool = False) -> tuple[int, int | None]:
    """The newest number of which anybody has completed a call that needs all, and who has."""
    newest, owner = 0, None
    for rank, track in meeting.tracks.items():
        if track.gloo is not gloo:
            continue
        for i in range(len(track.ids) - 1, -1, -1):
            number, call = track.first + i, track.ids[i]
            if owner is not None and number <= newest:
                break
            if track.ends[i] != COMPLETED or not call:
                continue
            if call not in needs:
                needs[call] = operations.needs_all(job.calls[call].split(" ")[0])
            if needs[call]:
                newest, owner = number, rank
                break
    return newest, owner


def _lacks(recording: Recording, track: Track | None, number: int, other: Track) -> bool:
    if recording.cut or recording.skipped or not recording.entries:
        return False
    over = holds_what_is_over(recording) or (other.gloo and _holds_ended(recording))
    if track is None:
        # With neither tracks nor messages: what it holds is of a default group that the others have left.
        return not recording.lost and (not (recording.tracks or recording.messages) or over)
    if track.last < number:
        return over or (not track.gloo and any(other.end(n) == COMPLETED for n in _pending(track)))
    # One behind the other on NCCL: what is behind a call that has not ended has not begun. Gloo has threads.
    return not track.gloo and any(n < number and other.end(n) == COMPLETED for n in _pending(track))


def _pending(track: Track) -> Iterable[int]:
    return (n for n in track.pending_ns if track.end(n) in (ISSUED, STARTED))


def holds_what_is_over(recording: Recording) -> bool:
    """Whether a dump holds calls that have completed: torch may have been told to keep only those that have not."""
    return any(end == COMPLETED and call for t in recording.tracks for end, call in zip(t.ends, t.ids, strict=True))


def _holds_ended(recording: Recording) -> bool:
    """The same of Gloo's, of which nobody tells that they have completed."""
    return any(t.gloo and ENDED in t.ends for t in recording.tracks)


def of_one_run(recordings: Mapping[int, Recording]) -> tuple[Mapping[int, Recording], Mapping[int, int]]:
    """The recordings without those of other runs, and those ranks, each with one of the ranks that it does not fit.

    Another world size is another run, and so are calls at another time, unless the one waited for the other. Of several runs the one of which most
    ranks are here counts, of two such the later one.
    """
    told = {rank: r for rank, r in recordings.items() if r.entries and r.oldest_ns}
    runs = [run for of_size in _by_size(told) for run in _in_time(of_size)]
    if len(runs) < 2:
        return recordings, {}
    kept = max(
        runs, key=lambda run: (len(run) / (max(len(world_of(r)) for r in run.values()) or max(run) + 1), max(r.newest_ns for r in run.values()))
    )
    left = {rank: min(kept) for run in runs if run is not kept for rank in run}
    return {rank: r for rank, r in recordings.items() if rank not in left}, left


def has_every_rank(recordings: Mapping[int, Recording]) -> bool:
    """Whether every rank of the world has a dump that holds calls."""
    sizes = {size for r in recordings.values() if (size := len(world_of(r)))}
    return len(sizes) == 1 and all(rank in recordings and recordings[rank].entries for rank in range(sizes.pop()))


def _by_size(recordings: Mapping[int, Recording]) -> list[dict[int, Recording]]:
    """By world size. A dump that does not tell it, or tells several, or is from before the default group was made again, is with most others."""
    newest = max((r.worlds for r in recordings.values()), default=0)
    by_size: dict[int, dict[int, Recording]] = {}
    for rank, recording in recordings.items():
        by_size.setdefault(len(world_of(recording)) if recording.worlds == newest else 0, {})[rank] = recording
    others = by_size.pop(0, {})
    if not by_size:
        return [others] if others else []
    most = max(by_size.values(), key=lambda of: (len(of), max(r.newest_ns for r in of.values())))
    most |= others
    return list(by_size.values())


def _in_time(recordings: Mapping[int, Recording]) -> list[dict[int, Recording]]:
    """Those whose calls do not overlap in time, unless they are of one run all the same."""
    parts: list[dict[int, Recording]] = []
    until = 0
    for rank, recording in sorted(recordings.items(), key=lambda item: item[1].oldest_ns):
        if not parts or recording.oldest_ns > until + CLOSE_NS:
            parts.append({})
        parts[-1][rank] = recording
        until = max(until, recording.newest_ns)
    runs = parts[:1]
    for part in parts[1:]:
        if _are_one(runs[-1], part):
            runs[-1].update(part)
        else:
            runs.append(part)
    return runs


def _are_one(one: Mapping[int, Recording], later: Mapping[int, Recording]) -> bool:
    """Whether the calls of `one` may all be before those that `later` holds: overwritten by the ring since, or others waited that long."""
    if any(_is_through(a, b) for a in islice(one.values(), _COMPARED) for b in islice(later.values(), _COMPARED)):
        return False
    gap = min(r.oldest_ns for r in later.values()) - max(r.newest_ns for r in one.values())
    return gap <= MOST_NS + max(r.patience_ns for r in one.values()) or any(r.lost or r.worlds for r in later.values())


def _is_through(one: Recording, later: Recording) -> bool:
    """Whether a dump has completed a call that needs all, and that the other rank, all of whose calls are later, has not had before these."""
    if one.worlds != later.worlds:
        return False
    first = {t.group: t.first for t in later.tracks}
    return any(
        end == COMPLETED and call and number >= first[t.group] and operations.needs_all(one.calls[call].split(" ")[0])
        for t in one.tracks
        if t.group in first
        for number, call, end in zip(range(t.last, t.first - 1, -1), reversed(t.ids), reversed(t.ends), strict=True)
    )


# How much the clock of each host is ahead: ranks issue one call within a moment of each other, for the slowest holds up the rest; recorders tell
# that moment by the clocks of their hosts.
# No two hosts of a job have clocks that differ by more.
MOST_NS = 600_000_000_000
# Within it ranks issue one call, and clocks that are kept agree.
CLOSE_NS = 5_000_000_000


def ahead(meetings: Sequence[JobGroup]) -> Mapping[int, int]:
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
