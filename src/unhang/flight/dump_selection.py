"""Which dumps are of the job, and each of one rank: copies under other names, files of other jobs, names that count something else.

What may surprise: no two ranks issue their calls at the same nanoseconds, so that dumps that agree in all of them are one, whatever they are called
and however they are packed. Files that were copied over each other when they were collected are the usual reason.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import field, replace

from unhang.flight.recording import Recording, world_of
from unhang.model import NotExamined, frozen

# A recording, whether its file itself tells the rank, and where it lies: the file, and which one in it.
Placed = tuple[Recording, bool, tuple[str, int]]
# Of a job with 16,384 ranks two may well have one call of the same nanosecond, and two calls once in a million such jobs.
_FEWEST_TIMES = 3
_QUOTED = 3


def moments_of(recording: Recording) -> Hashable | None:
    """When its calls were issued, which no two ranks have in common; None where it holds too few, or times that were rounded."""
    times = {ns for t in recording.tracks for of in (t.pending_ns, t.over_ns) for ns in of.values()}
    times |= {recording.oldest_ns, recording.newest_ns, recording.done_ns, *(m.created_ns for m in recording.messages)} - {0}
    if len(times) < _FEWEST_TIMES or not any(ns % 1000 for ns in times):
        return None
    return recording.is_second, recording.entries, recording.done_ns, tuple(sorted(times))


def without_copies(found: Sequence[Placed], guessed: Collection[str]) -> tuple[list[Placed], list[NotExamined]]:
    """The dumps without those of files whose names tell no rank (`guessed`) and that hold nothing but copies of others."""
    files: dict[str, list[tuple[Hashable | None, bool]]] = {}
    for recording, told, (path, _) in sorted(found, key=lambda each: (each[2][0] in guessed, each[0].rank)):
        files.setdefault(path, []).append((moments_of(recording), told))
    first: dict[Hashable, str] = {}
    left = dict[str, str]()
    for path, dumps in files.items():
        if path in guessed and all(moments in first and not told for moments, told in dumps):
            left[path] = first[dumps[0][0]]
        first |= {moments: path for moments, _ in dumps if moments is not None and moments not in first}
    missed = [NotExamined(what=path, why=f"it is a copy of {other}, equal to the nanosecond") for path, other in sorted(left.items())]
    return [each for each in found if each[2][0] not in left], missed


def of_the_job(found: Sequence[Placed], guessed: Collection[str]) -> tuple[list[Placed], list[NotExamined]]:
    """The dumps without those whose names tell no rank (`guessed`) where most others' do, unless there is a rank that has no dump."""
    strangers = [each for each in found if each[2][0] in guessed and not each[1]]
    others = [r for r, told, (path, _) in found if path not in guessed or told]
    if not strangers or len(strangers) >= len(others):
        return list(found), []
    world = _world_of_all(others)
    free = set(world or ()) - {r.rank for r in others}
    fit = all(world_of(r) in ((), world) for r, _, _ in strangers)
    if world is not None and fit and len({r.rank for r, _, _ in strangers}) <= len(free):
        return list(found), []
    why = "nothing tells whether it is of this job" if world is None else "every rank has a dump" if fit else "its own configuration has other ranks"
    left = {path for _, _, (path, _) in strangers}
    missed = [
        NotExamined(what=path, why=f"its name tells no rank, as those of the others do, and {why}: it was left out", unread=world is None)
        for path in sorted(left)
    ]
    return [each for each in found if each not in strangers], missed


@frozen
class SelectedDumps:
    """The recordings whose rank is known; `copied` are the ranks whose files hold the dump of another one, or of one of several, each with its file;
    `unknown` is a recording of which nobody can tell the rank, where that is all there is."""

    found: list[Recording]
    copied: Mapping[int, str] = field(default_factory=dict)
    missed: list[NotExamined] = field(default_factory=list)
    unknown: Recording | None = None


def told_apart(found: Sequence[Recording]) -> SelectedDumps:
    """The recordings without those that stand under the names of several ranks, unless it is known whose they are: by their messages, or because all
    other ranks have one of their own, or are none of the job's."""
    by_moments: dict[Hashable, list[Recording]] = {}
    of_rank: dict[tuple[int, bool], set[Hashable]] = {}
    for recording in found:
        moments = moments_of(recording)
        of_rank.setdefault((recording.rank, recording.is_second), set()).add(moments)
        if moments is not None:
            by_moments.setdefault(moments, []).append(recording)
    world = _world_of_all(found)
    left, copied, missed = set[int](), dict[int, str](), list[NotExamined]()
    unknown, homeless = None, list[list[Recording]]()
    for moments, alike in by_moments.items():
        named = sorted({r.rank for r in alike})
        if len(named) < 2:
            continue
        alone = [rank for rank in named if of_rank[rank, alike[0].is_second] == {moments}]
        sent = of_messages(alike[0])
        likely = [rank for rank in alone if world is None or rank in world]
        home = sent if sent in named else likely[0] if len(likely) == 1 else None
        others = [r for r in alike if r.rank != home]
        left |= set(map(id, others))
        copied |= {r.rank: r.source for r in others if r.rank in likely and not r.is_second}
        if home is not None:
            where = next(r.source for r in alike if r.rank == home)
            missed += [NotExamined(what=r.source, why=f"it is a copy of {where}, the dump of rank {home}, equal to the nanosecond") for r in others]
            continue
        unknown = replace(alike[0], rank=0)
        homeless.append(alike)
    kept = [r for r in found if id(r) not in left]
    for alike in homeless:
        files = list(dict.fromkeys(r.source for r in alike))
        shown = ", ".join(files[:_QUOTED]) + (f" and {len(files) - _QUOTED} more" if len(files) > _QUOTED else "")
        why = f"they are copies of one dump, equal to the nanosecond; its rank is unknown, so they are ignored: {shown}"
        if not kept:
            why = f"they are copies of one dump, equal to the nanosecond; its rank is unknown: {shown}"
        missed.append(NotExamined(what=f"the dumps of ranks {_of(tuple(sorted({r.rank for r in alike})))}", why=why, unread=True))
    return SelectedDumps(found=kept, copied=copied, missed=missed, unknown=unknown if not kept else None)


def of_messages(recording: Recording) -> int | None:
    """The rank of a dump as its sends and receives name it; None where they do not."""
    ends = {(m.group, m.source if m.kind == "send" else m.destination) for m in recording.messages}
    told = {group.members[n] if n < len(group.members) else n for group, n in ends if n is not None and (group.members or group.name == "0")}
    return told.pop() if len(told) == 1 else None


def at_home(found: dict[int, Recording]) -> tuple[dict[int, Recording], bool, list[NotExamined]]:
    """The recordings without those whose rank is none of their own groups', or none that the others' configuration has, whether all names count
    something else, and what is said of who is left out. Names of all that count something else, or from another number on, do not tell: their dumps
    are numbered in order."""
    strange = _strange(found)
    if not strange:
        return _inside(found)
    anew = {n: replace(r, rank=n) for n, (_, r) in enumerate(sorted(found.items()))}
    if len(strange) == len(found) or (min(found) > 0 and len(found) == max(map(len, strange.values())) and not _strange(anew)):
        return anew, True, []
    left = [
        NotExamined(what=found[rank].source, why=f"its name says rank {rank}, and its own configuration has ranks {_of(members)}: it was left out")
        for rank, members in sorted(strange.items())
    ]
    inside, unsure, outside = _inside({rank: r for rank, r in found.items() if rank not in strange})
    return inside, unsure, [*left, *outside]


def _inside(found: dict[int, Recording]) -> tuple[dict[int, Recording], bool, list[NotExamined]]:
    """Without those that tell no world themselves and are in none that most others tell."""
    world = _world_of_all(list(found.values()))
    outside = {rank: r for rank, r in found.items() if world is not None and rank not in world and not world_of(r)}
    if world is None or not outside or 2 * len(outside) >= len(found):
        return found, False, []
    why = "its name says rank {rank}, and the configuration of the others has ranks {world}: it was left out"
    missed = [NotExamined(what=r.source, why=why.format(rank=rank, world=_of(world))) for rank, r in sorted(outside.items())]
    return {rank: r for rank, r in found.items() if rank not in outside}, False, missed


def _of(members: tuple[int, ...]) -> str:
    if len(members) > 2 and members == tuple(range(members[0], members[-1] + 1)):
        return f"{members[0]} to {members[-1]}"
    if len(members) == 2:
        return f"{members[0]} and {members[1]}"
    return ", ".join(map(str, members[:8])) + (", …" if len(members) > 8 else "")


def _strange(found: Mapping[int, Recording]) -> dict[int, tuple[int, ...]]:
    """The ranks that do not belong to a group in which their dump has calls, each with the members."""
    # Ranks share them; to look one up takes as long as it has members.
    known: dict[int, frozenset[int]] = {}
    strange = {}
    for rank, recording in found.items():
        for track in recording.tracks:
            if (members := track.group.members) and rank not in (known.get(id(members)) or known.setdefault(id(members), frozenset(members))):
                strange[rank] = tuple(sorted(members))
    return strange


def _world_of_all(found: Sequence[Recording]) -> tuple[int, ...] | None:
    """The one that all tell who tell any."""
    worlds = {id(world): world for r in found if (world := world_of(r))}
    told = set(worlds.values())
    return tuple(sorted(told.pop())) if len(told) == 1 else None
