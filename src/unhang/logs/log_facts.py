"""What a log tells about the job beside its errors: watchdog states, NCCL's own words, exit codes, slow work. Plain data; readers fill it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unhang.logs.signature import Hit, listed
from unhang.model import Evidence, frozen

if TYPE_CHECKING:
    from unhang.frames import Frame

# No job is larger: such a number stands in a torn line, or is no size. Ranks are counted up to the size by those who read it.
SIZES = listed("size", keep=8)
MAX_WORLD_SIZE = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class At:
    """Where a log said something, and of whom."""

    source: str
    line: int | None
    text: str
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    at_s: float | None = None

    def evidence(self) -> Evidence:
        return Evidence(source=self.source, line=self.line, text=self.text.strip())


@frozen
class Timeout:
    """A collective that the watchdog of one rank gave up: `ran_ms` after it began."""

    at: At
    group: str | None
    seq: int | None
    op: str
    numel_in: int | None
    numel_out: int | None
    timeout_ms: int
    ran_ms: int | None


@frozen
class Status:
    """The counters that a watchdog prints: numbers of the work that failed, the last enqueued, the last completed, on this rank in this group."""

    at: At
    group: str | None
    failed: int
    enqueued: int
    completed: int


@frozen
class Stack:
    """Where the main thread of a process stood, innermost frame last, by a stack in a log from `line` to `end`; `rank` is None where not told.

    `executes`: whether py-spy saw it on a processor, None where faulthandler wrote it, which does not tell. `went_on` is a line behind it in which
    the training counts on, and `later_s` the time of the first line that its writer dated behind it (seconds, as those of hits). `far`: so much
    follows it before anything fails that how old it is is not known.
    """

    source: str
    line: int
    end: int
    rank: int | None
    frames: tuple[Frame, ...]
    executes: bool | None = None
    went_on: int | None = None
    later_s: float | None = None
    far: bool = False


@frozen
class Init:
    """A communicator on one rank of it; `comm_id` is the same on all. `completed` is False where its "Init START" has no "Init COMPLETE"."""

    at: At
    comm: str
    comm_id: str | None = None
    rank: int
    nranks: int
    completed: bool


@frozen
class Call:
    """The last collective of one process on a communicator that its log shows; `count` is its number there, counted alike by all ranks.

    `comm_id` is the same on all of them, None where the communicator's beginning is not in the log.
    """

    at: At
    op: str
    count: int
    comm_id: str | None
    nranks: int


@frozen
class Exit:
    """A process whose end a launcher reported; `code` as in subprocess, negative for a signal."""

    at: At
    code: int
    local_rank: int | None = None


@frozen
class NcclSaid:
    """NCCL's own words.

    `versions`, `transports` ("P2P/CUMEM", "SHM/direct", "NET/IB/0/GDRDMA", "NET/Socket/0"), `interfaces` ("Bootstrap eth0:10.0.0.7<0>") and
    `settings` ("NAME=value") map each value to the places where it stood; `traces` are return-code lines ("transport/shm.cc:114 -> 2"). `calls`
    are there with NCCL_DEBUG_SUBSYS=COLL. `warnings` are those of NCCL_DEBUG=WARN, `last_errors` what callers quote of NCCL behind "Last error:".
    `guessed` are the devices that torch chose by itself.
    """

    versions: Mapping[str, tuple[At, ...]] = field(default_factory=dict)
    inits: tuple[Init, ...] = ()
    transports: Mapping[str, tuple[At, ...]] = field(default_factory=dict)
    interfaces: Mapping[str, tuple[At, ...]] = field(default_factory=dict)
    settings: Mapping[str, tuple[At, ...]] = field(default_factory=dict)
    traces: tuple[At, ...] = ()
    calls: tuple[Call, ...] = ()
    guessed: Mapping[str, tuple[At, ...]] = field(default_factory=dict)
    warnings: Mapping[str, tuple[At, ...]] = field(default_factory=dict)
    last_errors: Mapping[str, tuple[At, ...]] = field(default_factory=dict)

    @property
    def informs(self) -> bool:
        """Whether NCCL_DEBUG=INFO was on."""
        return bool(self.inits or self.transports or self.interfaces or self.settings or self.traces or self.calls)


def at(hit: Hit) -> At:
    """Where a hit stands, and of whom it is."""
    return At(source=hit.source, line=hit.line, text=hit.text, rank=hit.rank, host=hit.host, pid=hit.pid, at_s=hit.at_s)


def world_size(hits: Iterable[Hit]) -> int | None:
    """The world size: what the logs say most often of it, but never less than the largest communicator.

    From 1 to MAX_WORLD_SIZE; None where nothing tells it.
    """
    told: dict[int, int] = {}
    largest = 0
    for h in hits:
        size = int(h.groups.get("world_size") or h.groups.get("nranks") or 0)
        if size > MAX_WORLD_SIZE:
            continue
        if "world_size" in h.groups:
            told[size] = told.get(size, 0) + 1
        else:
            largest = max(largest, size)
    said = max(told, key=lambda n: (told[n], n), default=0)
    return max(said, largest) or None
