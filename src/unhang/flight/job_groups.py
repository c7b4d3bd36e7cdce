"""The process groups of a job, from the recordings of its ranks: who belongs to each, and one table of calls for all.

A name is no identity: torch gives the same one to all parts when it splits a group, hence members count, too. Descriptions and dtypes are not told by
every version. Gloo's dumps do not tell members: those who used a group certainly belong to it, others may.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

from unhang.flight import operations
from unhang.flight.entries import Group
from unhang.flight.recording import COMPLETED, ENDED, ISSUED, STARTED, Message, Recording, Track
from unhang.model import frozen

# The default group, where nothing describes it; of a build with two recorders, in the second one, too.
_DEFAULT = ("0", "cpu:0")
# Above every number of a call.
_ANY = 1 << 62


@frozen
class JobGroup:
    """One group of the job. `tracks` by rank, their ids in the job's table. `known`: the recorders tell who belongs to it, and there is no other.
    `unwaited`: from this number on nobody waited for one call before issuing the next."""

    name: str
    desc: str
    members: tuple[int, ...]
    known: bool
    tracks: Mapping[int, Track]
    unwaited: int | None = None

    @property
    def shown(self) -> str:
        return f"{self.name} ({self.desc})" if self.desc and self.desc not in ("undefined", self.name) else self.name

    @property
    def is_default(self) -> bool:
        """Whether all ranks belong to it, although nobody may tell how many these are."""
        return self.desc == "default_pg" or (self.name in ("0", "cpu:0") and self.desc in ("", "undefined"))


@frozen
class Job:
    """All recordings, aligned. `calls[id]` is the text of what has to be equal."""

    recordings: Mapping[int, Recording]
    meetings: tuple[JobGroup, ...]
    calls: Sequence[str]
    world: tuple[int, ...]
    world_known: bool
    messages: Mapping[int, tuple[tuple[Message, int | None, int | None], ...]] = field(default_factory=dict)


def align(recordings: Mapping[int, Recording], *, world_size: int | None = None, others: Collection[int] = ()) -> Job:
    """Put the tracks of all ranks together by group. `world_size`: how many ranks there are, where that is known from elsewhere; `others`: ranks that
    are known without a recording."""
    # Where the default group was destroyed and made again: the newest one's calls. A rank that has none yet in it has come to none of them.
    #
    # Of a ring that has lost its beginning nobody knows which one its calls are of.
    newest = max((r.worlds for r in recordings.values()), default=0)
    recordings = {rank: _of_none(r) if r.worlds < newest and not r.lost else r for rank, r in recordings.items()}
    table: dict[str, int] = {"": 0}
    for rank in sorted(recordings):
        for text in recordings[rank].calls:
            table.setdefault(text, len(table))
    same = _same_but_for_dtypes(table)
    tracks = [(rank, track) for rank in sorted(recordings) for track in _in_table(recordings[rank], same)]
    declared = _declared(recordings)
    seen = [*recordings, *others, *(r for members in declared.values() for each in members for r in each)]
    # The description of each group by name, as most have it who tell one.
    votes: dict[str, Counter[str]] = {}
    for recording in recordings.values():
        for group in recording.all_groups:
            if group.desc and group.desc != "undefined":
                votes.setdefault(group.name, Counter())[group.desc] += 1
    described = {name: "default_pg" if "default_pg" in of else min(of.items(), key=_most)[0] for name, of in votes.items()}
    told_world = [each for name, lists in declared.items() if described.get(name) == "default_pg" for each in lists]
    world = tuple(range(max(world_size or 0, max(seen, default=-1) + 1)))
    world_known = world_size is not None or any(len(each) == len(world) for each in told_world)
    by_identity: dict[tuple[str, tuple[int, ...]], dict[int, Track]] = {}
    # By the object, which ranks share: hashing all members for each of them takes longer than all the rest.
    of_group: dict[int, dict[int, Track]] = {}
    for rank, track in tracks:
        if (among := of_group.get(id(track.group))) is None:
            among = by_identity.setdefault((track.group.name, _members(rank, track.group, declared)), {})
            if track.group.members:
                of_group[id(track.group)] = among
        among[rank] = track
    meetings = []
    for (name, members), found in sorted(by_identity.items(), key=lambda item: item[0]):
        desc, known = described.get(name, ""), True
        if not members and (desc == "default_pg" or (not desc and name in _DEFAULT)):
            members, known = world, world_known
        elif not members:
            members, known = tuple(sorted(found)), False
        meetings.append(_reopened(JobGroup(name=name, desc=desc, members=members, known=known, tracks=found)))
    messages = {rank: tuple((m, *_ends(m, rank, declared, world)) for m in r.messages) for rank, r in recordings.items() if r.messages}
    return Job(
        recordings=recordings,
        meetings=tuple(meetings),
        calls=list(table),
        world=world,
        world_known=world_known,
        messages=messages,
    )


def _reopened(meeting: JobGroup) -> JobGroup:
    """With no call of Gloo taken for completed from the first on that nobody waited for."""
    number = first_unwaited(meeting.tracks)
    if number is None:
        return meeting
    return replace(meeting, tracks={rank: _reopened_track(t, number) if t.gloo else t for rank, t in meeting.tracks.items()}, unwaited=number)


def _of_none(recording: Recording) -> Recording:
    """A rank that has no call in the newest default group. What was heard of one without a dump may be of any."""
    groups = (*recording.groups, *(t.group for t in recording.tracks))
    heard = recording.heard
    if heard is not None:
        heard = {} if recording.entries else {name: replace(h, least=-1, most=max(h.most, _ANY), done=-1) for name, h in heard.items()}
    return replace(recording, tracks=(), messages=(), counters={}, status={}, groups=groups, heard=heard)


def _most(vote: tuple[str, int]) -> tuple[int, str]:
    return -vote[1], vote[0]


def _same_but_for_dtypes(table: Mapping[str, int]) -> dict[str, int]:
    """The table with one id for calls that differ only in that not all ranks tell dtypes.

    Where a call without them may be any of several, dtypes are not compared in any of these.
    """
    with_dtypes: dict[str, list[str]] = {}
    for text in table:
        if (bare := operations.without_dtypes(text)) != text and bare in table:
            with_dtypes.setdefault(bare, []).append(text)
    same = dict(table)
    for bare, typed in with_dtypes.items():
        if len(typed) == 1:
            same[bare] = table[typed[0]]
        else:
            same.update(dict.fromkeys(typed, table[bare]))
    return same


def _in_table(recording: Recording, table: Mapping[str, int]) -> list[Track]:
    """The tracks with their ids as the job's table has them."""
    mapping = [table[text] for text in recording.calls]
    if mapping == list(range(len(mapping))):
        return list(recording.tracks)
    return [replace(t, ids=array("I", map(mapping.__getitem__, t.ids))) for t in recording.tracks]


def _declared(recordings: Mapping[int, Recording]) -> dict[str, set[tuple[int, ...]]]:
    """The lists of members that any rank tells, by name."""
    found: dict[str, set[tuple[int, ...]]] = {}
    seen = set[int]()
    for recording in recordings.values():
        for group in recording.all_groups:
            if group.members and id(group) not in seen:
                seen.add(id(group))
                found.setdefault(group.name, set()).add(tuple(sorted(group.members)))
    return found


def _members(rank: int, group: Group, declared: Mapping[str, set[tuple[int, ...]]]) -> tuple[int, ...]:
    """Those that the rank itself tells, else those that another one tells of the only group of this name that the rank is in."""
    if group.members:
        return tuple(sorted(group.members))
    told = {members for members in declared.get(group.name, ()) if rank in members}
    return next(iter(told)) if len(told) == 1 else ()


def _ends(message: Message, rank: int, declared: Mapping[str, set[tuple[int, ...]]], world: tuple[int, ...]) -> tuple[int | None, int | None]:
    """Source and destination as ranks of the job. NCCL writes ranks of the group."""
    members = message.group.members or _members(rank, message.group, declared)
    if not members and (message.group.desc == "default_pg" or message.group.name == "0"):
        members = world
    other = message.destination if message.kind == "send" else message.source
    partner = members[other] if other is not None and other < len(members) else None
    return (rank, partner) if message.kind == "send" else (partner, rank)


# Calls of Gloo that nobody waited for, as DDP's buckets. Of Gloo's calls a dump tells only that they have ended, well or not; mostly it proves
# that one went well that its rank has issued another behind it. What may surprise: after a timeout calls that were issued together fail in any
# order, and the recorder may call one pending whose followers have ended. That one tells of all of them: nobody waited for it, on any rank, for
# ranks issue the same calls.
# Who goes on behind a call for longer waits for it in a thread of its own, and for those behind it, too.
_TOGETHER_NS = 30_000_000_000
# So many calls are issued together at most: DDP's buckets.
_MOST_TOGETHER = 64


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
    return number if newest_ns - ns < _TOGETHER_NS and newest - number <= _MOST_TOGETHER else None


def _reopened_track(track: Track, number: int) -> Track:
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
