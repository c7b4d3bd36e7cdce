"""What NCCL's RAS tells of a running job, in one shape for the JSON and the text answer.

What may surprise: a rank's number is its number in *that communicator*, not in the job; process id, host and device say who it is. Hosts are
addresses, never names. Counts are of operations that were *launched*. They differ for a moment in every healthy job, so one report proves nothing:
ask twice and compare (`compare`). A hang that all ranks have joined shows nothing but counts that stand still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from unhang.model import frozen

# Of one answer. No job has as many.
MAX_COMMUNICATORS = 65_536
# NOCOMM (UNKNOWN until 2.25): the process answers, and is no member of the communicator: not yet, or no more.
State = Literal["INIT", "RUNNING", "FINALIZE", "ABORT", "NOCOMM", "UNKNOWN"]
Format = Literal["json", "text"]
Phase = Literal["initialization", "asynchronous"]


@frozen
class Process:
    """One process of the job; None and () where the answer does not say.

    Devices are numbers as CUDA counts them in that process, and as NVML does.
    """

    host: str | None = None
    pid: int | None = None
    nvml_devs: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One rank of one communicator that answered; None where the answer does not say.

    `counts`: operations launched so far, by kind ("AllReduce"; "collective" for all kinds together, as 2.24 and 2.25 tell). Text answers count only
    what differs between ranks.
    """

    rank: int
    host: str | None = None
    pid: int | None = None
    nvml_dev: int | None = None
    state: State | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """One rank that told nothing of the communicator. `unresponsive`: its process did not answer at all. `dead`: nor will it be asked again."""

    rank: int
    host: str | None = None
    pid: int | None = None
    nvml_dev: int | None = None
    unresponsive: bool | None = None
    dead: bool | None = None


@frozen
class Ranks:
    """Ranks of a communicator that have something in common. `ranks` is () where the answer only counts them."""

    ranks_count: int
    ranks: tuple[int, ...] = ()


@frozen
class Launched(Ranks):
    """Those that have launched equally many operations of one kind."""

    op: str
    count: int


@frozen
class InState(Ranks):
    """Those that are in the same state, which is one of `State`, or a word that only a newer version of NCCL has."""

    state: str

    @property
    def outside(self) -> bool:
        """Whether they answer, and are no members of the communicator."""
        return self.state in ("NOCOMM", "UNKNOWN")


@frozen
class Failure(Ranks):
    """Those on which NCCL itself reported an error."""

    phase: Phase
    says: str


@frozen
class Communicator:
    """One communicator. `hash`: 16 hexadecimal digits, as in NCCL's debug output, and "" where the answer does not name it (text, healthy).

    `secondary` makes the hash unique (JSON); `label` is the text answer's own name ("#0-1"), good within one answer only. `size` is the number of
    ranks that it was made with. `state` is the furthest that any rank has gone. `incomplete`: processes did not answer. `members` are those that
    answered and are told one by one: all in JSON, only the conspicuous ones in text. `missing_count` may be more than `missing` holds. `states`: who
    is in which state, the most first; of healthy communicators in text, all in one.
    """

    hash: str = ""
    secondary: str = ""
    label: str = ""
    size: int
    state: State | None = None
    incomplete: bool = False
    members: tuple[Member, ...] = ()
    missing: tuple[Missing, ...] = ()
    missing_count: int = 0
    launched: tuple[Launched, ...] = ()
    failures: tuple[Failure, ...] = ()
    states: tuple[InState, ...] = ()

    @property
    def name(self) -> str:
        """How to speak of it: its hash, else its label."""
        return self.hash or self.label

    @property
    def behind(self) -> tuple[Launched, ...]:
        """Who has launched fewer operations than others, kind by kind, the furthest behind first. () where nobody is, or nothing is told."""
        most: dict[str, int] = {}
        for group in self.launched:
            most[group.op] = max(group.count, most.get(group.op, 0))
        return tuple(sorted((g for g in self.launched if g.count < most[g.op]), key=lambda g: (g.op, g.count)))

    def most(self, op: str) -> Launched:
        """Who has launched the most operations of a kind."""
        return max((g for g in self.launched if g.op == op), key=lambda g: g.count)

    def member(self, rank: int) -> Member | Missing | None:
        """What is told of one rank of this communicator; None where nothing is."""
        return next(iter(self.told((rank,))), None)

    def told(self, ranks: Iterable[int]) -> list[Member | Missing]:
        """What is told of these ranks, in the communicator's order; who is not told of is left out."""
        wanted = frozenset(ranks)
        everyone: tuple[Member | Missing, ...] = (*self.members, *self.missing)
        return [m for m in everyone if m.rank in wanted]


@frozen
class Report:
    """One answer. `cut` says why it is not whole, and is None where it is: what a cut answer does not tell is unknown, not healthy.

    `gpus`: the job's, as the text's summary has them; in JSON counted from the ranks that are named. `timestamp` is the server's local time (JSON).
    `timeouts`: how often RAS gave up on a connection while it gathered this. `silent`
    did not answer, `dead` have not for a minute and are given up; their `_count` may be more than are named, and JSON tells only
    of those whose communicator another process still has. CUDA versions as CUDA numbers them (12080 is 12.8).
    """

    source: str
    format: Format
    nccl_version: str = ""
    timestamp: str = ""
    gpus: int | None = None
    communicators: tuple[Communicator, ...] = ()
    silent: tuple[Process, ...] = ()
    silent_count: int = 0
    dead: tuple[Process, ...] = ()
    dead_count: int = 0
    timeouts: int = 0
    cut: str | None = None


# Two answers about one job: who has launched something between them, communicator by communicator and rank by rank. Text answers tell counts only of
# kinds of operations in which ranks differ, and healthy communicators have no name in them, so that often nothing can be compared. Counts never fall:
# where one does, it is another communicator. Source: NCCL user guide, troubleshooting/ras ("repeated queries").
# "mixed": some ranks have launched something, of others that is not so, or not known.
Pace = Literal["still", "moves", "mixed", "unknown"]


@frozen
class Change:
    """One communicator of the newer answer. `before`: the same one in the older; None where that does not have it by name.

    `still` and `moved`: the ranks of which is known that they have launched nothing, or something. A rank that is in neither is not known.
    """

    communicator: Communicator
    before: Communicator | None = None
    pace: Pace = "unknown"
    still: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()


def compare(first: Report, second: Report) -> tuple[Change, ...]:
    """The communicators of `second`, in its order, against `first`, the older answer. Whether standing still is wrong is for the caller to say."""
    older = _by_key(first)
    newer = _by_key(second)
    json = first.format == second.format == "json"
    return tuple(_change(older.get(_key(c)) if newer.get(_key(c)) is c else None, c, all_kinds=json) for c in second.communicators)


def _key(c: Communicator) -> tuple[str, str]:
    return c.hash, c.secondary


def _by_key(report: Report) -> dict[tuple[str, str], Communicator]:
    """Those that have a name, and one that no other has."""
    named = Counter(_key(c) for c in report.communicators)
    return {_key(c): c for c in report.communicators if c.hash and named[_key(c)] == 1}


def _change(before: Communicator | None, now: Communicator, *, all_kinds: bool) -> Change:
    if before is None or before.size != now.size:
        return Change(communicator=now)
    still: set[int] = set()
    moved: set[int] = set()
    was = {m.rank: m for m in before.members}
    for m in now.members:
        if (old := was.get(m.rank)) is None:
            continue
        steps = _steps(old, m, all_kinds=all_kinds)
        another = None not in (m.host, m.pid, old.host, old.pid) and (m.host, m.pid) != (old.host, old.pid)
        if another or any(s < 0 for s in steps):
            return Change(communicator=now)
        if steps:
            (moved if any(steps) else still).add(m.rank)
    if any(g.ranks_count > len(g.ranks) for c in (before, now) for g in c.launched):
        pace = _pace_of_groups(before, now)
    elif moved:
        pace = "moves" if len(moved) == len(now.members) else "mixed"
    else:
        pace = "still" if still else "unknown"
    return Change(communicator=now, before=before, pace=pace, still=frozenset(still), moved=frozenset(moved))


def _steps(old: Member, now: Member, *, all_kinds: bool) -> list[int]:
    """How many operations of each kind were launched in between; [] where the two do not tell of the same."""
    if not old.counts or not now.counts:
        return []
    kinds = old.counts.keys() | now.counts.keys() if all_kinds else old.counts.keys() & now.counts.keys()
    return [now.counts.get(op, 0) - old.counts.get(op, 0) for op in kinds]


def _pace_of_groups(before: Communicator, now: Communicator) -> Pace:
    """Where ranks are only counted. Counts never fall, so equal groups are the same ranks at rest."""
    was, has = _groups(before), _groups(now)
    kinds = was.keys() & has.keys()
    if not kinds:
        return "unknown"
    if all(was[op] == has[op] for op in kinds):
        return "still"
    return "moves" if any(min(has[op]) > max(was[op]) for op in kinds) else "mixed"


def _groups(c: Communicator) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for g in c.launched:
        found.setdefault(g.op, {})[g.count] = g.ranks_count
    return found


def normal_hash(written: str) -> str:
    """A communicator's hash in 16 hexadecimal digits, as text answers and NCCL's debug output have it (JSON writes 0x without leading zeros)."""
    try:
        return f"{int(written, 16):016x}"
    except ValueError:
        return written
