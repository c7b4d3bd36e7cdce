"""The text answer of RAS, of all versions: a summary, a table of communicators, then errors and warnings with the ranks that stand out.

What may surprise: healthy communicators are rows that count them, without names; of those with a problem, the ranks of the majority are only
counted. Where all others are named, the majority is who is left, and is filled in. Until 2.25 all kinds of operations are counted together, and
missing ranks are bare numbers. Blank lines stand inside a communicator's part as well as between parts. Source: NCCL, src/ras/client_support.cc.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from unhang.errors import RecordError
from unhang.ras.model import (
    MAX_COMMUNICATORS,
    Communicator,
    Failure,
    InState,
    Launched,
    Member,
    Missing,
    Phase,
    Process,
    Report,
    State,
    normal_hash,
)

# No job comes near; a damaged number must not fill the memory.
MAX_RANKS = 1 << 20
# Ranks that are filled in, over all communicators.
_MAX_FILLED = 250_000
_MAX_LINE_BYTES = 8192
# NCCL writes a list of bare ranks into 1024 bytes and cuts what does not fit.
_LIST_BYTES = 1000

_N = r"([0-9]{1,19})"
_DEV = r"(-?[0-9]{1,9})"
_VERSION = re.compile(r"NCCL version (\S+)")
_TOOK = re.compile(r"Communicators\.\.\.(?: \([0-9]{1,9}\.[0-9]{1,9}s\))?$")
_ROW = re.compile(
    rf"{_N} +{_N} +{_N} +(?:[0-9-]{{1,40}}) +{_N} +{_N} +(NOCOMM|UNKNOWN|INIT|RUNNING|FINALIZE|ABORT)"
    r" +(OK|(?:INCOMPLETE|ERROR|MISMATCH)(?:,(?:ERROR|MISMATCH))*)$"
)
_HEAD = re.compile(r"(#[0-9]{1,9}-[0-9]{1,9}) \(([0-9a-fA-F]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)$")
_GPUS = r"([0-9,]{1,400})(?: \(NVML ([0-9,]{1,400})\))?"
_PROCESS = re.compile(rf"Process {_N} on node (\S+) managing GPUs? {_GPUS}$")
_SILENT = re.compile(rf"Missing communicator data from {_N} (job process|rank)")
_DEAD = re.compile(rf"{_N} job process(?:es are| is) considered dead")
_TIMEOUTS = re.compile(rf"Encountered {_N} communication timeout")
_LIST = re.compile(r"The (missing|unknown) ranks?: ([0-9,]+)$")
_DIFFERENT = re.compile(r"Communicator ranks have different (\S+)(?: operation counts)?$")
_FAILED = re.compile(rf"(Initialization|Asynchronous) errors? on {_N} rank")
_MANY = re.compile(rf"{_N} ranks (?:have status (\S+)|have launched up to operation {_N}|(have not launched any operations)|reported (.{{1,80}}))$")
_ONE = re.compile(
    rf"Rank {_N}(?: has status (\S+)| has launched up to operation {_N}| (has not launched any operations)| reported (.{{1,80}}?))?"
    rf"(?: -- (?:GPU {_DEV}(?: \(NVML {_DEV}\))? managed by process {_N} on node (\S+)|\[process information not found\]))?$"
)

_STATES = get_args(State)
_Kind = Literal["status", "count", "failure"]


@dataclass(kw_only=True)
class _Group:
    """Ranks that have something in common: a status, a count of one kind of operations, an error."""

    kind: _Kind
    what: str
    value: str
    count: int
    ranks: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class _Detail:
    """What stands below the table about one communicator."""

    hash: str
    groups: list[_Group] = field(default_factory=list)
    absent: dict[int, Missing] = field(default_factory=dict)
    absent_count: int = 0
    where: dict[int, tuple[str | None, int | None, int | None]] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Row:
    number: int
    count: int
    size: int
    state: State
    problems: tuple[str, ...]


class _Reader:
    """One pass over the lines."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.version = ""
        self.gpus: int | None = None
        self.rows: list[_Row] = []
        self.details: dict[str, _Detail] = {}
        self.silent: list[Process] = []
        self.silent_count = 0
        self.dead: list[Process] = []
        self._dead_ids: set[tuple[str | None, int | None]] = set()
        self.dead_count = 0
        self.timeouts = 0
        # The version stands in every training's log, and "Errors" in many.
        self.known = False
        self.section = ""
        self._detail: _Detail | None = None
        self._problem = ""
        self._kind: tuple[_Kind, str] | None = None
        self._group: _Group | None = None
        self._totals_next = False
        self._communicators = 0

    def read(self, line: str) -> None:
        """Take one line, without white space around it. What is not known is passed over: a newer version said more."""
        if line in ("Job summary", "Errors", "Warnings"):
            self.section = line
            self._begin(None, "")
        elif _TOOK.match(line):
            self.known = True
            self.section = "Communicators"
        elif found := _VERSION.match(line):
            self.version = found[1]
        elif self.section == "Job summary":
            if line.startswith("(total)"):
                self._totals_next = True
            elif self._totals_next:
                self._totals_next = False
                numbers = line.split()
                if len(numbers) in (3, 5) and all(n.isascii() and n.isdigit() and len(n) < 10 for n in numbers):
                    self.known = True
                    self.gpus = int(numbers[-1])
        elif self.section == "Communicators":
            if found := _ROW.match(line):
                self._row(found)
        elif self.section:
            self._problems(line)

    def _row(self, found: re.Match[str]) -> None:
        row = _Row(
            number=int(found[1]),
            count=int(found[2]),
            size=int(found[4]),
            state=cast(State, found[6]),
            problems=tuple(found[7].split(",")),
        )
        self._communicators += row.count
        if not 0 < row.size <= MAX_RANKS or self._communicators > MAX_COMMUNICATORS or len(self.rows) > MAX_COMMUNICATORS:
            raise RecordError(f"{self.source} is damaged: it tells of {row.count} communicators of {row.size} ranks")
        self.rows.append(row)

    def _begin(self, detail: _Detail | None, problem: str) -> None:
        self._detail, self._problem, self._kind, self._group = detail, problem, None, None

    def _problems(self, line: str) -> None:
        if found := _HEAD.match(line):
            self._begin(self.details.setdefault(found[1], _Detail(hash=normal_hash(found[2]))), found[3])
        elif line in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            self._begin(None, line)
        elif found := _PROCESS.match(line):
            process = Process(host=found[2], pid=int(found[1]), nvml_devs=_numbers(found[4] or found[3]))
            if self._problem == "DEAD":
                self.dead.append(process)
                self._dead_ids.add((process.host, process.pid))
            else:
                self.silent.append(process)
        elif found := _DEAD.match(line):
            self.dead_count = int(found[1])
        elif found := _TIMEOUTS.match(line):
            self.timeouts = int(found[1])
        elif found := _SILENT.match(line):
            if self._detail is not None:
                self._detail.absent_count += int(found[1])
            else:
                self.silent_count = int(found[1])
        elif self._detail is not None:
            self._about(line, self._detail)

    def _about(self, line: str, detail: _Detail) -> None:
        if found := _LIST.match(line):
            self._bare(found[1], found[2], detail)
        elif found := _DIFFERENT.match(line):
            self._kind, self._group = ("status", "") if found[1] == "status" else ("count", found[1]), None
        elif found := _FAILED.match(line):
            self._kind, self._group = ("failure", found[1].lower()), None
        elif found := _MANY.match(line):
            self._group = self._opened(detail, int(found[1]), found[2], found[3], found[4], found[5])
        elif found := _ONE.match(line):
            rank = int(found[1])
            if found[9]:
                detail.where[rank] = (found[9], _number(found[8]), _number(found[7] or found[6]))
            own = self._opened(detail, 1, found[2], found[3], found[4], found[5])
            if (
                own is not None
                and self._group is not None
                and (own.kind, own.what, own.value) == (self._group.kind, self._group.what, self._group.value)
            ):
                # Named with what was said of its group already.
                detail.groups.pop()
                self._group.ranks.append(rank)
            elif own is not None:
                own.ranks.append(rank)
                self._group = None
            elif self._group is not None:
                self._group.ranks.append(rank)
            elif self._problem == "INCOMPLETE":
                detail.absent[rank] = self._missing(rank, detail, unresponsive=True)

    def _opened(
        self, detail: _Detail, count: int, status: str | None, launched: str | None, nothing: str | None, reported: str | None
    ) -> _Group | None:
        """The group that a line opens, if what it says belongs where it stands."""
        kind, what = self._kind or ("", "")
        value = {"status": status, "count": launched or ("0" if nothing else None), "failure": reported}.get(kind)
        if value is None:
            return None
        group = _Group(kind=cast(_Kind, kind), what=what, value=value, count=count)
        detail.groups.append(group)
        return group

    def _bare(self, which: str, written: str, detail: _Detail) -> None:
        """2.24 and 2.25: ranks of which nothing but the number is known."""
        ranks = list(_numbers(written))
        expected = detail.absent_count if which == "missing" else self._group.count if self._group else 0
        if len(written) >= _LIST_BYTES and len(ranks) < expected:
            ranks.pop()
        if which == "unknown" and self._group is not None:
            self._group.ranks.extend(ranks)
        for rank in ranks if which == "missing" else ():
            if rank not in detail.absent:
                detail.absent[rank] = self._missing(rank, detail, unresponsive=True)

    def _missing(self, rank: int, detail: _Detail, *, unresponsive: bool) -> Missing:
        host, pid, nvml_dev = detail.where.get(rank, (None, None, None))
        dead = (host, pid) in self._dead_ids if pid is not None and len(self.dead) == self.dead_count else None
        return Missing(rank=rank, host=host, pid=pid, nvml_dev=nvml_dev, unresponsive=unresponsive, dead=dead)


def parse(data: bytes, *, source: str, cut: str | None = None) -> Report:
    """Read a text answer, as far as it goes.

    Raises RecordError where nothing in it is RAS's, or its table and its details contradict each other.
    """
    reader = _Reader(source)
    for line in io.BytesIO(data):
        if stripped := line[:_MAX_LINE_BYTES].strip():
            reader.read(stripped.decode("utf-8", "replace"))
    if not reader.known:
        raise RecordError(f"{source} is no answer of NCCL's RAS", cause=cut or "another program answered, or the file is something else")
    if cut is None and reader.section != "Warnings":
        cut = f"it ends {'in its part ' + reader.section if reader.section else 'before its first part'}"
    return Report(
        source=source,
        format="text",
        nccl_version=reader.version,
        gpus=reader.gpus,
        communicators=tuple(_communicators(reader)),
        silent=tuple(reader.silent),
        silent_count=max(reader.silent_count, len(reader.silent)),
        dead=tuple(reader.dead),
        dead_count=max(reader.dead_count, len(reader.dead)),
        timeouts=reader.timeouts,
        cut=cut,
    )


def _communicators(reader: _Reader) -> Iterator[Communicator]:
    budget = _MAX_FILLED
    unused = set(reader.details)
    for row in reader.rows:
        for number in range(row.count):
            label = f"#{row.number}-{number}"
            unused.discard(label)
            detail = reader.details.get(label)
            if detail is None:
                states = (
                    (InState(state=row.state, ranks_count=row.size),) if "INCOMPLETE" not in row.problems and "MISMATCH" not in row.problems else ()
                )
                yield Communicator(label=label, size=row.size, state=row.state, incomplete="INCOMPLETE" in row.problems, states=states)
                continue
            budget -= row.size * (1 + len({(g.kind, g.what) for g in detail.groups}))
            yield _described(label, row, detail, reader, fill=budget >= 0)
    if unused:
        raise RecordError(f"{reader.source} is damaged: communicator {min(unused)} is not in its table")


def _described(label: str, row: _Row, detail: _Detail, reader: _Reader, *, fill: bool) -> Communicator:
    numbers = {*detail.where, *detail.absent, *(r for g in detail.groups for r in g.ranks)}
    if any(rank >= row.size for rank in numbers):
        raise RecordError(f"{reader.source} is damaged: communicator {label} of {row.size} ranks has a rank {max(numbers)}")
    answered = set(range(row.size)) - detail.absent.keys() if fill and len(detail.absent) == detail.absent_count else None
    statuses = [g for g in detail.groups if g.kind == "status"]
    _fill(statuses, answered)
    # Who is no member has launched nothing.
    outside = [g for g in statuses if g.value in ("NOCOMM", "UNKNOWN")]
    missing = dict(detail.absent)
    for group in outside:
        for rank in group.ranks:
            missing[rank] = reader._missing(rank, detail, unresponsive=False)
        if answered is not None:
            answered = answered - set(group.ranks) if len(group.ranks) == group.count else None
    counts: dict[str, list[_Group]] = {}
    for group in detail.groups:
        if group.kind == "count":
            counts.setdefault(group.what, []).append(group)
    for groups in counts.values():
        _fill(groups, answered)
    # A state that only a newer version knows is None.
    state_of = {rank: cast(State, g.value) if g.value in _STATES else None for g in statuses for rank in g.ranks}
    counts_of: dict[int, dict[str, int]] = {}
    for op, groups in counts.items():
        for group in groups:
            for rank in group.ranks:
                counts_of.setdefault(rank, {})[op] = int(group.value)
    members = []
    for rank in sorted({*detail.where, *state_of, *counts_of, *(r for g in detail.groups for r in g.ranks)} - set(missing)):
        host, pid, nvml_dev = detail.where.get(rank, (None, None, None))
        state = state_of.get(rank) if statuses else row.state
        members.append(Member(rank=rank, host=host, pid=pid, nvml_dev=nvml_dev, state=state, counts=counts_of.get(rank, {})))
    launched = [
        Launched(op=op, count=int(g.value), ranks_count=g.count, ranks=tuple(sorted(g.ranks)))
        for op, groups in counts.items()
        for g in sorted(groups, key=lambda g: int(g.value))
    ]
    failures = [
        Failure(phase=cast(Phase, g.what), says=g.value, ranks_count=g.count, ranks=tuple(g.ranks)) for g in detail.groups if g.kind == "failure"
    ]
    missing_count = max(len(missing), detail.absent_count + sum(g.count for g in outside))
    states = [InState(state=g.value, ranks_count=g.count, ranks=tuple(sorted(g.ranks))) for g in statuses]
    if not states and missing_count < row.size:
        states = [InState(state=row.state, ranks_count=row.size - missing_count)]
    return Communicator(
        hash=detail.hash,
        label=label,
        size=row.size,
        state=row.state,
        incomplete="INCOMPLETE" in row.problems,
        members=tuple(members),
        missing=tuple(missing[rank] for rank in sorted(missing)),
        missing_count=missing_count,
        launched=tuple(launched),
        failures=tuple(failures),
        states=tuple(sorted(states, key=lambda s: -s.ranks_count)),
    )


def _fill(groups: list[_Group], answered: set[int] | None) -> None:
    """The one group whose ranks are not named is made of those that the others leave, if their number agrees."""
    unnamed = [g for g in groups if not g.ranks and g.count]
    if answered is None or len(unnamed) != 1:
        return
    left = answered - {rank for g in groups for rank in g.ranks}
    if len(left) == unnamed[0].count:
        unnamed[0].ranks = sorted(left)


def _numbers(written: str) -> tuple[int, ...]:
    return tuple(int(n) for n in written.split(",") if 0 < len(n) < 20)


def _number(written: str | None) -> int | None:
    """What a rank's line says, None for nothing, and for the -1 of a device that is not known."""
    return int(written) if written and not written.startswith("-") else None
