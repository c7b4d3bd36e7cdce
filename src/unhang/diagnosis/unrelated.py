"""Logs of several jobs that were given together, told apart: of two failures of different jobs neither follows from the other.

Taken apart wrongly, a cause and its victims would never meet, which is worse than two jobs judged as one. So logs count as one job's unless two
things say otherwise: restarts are hours apart, elastic jobs change their size, nodes of one job have different hosts.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from unhang.diagnosis import clocks
from unhang.diagnosis.clocks import Scale
from unhang.model import NotExamined
from unhang.patterns import lazily
from unhang.records.logs import Hit, LogRead, Signature, Traceback, attempts, job_size, nccl, owner_of

# What waits in a queue before it is started again may take longer: then something else has to differ as well.
RESTART_S = 3600
# From the first line of a job to what launchers and libraries print when they begin.
_BEGIN_S = 600
_SHOWN = 3
# Each log is compared with each job: what belongs to none of so many goes to the nearest.
MAX_JOBS = 32

_BEGINS = frozenset((*attempts.STARTS, *job_size.SIGNATURES, nccl.START))
_SIZES = frozenset(job_size.SIGNATURES)
# The last one is Ray's.
_JOB_DIRECTORY = lazily(r"(?:slurm|jobs?|runs?)[-_.]?\w*\d[\w.-]*|\d{4,}|session_[\w.-]*\d[\w.-]*", re.ASCII | re.IGNORECASE)
# Numbers of jobs, and days. Ray's workers have groups of different sizes within one job.
_JOB = lazily(r"(?<![\da-f])\d{5,}(?![\da-f])|(?<=-)[\da-f]{8}(?=-\d+\.)", re.ASCII)
_ATTEMPT_DIRECTORY = lazily(r"attempt[-_]?\d{1,6}", re.ASCII)
_ATTEMPT = lazily(r"((?:attempt|restart|retry)[-_.]?)\d+", re.ASCII)
_MEMBER = lazily(r"((?:rank|node|worker|master|host|proc|task|gpu|nid|cn|gn|dgx|hgx|replica)[-_.=]?)\d+", re.ASCII)
_SUBMITIT = lazily(r"(\d+(?:_\d+)?)_\d+_log", re.ASCII)
_SUFFIXES = lazily(r"(?:\.(?:gz|xz|zst|bz2|log|txt|out|err|stdout|stderr))+$")
_STREAM = lazily(r"std(?:out|err)")
_IP_ADDRESS = lazily(r"[\d.]+|[\da-f:]*:[\da-f:]*")


@dataclass(kw_only=True)
class _Told:
    """What some logs tell of their job, on one scale of time. `words` are what ranks were heard to say, `ranks` from when to when."""

    reads: list[int]
    bytes: int = 0
    sizes: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    ranks: dict[int, tuple[float, float]] = field(default_factory=dict)
    words: set[tuple[int, str]] = field(default_factory=set)
    first_s: float | None = None
    last_s: float | None = None
    begun_s: float | None = None
    is_job: bool = False
    failed: bool = False

    def add(self, other: _Told) -> None:
        self.reads += other.reads
        self.bytes += other.bytes
        self.sizes |= other.sizes
        self.hosts |= other.hosts
        self.words |= other.words
        self.failed |= other.failed
        self.is_job |= other.is_job
        for rank, (first, last) in other.ranks.items():
            self.heard(rank, first)
            self.heard(rank, last)
        for at_s in (other.first_s, other.last_s):
            self.at(at_s)
        self.begun_s = min((t for t in (self.begun_s, other.begun_s) if t is not None), default=None)

    def at(self, at_s: float | None) -> None:
        if at_s is not None:
            self.first_s = at_s if self.first_s is None else min(self.first_s, at_s)
            self.last_s = at_s if self.last_s is None else max(self.last_s, at_s)

    def heard(self, rank: int, at_s: float) -> None:
        first, last = self.ranks.get(rank, (at_s, at_s))
        self.ranks[rank] = (min(first, at_s), max(last, at_s))


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


def _jobs(reads: Sequence[LogRead], causes: Mapping[Signature, str]) -> list[_Told]:
    scale = clocks.scale_of((p.source, p.utc_offset_s) for r in reads for p in _pieces(r) if p.at_s is not None)
    told = [_told(n, read, scale, causes) for n, read in enumerate(reads)]
    groups = _joined(told, [set(_proofs(read)) for read in reads])
    alike: dict[str, list[_Told]] = {}
    for group in groups:
        alike.setdefault(_pattern(reads[group.reads[0]].source, group.hosts), []).append(group)
    groups = [job for group in alike.values() for job in _gathered(group, nodes=True)]
    # Those that tell most come first: what could belong to several is compared with each of them.
    groups.sort(key=lambda g: (g.first_s is None, not g.sizes, -g.bytes))
    return _gathered(groups, nodes=False)


def _pieces(read: LogRead) -> Iterator[Hit | Traceback]:
    yield from read.hits
    yield from read.tracebacks


def _told(number: int, read: LogRead, scale: Scale, causes: Mapping[Signature, str]) -> _Told:
    told = _Told(reads=[number], bytes=read.bytes, failed=bool(read.tracebacks))
    told.at(begins_s := scale.seconds(read.source, read.begins_at_s, read.begins_utc_offset_s))
    # A log that was quiet until its job had failed elsewhere begins late as well, but tells of no steps.
    if any(h.signature in attempts.STEPS for h in read.hits):
        told.begun_s = begins_s
    for p in _pieces(read):
        at_s = scale.seconds(p.source, p.at_s, p.utc_offset_s)
        told.at(at_s)
        if p.host is not None:
            # Some lines carry the name alone, others its domain as well.
            told.hosts.add(p.host if _IP_ADDRESS.fullmatch(p.host) else p.host.partition(".")[0])
        if p.rank is not None:
            told.words.add((p.rank, p.text.strip()))
            if at_s is not None:
                told.heard(p.rank, at_s)
        if isinstance(p, Hit):
            told.failed |= p.signature in causes
            if p.signature in _SIZES and 0 < (size := int(p.groups["world_size"])) <= job_size.MAX_WORLD_SIZE:
                told.sizes.add(size)
            if p.signature in _BEGINS and at_s is not None:
                told.is_job = True
                told.begun_s = at_s if told.begun_s is None else min(told.begun_s, at_s)
    return told


def _proofs(read: LogRead) -> Iterator[Hashable]:
    """What only logs of one job have in common."""
    for p in _pieces(read):
        if p.host is not None and p.pid is not None:
            yield p.host, p.pid
        if isinstance(p, Hit) and "comm_id" in p.groups:
            yield p.groups["comm_id"]
    parts = re.split(r"[/\\!]+", read.source)
    for depth in range(len(parts) - 1, 0, -1):
        if _ATTEMPT_DIRECTORY.fullmatch(parts[depth - 1]):
            yield tuple(parts[: depth - 1])
            break
        if _JOB_DIRECTORY.fullmatch(parts[depth - 1]):
            yield tuple(parts[:depth])
            break
    pid = str(owner_of(read.source).pid)
    yield from (f"job {number}" for number in _JOB.findall(parts[-1]) if number != pid)
    if _ATTEMPT.search(parts[-1].lower()):
        yield _ATTEMPT.sub(r"\1#", read.source.lower())


def _joined(told: Sequence[_Told], proofs: Sequence[Iterable[Hashable]]) -> list[_Told]:
    """Union-find over what is proven."""
    parent = list(range(len(told)))

    def root(n: int) -> int:
        while parent[n] != n:
            parent[n] = n = parent[parent[n]]
        return n

    holder: dict[Hashable, int] = {}
    for n, keys in enumerate(proofs):
        for key in keys:
            parent[root(n)] = root(holder.setdefault(key, n))
    groups: dict[int, _Told] = {}
    for n, one in enumerate(told):
        if (group := groups.setdefault(root(n), one)) is not one:
            group.add(one)
    return list(groups.values())


def _pattern(source: str, hosts: Iterable[str]) -> str:
    """A log's path without what tells the ranks and nodes of one job apart."""
    owner = owner_of(source)
    *directories, file = re.split(r"[/\\!]+", source.lower())
    names = [*("#" if d.isdigit() and len(d) < 4 else d for d in directories), _SUFFIXES.sub("", file)]
    pattern = "/".join(names)
    for own in {owner.host, *(hosts if owner.host is None else ())} - {None}:
        pattern = pattern.replace(str(own).lower(), "#")
    if owner.pid is not None:
        pattern = re.sub(rf"(?<!\d){owner.pid}(?!\d)", "#", pattern)
    return _STREAM.sub("std", _SUBMITIT.sub(r"\1_#_log", _MEMBER.sub(r"\1#", pattern)))


def _gathered(groups: Sequence[_Told], *, nodes: bool) -> list[_Told]:
    """Each group joined to those that nothing tells it from. `nodes`: their names are those of nodes of one job, whose hosts differ."""
    jobs: list[_Told] = []
    for group in groups:
        own = [j for j in jobs if not _different(j, group, nodes=nodes)]
        if own or len(jobs) == MAX_JOBS:
            min(own or jobs, key=lambda j: _distance(j, group)).add(group)
        else:
            jobs.append(group)
    return jobs


def _different(a: _Told, b: _Told, *, nodes: bool) -> bool:
    """Whether two things tell that these are logs of different jobs; of logs of one time, a rank that is in both has to be one of them.

    One run may have groups of several sizes on several hosts at one time: trainers and servers.
    """
    if _at_one_time(a, b) and not _one_rank_twice(a, b):
        return False
    sizes = bool(a.sizes) and bool(b.sizes) and not a.sizes & b.sizes
    return sizes + (_was_over(a, b) or _was_over(b, a)) + (not nodes and _apart(a.hosts, b.hosts)) + _one_rank_twice(a, b) >= 2


def _at_one_time(a: _Told, b: _Told) -> bool:
    if a.first_s is None or a.last_s is None or b.first_s is None or b.last_s is None:
        return False
    return a.first_s <= b.last_s and b.first_s <= a.last_s


def _was_over(a: _Told, b: _Told) -> bool:
    """Whether `a`, a job, had failed long before `b` began: lines that are recognised may be far from the ends of a log."""
    if a.last_s is None or b.first_s is None or b.begun_s is None:
        return False
    is_job = a.is_job or bool(a.sizes) or bool(a.ranks)
    return is_job and a.failed and b.begun_s - b.first_s <= _BEGIN_S and a.last_s + RESTART_S < b.first_s


def _apart(a: Iterable[str], b: Iterable[str]) -> bool:
    """Whether two sets of hosts share none. An address and a name may be the same host."""
    one, other = set(a), set(b)
    kinds = {bool(_IP_ADDRESS.fullmatch(h)) for h in one | other}
    return bool(one) and bool(other) and len(kinds) == 1 and not one & other


def _one_rank_twice(a: _Told, b: _Told) -> bool:
    """Whether a rank of both was heard at one time. Where both have the same words, one log holds what was copied from the other."""
    both = a.ranks.keys() & b.ranks.keys()
    overlap = any(a.ranks[r][0] <= b.ranks[r][1] and b.ranks[r][0] <= a.ranks[r][1] for r in both)
    return overlap and a.words.isdisjoint(b.words)


def _distance(job: _Told, group: _Told) -> tuple[float, bool, int]:
    """How far a group is from a job that it may belong to: in time, in size; and the largest job is the nearest."""
    apart_s = float("inf")
    if job.first_s is not None and job.last_s is not None and group.first_s is not None and group.last_s is not None:
        apart_s = max(0.0, group.first_s - job.last_s, job.first_s - group.last_s)
    return apart_s, job.sizes.isdisjoint(group.sizes), -job.bytes


def _names(sources: Sequence[str]) -> str:
    more = len(sources) - _SHOWN
    return ", ".join(sources) if more <= 0 else f"{', '.join(sources[:_SHOWN])} and {more} more"
