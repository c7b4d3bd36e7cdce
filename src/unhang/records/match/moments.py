"""Which dumps are of one run, and which of them are older than the others: what an older one lacks, its rank may have done since.

Dumps are seldom taken at one moment, and nothing in them tells when. Yet no rank can finish an all_reduce to which another one has not come: where a
member has completed what this dump lacks, this dump is older. Files of an earlier run stay in a folder, too. What may surprise: clocks of hosts may
differ by minutes, and a rank that hangs may have made its newest call before the oldest that the rings of the others still hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from unhang.records.flight import operations
from unhang.records.flight.columns import COMPLETED, ENDED, ISSUED, STARTED, Recording, Track
from unhang.records.match import hosts
from unhang.records.match.groups import Job, Meeting, align

# So many ranks, and so many of their calls, tell whether two dumps can be of one run.
_COMPARED = 16


@dataclass(frozen=True, kw_only=True)
class Behind:
    """`ranks`: those whose dump is older than that of another one; for each of them such another one. `doubtful`: (identity of a meeting, rank) where
    only a name tells that both are of one group, which may as well be two. `perhaps`: those whose dump lacks what another one went on from on Gloo:
    it may have been asynchronous, and have failed."""

    ranks: Mapping[int, int]
    doubtful: frozenset[tuple[int, int]] = frozenset()
    perhaps: Mapping[int, int] = field(default_factory=dict)


def behind(job: Job) -> Behind:
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
    return Behind(ranks=ranks, doubtful=frozenset(doubtful), perhaps=perhaps)


def _newest_of_gloo(recording: Recording) -> int:
    """When the newest call that is known of any group of Gloo was issued."""
    return max((ns for t in recording.tracks if t.gloo for ns in (*t.pending_ns.values(), *t.over_ns.values())), default=0)


def _gone_on_from(job: Job, meeting: Meeting, newest: Mapping[int, int]) -> tuple[int, int | None]:
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


def _newest_over(job: Job, meeting: Meeting, needs: dict[int, bool], *, gloo: bool = False) -> tuple[int, int | None]:
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

    Of several runs the one of which most ranks are here counts, of two such the later one. Another world is another run; so is what ended before the
    others began, unless their calls go on where its own end.
    """
    told = {rank: r for rank, r in recordings.items() if r.entries and r.oldest_ns}
    runs = [run for world in _by_world(told) for run in _in_time(world)]
    if len(runs) < 2:
        return recordings, {}
    kept = max(runs, key=lambda run: (len(run) / _size(run), max(r.newest_ns for r in run.values())))
    left = {rank: min(kept) for run in runs if run is not kept for rank in run}
    return {rank: r for rank, r in recordings.items() if rank not in left}, left


def out_of_time(job: Job) -> Mapping[int, int]:
    """The ranks all of whose calls lie wholly outside those of most others in time although they share calls that are over, with by how much they are
    later, negative where they are earlier. Clocks of hosts differ, or a dump is of another run: nothing in it tells which.
    """
    told = sorted(((r.oldest_ns, r.newest_ns, rank) for rank, r in job.recordings.items() if r.entries and r.oldest_ns))
    parts: list[list[tuple[int, int, int]]] = []
    until = 0
    for span in told:
        if not parts or span[0] > until + hosts.CLOSE_NS:
            parts.append([])
        parts[-1].append(span)
        until = max(until, span[1])
    if len(parts) < 2:
        return {}
    usual = max(parts, key=lambda part: (len(part), part[-1][0]))
    begin, end = min(oldest for oldest, _, _ in usual), max(newest for _, newest, _ in usual)
    ahead = hosts.ahead(job.meetings)
    beside = [ahead[rank] for _, _, rank in usual if rank in ahead]

    places = _places(job)

    def contradicts(rank: int, *, later: bool) -> bool:
        """Whether calls that are over were over before the others, who have issued the same ones, had begun."""
        if rank in ahead:
            return any(abs(ahead[rank] - ns) > hosts.CLOSE_NS for ns in beside)
        return any(_was_through(job, places, *((other, rank) if later else (rank, other))) for _, _, other in usual[:_COMPARED])

    return {
        rank: oldest - end if oldest > end else newest - begin
        for part in parts
        for oldest, newest, rank in part
        if part is not usual and contradicts(rank, later=oldest > end)
    }


def _places(job: Job) -> dict[int, list[Meeting]]:
    """The groups that each rank has used."""
    places: dict[int, list[Meeting]] = {}
    for meeting in job.meetings:
        for rank in meeting.tracks:
            places.setdefault(rank, []).append(meeting)
    return places


def _was_through(job: Job, places: Mapping[int, Sequence[Meeting]], one: int, later: int) -> bool:
    """Whether a rank has completed a call that needs all, and that the other one has issued, too."""
    for meeting in places.get(one, ()):
        track, other = meeting.tracks[one], meeting.tracks.get(later)
        if other is None:
            continue
        for number in range(max(track.first, other.first), min(track.last, other.last) + 1)[:_COMPARED]:
            call = track.at(number)
            if track.end(number) == COMPLETED and other.at(number) and call and operations.needs_all(job.calls[call].split(" ")[0]):
                return True
    return False


def _world(recording: Recording, known: dict[int, tuple[int, ...]] | None = None) -> tuple[int, ...]:
    """The members of the default group as a dump tells them; () where it does not, or has had several.

    `known`: those in order, by the identity of what is in dumps: ranks share it, and there are as many members as ranks.
    """
    groups = (*(t.group for t in recording.tracks), *recording.groups)
    found = {id(g.members): g.members for g in groups if g.members and (g.desc == "default_pg" or (g.name == "0" and not g.desc))}
    if known is None or len(found) != 1:
        worlds = {tuple(sorted(members)) for members in found.values()}
        return worlds.pop() if len(worlds) == 1 else ()
    ((place, members),) = found.items()
    if place not in known:
        known[place] = tuple(sorted(members))
    return known[place]


def has_every_rank(recordings: Mapping[int, Recording]) -> bool:
    """Whether every rank of the world has a dump that holds calls."""
    known: dict[int, tuple[int, ...]] = {}
    found = {id(world): world for r in recordings.values() if (world := _world(r, known))}
    worlds = set(found.values())
    return len(worlds) == 1 and all(r in recordings and recordings[r].entries for r in worlds.pop())


def _size(run: Mapping[int, Recording]) -> int:
    known: dict[int, tuple[int, ...]] = {}
    return max(len(_world(r, known)) for r in run.values()) or max(run) + 1


def _by_world(recordings: Mapping[int, Recording]) -> list[dict[int, Recording]]:
    """By their default group. Who does not tell it, or has not come to one that was made again, is with most others."""
    newest = max((r.worlds for r in recordings.values()), default=0)
    by_world: dict[tuple[int, ...], dict[int, Recording]] = {}
    # To look one up takes as long as it has members. Its identity is its own for as long as it is held here.
    by_place: dict[int, tuple[tuple[int, ...], dict[int, Recording]]] = {}
    known: dict[int, tuple[int, ...]] = {}
    others = {}
    for rank, recording in recordings.items():
        world = _world(recording, known) if recording.worlds == newest else ()
        if world:
            if id(world) not in by_place:
                by_place[id(world)] = (world, by_world.setdefault(world, {}))
            by_place[id(world)][1][rank] = recording
        else:
            others[rank] = recording
    if not by_world:
        return [others] if others else []
    most = max(by_world.values(), key=lambda of: (len(of), max(r.newest_ns for r in of.values())))
    most |= others
    return list(by_world.values())


def _in_time(recordings: dict[int, Recording]) -> list[dict[int, Recording]]:
    """Those that do not overlap in time and do not fit each other."""
    parts: list[dict[int, Recording]] = []
    until = 0
    for rank, recording in sorted(recordings.items(), key=lambda item: item[1].oldest_ns):
        if not parts or recording.oldest_ns > until:
            parts.append({})
        parts[-1][rank] = recording
        until = max(until, recording.newest_ns)
    if len(parts) < 2:
        return parts
    job = align(recordings)
    older, places = behind(job).ranks, _places(job)

    def was_through(one: Mapping[int, Recording], later: Mapping[int, Recording]) -> bool:
        return any(_was_through(job, places, a, b) for a in islice(one, _COMPARED) for b in islice(later, _COMPARED))

    runs = parts[:1]
    for part in parts[1:]:
        if _fits(runs[-1], part, older, was_through):
            runs[-1].update(part)
        else:
            runs.append(part)
    return runs


def _fits(
    one: Mapping[int, Recording],
    later: Mapping[int, Recording],
    older: Mapping[int, int],
    was_through: Callable[[Mapping[int, Recording], Mapping[int, Recording]], bool],
) -> bool:
    """Whether what ended before the other began may be of one run with it, on hosts whose clocks differ, behind what a ring has overwritten, or while
    the first still waited."""
    gap = min(r.oldest_ns for r in later.values()) - max(r.newest_ns for r in one.values())
    # A restart comes behind a timeout, too: those who had been through a call with them did not wait for them.
    apart = gap > hosts.MOST_NS and (gap > hosts.MOST_NS + max(r.patience_ns for r in one.values()) or was_through(one, later))
    if apart and not any(r.lost or r.worlds for r in later.values()):
        return False
    # Of the same processes before they made their default group again.
    before = {rank for rank, r in one.items() if r.worlds < max(each.worlds for each in later.values())}
    return not any((rank in one and owner in later and rank not in before) or (rank in later and owner in one) for rank, owner in older.items())
