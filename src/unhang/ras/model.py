"""What NCCL's RAS tells of a running job, in one shape for the JSON and the text answer.

What may surprise: a rank's number is its number in *that communicator*, not in the job; process id, host and device say who it is. Hosts are
addresses, never names. Counts are of operations that were *launched*. They differ for a moment in every healthy job, so one report proves nothing:
ask twice and compare (`compare`). A hang that all ranks have joined shows nothing but counts that stand still.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

# NOCOMM (UNKNOWN until 2.25): the process answers, and is no member of the communicator: not yet, or no more.
State = Literal["INIT", "RUNNING", "FINALIZE", "ABORT", "NOCOMM", "UNKNOWN"]
# INCOMPLETE: processes did not answer. ERROR: NCCL reported one. MISMATCH: ranks differ in status or counts.
Problem = Literal["INCOMPLETE", "ERROR", "MISMATCH"]
Format = Literal["json", "text"]
Phase = Literal["initialization", "asynchronous"]


@dataclass(frozen=True, kw_only=True)
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
    what differs between ranks. `init_result` and `async_result` are ncclResult_t: 0 success, 7 in progress; JSON answers only.
    """

    rank: int
    host: str | None = None
    pid: int | None = None
    nvml_dev: int | None = None
    state: State | None = None
    counts: dict[str, int] = field(default_factory=dict)
    init_result: int | None = None
    async_result: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """One rank that told nothing of the communicator. `unresponsive`: its process did not answer at all. `dead`: nor will it be asked again."""

    rank: int
    host: str | None = None
    pid: int | None = None
    nvml_dev: int | None = None
    unresponsive: bool | None = None
    dead: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Launched:
    """The ranks of a communicator that have launched equally many operations of one kind. `ranks` is () where the answer only counts them."""

    op: str
    count: int
    ranks_count: int
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Behind:
    """Ranks that have launched fewer operations of a kind (`launched`) than others of the same communicator (`most`)."""

    op: str
    launched: int
    most: int
    ranks_count: int
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class InState:
    """The ranks of a communicator that are in the same state. `ranks` is () where the answer only counts them.

    `state` is one of `State`, or a word that only a newer version of NCCL has.
    """

    state: str
    ranks_count: int
    ranks: tuple[int, ...] = ()

    @property
    def outside(self) -> bool:
        """Whether they answer, and are no members of the communicator."""
        return self.state in ("NOCOMM", "UNKNOWN")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error that NCCL itself reported on ranks of a communicator. `ranks` is () where the answer only counts them."""

    phase: Phase
    says: str
    ranks_count: int
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """One communicator. `hash`: 16 hexadecimal digits, as in NCCL's debug output, and "" where the answer does not name it (text, healthy).

    `secondary` makes the hash unique (JSON); `label` is the text answer's own name ("#0-1"), good within one answer only. `size` is the number of
    ranks that it was made with. `state` is the furthest that any rank has gone. `members` are those that answered and are told one by one: all in
    JSON, only the conspicuous ones in text. `missing_count` may be more than `missing` holds. `states`: who is in which state, the most first; of
    healthy communicators in text, all in one.
    """

    hash: str = ""
    secondary: str = ""
    label: str = ""
    size: int
    state: State | None = None
    problems: tuple[Problem, ...] = ()
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
    def behind(self) -> tuple[Behind, ...]:
        """Who has launched fewer operations than the others, kind by kind, the furthest behind first. () where nobody is, or nothing is told."""
        most: dict[str, int] = {}
        for group in self.launched:
            most[group.op] = max(group.count, most.get(group.op, 0))
        found = [
            Behind(op=g.op, launched=g.count, most=most[g.op], ranks_count=g.ranks_count, ranks=g.ranks)
            for g in self.launched
            if g.count < most[g.op]
        ]
        return tuple(sorted(found, key=lambda b: (b.op, b.launched)))

    def member(self, rank: int) -> Member | Missing | None:
        """What is told of one rank of this communicator; None where nothing is."""
        return next(iter(self.told((rank,))), None)

    def told(self, ranks: Iterable[int]) -> list[Member | Missing]:
        """What is told of these ranks, in the communicator's order; who is not told of is left out."""
        wanted = frozenset(ranks)
        everyone: tuple[Member | Missing, ...] = (*self.members, *self.missing)
        return [m for m in everyone if m.rank in wanted]


@dataclass(frozen=True, kw_only=True)
class Report:
    """One answer. `cut` says why it is not whole, and is None where it is: what a cut answer does not tell is unknown, not healthy.

    `nodes`, `processes`, `gpus`: the job's, as the text's summary has them; in JSON counted from the ranks that are named. `timestamp` is the
    server's local time (JSON). `took_s`: seconds that RAS took to gather it; `timeouts`: how often it gave up on a connection meanwhile. `silent`
    did not answer, `dead` have not for a minute and are given up; their `_count` may be more than are named, and JSON tells only
    of those whose communicator another process still has. CUDA versions as CUDA numbers them (12080 is 12.8).
    """

    source: str
    format: Format
    nccl_version: str = ""
    timestamp: str = ""
    nodes: int | None = None
    processes: int | None = None
    gpus: int | None = None
    communicators: tuple[Communicator, ...] = ()
    silent: tuple[Process, ...] = ()
    silent_count: int = 0
    dead: tuple[Process, ...] = ()
    dead_count: int = 0
    timeouts: int = 0
    took_s: float | None = None
    cut: str | None = None

    @property
    def troubled(self) -> tuple[Communicator, ...]:
        """The communicators that RAS itself finds something about. () in a cut answer is not health."""
        return tuple(c for c in self.communicators if c.problems)
