"""What only NCCL's own counters tell, of calls that no ring holds any more: the recorder keeps the newest, and what hangs may be older."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from unhang.flight.job_groups import Job, JobGroup
from unhang.flight.outcome import Counted
from unhang.flight.staleness import holds_what_is_over

# NCCL's watchdog looks ten times a second for what has ended: a call that is counted as pending for longer is.
_COUNTED_NS = 1_000_000_000


def counted(job: Job, older: Collection[int]) -> tuple[Counted, ...]:
    """What is pending by NCCL's own counters, of groups of which rings that have lost their beginning hold no call."""
    found: dict[tuple[str, tuple[int, ...], int], dict[int, int]] = {}
    sure = set[int]()
    of_group: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}
    for rank, r in job.recordings.items():
        if not r.status or r.cut or r.skipped or rank in older or not holds_what_is_over(r):
            continue
        tracks = {t.group.name: t for t in r.tracks}
        pending = {name: c for name, c in r.status.items() if c.enqueued > c.completed and name not in tracks}
        if not pending:
            continue
        groups = {g.name: g for g in r.groups}
        if r.done_ns - r.oldest_ns > _COUNTED_NS:
            sure.add(rank)
        for name, c in pending.items():
            group = groups.get(name)
            members = tuple(sorted(group.members)) if group is not None else ()
            found.setdefault((name, members, c.enqueued), {})[rank] = max(c.completed, 0)
            if (name, members) not in of_group:
                of_group[name, members] = _issued(job, older, name, members)
    told = []
    for (name, members, number), completed in sorted(found.items()):
        desc = next((g.desc for r in completed for g in job.recordings[r].groups if g.name == name and g.desc), "")
        told.append(
            Counted(
                group=f"{name} ({desc})" if desc and desc not in ("undefined", name) else name,
                number=number,
                completed=min(completed.values()),
                ranks=tuple(sorted(completed)),
                fewer=tuple((r, n) for r, n in sorted(of_group[name, members].items()) if n < number),
                lagging=sure.isdisjoint(completed),
            )
        )
    return tuple(told)


def _issued(job: Job, older: Collection[int], name: str, members: tuple[int, ...]) -> dict[int, int]:
    """The newest number of a group that each member has issued, of those who tell."""
    issued = {}
    for rank in members:
        r = job.recordings.get(rank)
        if r is None or r.cut or r.skipped or not r.entries or rank in older:
            continue
        here = [t.last for t in r.tracks if t.group.name == name]
        if name in r.status:
            here.append(r.status[name].enqueued)
        if here or not r.lost:
            issued[rank] = max(here, default=0)
    return issued


def buried(job: Job, meeting: JobGroup, number: int, waiting: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Who may wait in an older call, overwritten by those behind it: each with the newest that is known to be over. On one group calls run in
    turn, so that what is seen to be over tells of all before it."""
    found = []
    for rank in waiting:
        recording, track = job.recordings[rank], meeting.tracks.get(rank)
        if track is None or track.first != number or number < 2 or not recording.lost:
            continue
        if (counts := recording.status.get(meeting.name)) is not None:
            if max(counts.completed, 0) < number - 1:
                found.append((rank, max(counts.completed, 0)))
        elif not holds_what_is_over(recording):
            found.append((rank, 0))
    return tuple(found)
