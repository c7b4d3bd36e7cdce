"""Logs of several jobs that were given together, told apart: of two failures of different jobs neither follows from the other.

Taken apart wrongly, a cause and its victims would never meet. So logs count as one job's unless two things say otherwise: more than an hour between
the failure of one and the start of the other, and another id in their names, other hosts or another size; or, at any time, another id and other
hosts. Restarts are hours apart, elastic jobs change their size, and nodes of one job have different hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from unhang.diagnosis import clocks
from unhang.diagnosis.clocks import Scale
from unhang.logs import Hit, LogRead, Signature, Traceback, attempts, log_facts, nccl_lines, owner, owner_of
from unhang.model import NotExamined
from unhang.patterns import lazily

# What waits in a queue before it is started again may take longer: then something else has to differ as well.
RESTART_S = 3600
# From the first line of a job to what launchers and libraries print when they begin.
_BEGIN_S = 600
_SHOWN = 3
# Each log is compared with each job: what belongs to none of so many goes to the nearest.
MAX_JOBS = 32

_SIZES = frozenset(log_facts.SIZES)
_BEGINS = frozenset((*attempts.STARTS, *log_facts.SIZES, nccl_lines.START))
# A job's number, as a scheduler gives it: the pods of one job are job-0 and job-1.
_NAMED = lazily(r"(?<![a-z])(?:slurm|job(?:id)?)[-_.=]?(\d{4,})", re.ASCII | re.IGNORECASE)
# What only logs of one job have in common: a number (the second is Ray's), a directory of a job, what stands before the number of an attempt.
_NUMBER = lazily(r"(?<![\da-f])\d{5,}(?![\da-f])|(?<=-)[\da-f]{8}(?=-\d+\.)", re.ASCII)
_DIRECTORY = lazily(r"(?:slurm|jobs?|runs?)[-_.]?\w*\d[\w.-]*|\d{4,}|session_[\w.-]*\d[\w.-]*", re.ASCII | re.IGNORECASE)
_ATTEMPT = lazily(r"(?:attempt|restart|retry)[-_.]?\d+", re.ASCII | re.IGNORECASE)
_IP_ADDRESS = lazily(r"[\d.]+|[\da-f:]*:[\da-f:]*")


@dataclass(kw_only=True)
class _Job:
    """What some logs tell of their job, on one scale of time. `begun_s`: when it was first seen to start; `is_job`: it is no kernel's log.

    Jobs that share one of `ids` are one; those whose `named` ids differ may be two.
    """

    reads: list[int]
    bytes: int
    ids: set[str]
    named: set[str]
    hosts: set[str]
    sizes: set[str]
    first_s: float | None
    last_s: float | None
    begun_s: float | None
    is_job: bool
    failed: bool

    def add(self, other: _Job) -> None:
        self.reads += other.reads
        self.bytes += other.bytes
        self.ids |= other.ids
        self.named |= other.named
        self.hosts |= other.hosts
        self.sizes |= other.sizes
        self.first_s = min((t for t in (self.first_s, other.first_s) if t is not None), default=None)
        self.last_s = max((t for t in (self.last_s, other.last_s) if t is not None), default=None)
        self.begun_s = min((t for t in (self.begun_s, other.begun_s) if t is not None), default=None)
        self.is_job |= other.is_job
        self.failed |= other.failed


def newest_job(reads: Sequence[LogRead], causes: Mapping[Signature, str]) -> tuple[list[LogRead], list[NotExamined]]:
    """The logs of the job that was the last to be heard of, in order; each other job as something that was not examined.

    Where times do not tell which is the newest, it is the one whose log was given last. `causes` are the signatures of causes.
    """
    found = _jobs(reads, causes) if len(reads) > 1 else []
    if len(found) < 2:
        return list(reads), []
    timed = all(j.last_s is not None for j in found)
    newest = max(found, key=lambda j: ((j.last_s or 0) if timed else 0, max(j.reads)))
    others = sorted((j for j in found if j is not newest), key=lambda j: min(j.reads))
    return (
        [reads[n] for n in sorted(newest.reads)],
        [NotExamined(what=_names([reads[n].source for n in sorted(j.reads)]), why="another job; give it alone") for j in others],
    )


def _jobs(reads: Sequence[LogRead], causes: Mapping[Signature, str]) -> list[_Job]:
    scale = clocks.scale_of((p.source, p.utc_offset_s) for r in reads for p in _pieces(r) if p.at_s is not None)
    loose, holder = list[_Job](), dict[str, _Job]()
    for n, read in enumerate(reads):
        new = _told(n, read, scale, causes)
        first, *rest = [*{id(j): j for i in new.ids if (j := holder.get(i)) is not None}.values(), new]
        for other in rest:
            first.add(other)
        holder |= dict.fromkeys(first.ids if len(rest) > 1 else new.ids, first)
        loose += [] if new.ids else [new]
    groups = [*loose, *{id(j): j for j in holder.values()}.values()]
    # Those that tell most come first: what could belong to several is compared with each of them.
    groups.sort(key=lambda g: (g.first_s is None, -g.bytes))
    jobs: list[_Job] = []
    for group in groups:
        own = [j for j in jobs if not _different(j, group)]
        if own or len(jobs) == MAX_JOBS:
            min(own or jobs, key=lambda j: (_apart_s(j, group), -j.bytes)).add(group)
        else:
            jobs.append(group)
    return jobs


def _pieces(read: LogRead) -> list[Hit | Traceback]:
    return [*read.hits, *read.tracebacks]


def _told(number: int, read: LogRead, scale: Scale, causes: Mapping[Signature, str]) -> _Job:
    pieces = _pieces(read)
    begins_s = scale.seconds(read.source, read.begins_at_s, read.begins_utc_offset_s)
    times = [scale.seconds(p.source, p.at_s, p.utc_offset_s) for p in pieces]
    known = [t for t in (begins_s, *times) if t is not None]
    starts = [t for p, t in zip(pieces, times, strict=True) if t is not None and isinstance(p, Hit) and p.signature in _BEGINS]
    # A log that was quiet until its job had failed elsewhere begins late as well, but tells of no steps.
    if begins_s is not None and any(h.signature in attempts.STEPS for h in read.hits):
        starts.append(begins_s)
    return _Job(
        reads=[number],
        bytes=read.bytes,
        ids=set(_ids(read.source)),
        named=set(_NAMED.findall(read.source)),
        # Some lines carry the name alone, others its domain as well.
        hosts={p.host if _IP_ADDRESS.fullmatch(p.host) else p.host.partition(".")[0] for p in pieces if p.host is not None},
        sizes={h.groups["world_size"] for h in read.hits if h.signature in _SIZES},
        first_s=min(known, default=None),
        last_s=max(known, default=None),
        begun_s=min(starts, default=None),
        is_job=any(p.rank is not None or (isinstance(p, Hit) and p.signature in _BEGINS) for p in pieces),
        failed=bool(read.tracebacks) or any(h.signature in causes for h in read.hits),
    )


def _ids(source: str) -> Iterator[str]:
    """What only logs of one job have in common in their names."""
    *directories, file = re.split(r"[/\\!]+", source)
    yield from (number for number in _NUMBER.findall(file) if number != str(owner_of(source).pid))
    depth = next((n for n in range(len(directories), max(0, len(directories) - owner.NEAREST), -1) if _DIRECTORY.fullmatch(directories[n - 1])), 0)
    if depth:
        yield "/".join([*directories[:depth], ""])
    if (attempt := _ATTEMPT.search(source)) is not None:
        yield source[: attempt.start()]


def _different(a: _Job, b: _Job) -> bool:
    # Whether two sets of hosts share none. An address and a name may be the same host.
    one, other = set(a.hosts), set(b.hosts)
    kinds = {bool(_IP_ADDRESS.fullmatch(h)) for h in one | other}
    named, hosts, sizes = a.named.isdisjoint(b.named), bool(one) and bool(other) and len(kinds) == 1 and not one & other, a.sizes.isdisjoint(b.sizes)
    named, sizes = named and bool(a.named and b.named), sizes and bool(a.sizes and b.sizes)
    return (named and hosts) or ((named or hosts or sizes) and (_was_over(a, b) or _was_over(b, a)))


def _was_over(a: _Job, b: _Job) -> bool:
    """Whether `a`, a job, had failed long before `b` began: lines that are recognised may be far from the ends of a log."""
    if a.last_s is None or b.first_s is None or b.begun_s is None:
        return False
    return a.is_job and a.failed and b.begun_s - b.first_s <= _BEGIN_S and a.last_s + RESTART_S < b.first_s


def _apart_s(a: _Job, b: _Job) -> float:
    if a.first_s is None or a.last_s is None or b.first_s is None or b.last_s is None:
        return float("inf")
    return max(0.0, b.first_s - a.last_s, a.first_s - b.last_s)


def _names(sources: Sequence[str]) -> str:
    more = len(sources) - _SHOWN
    return ", ".join(sources) if more <= 0 else f"{', '.join(sources[:_SHOWN])} and {more} more"
