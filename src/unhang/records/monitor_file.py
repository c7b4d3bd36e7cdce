"""The newest snapshot of `unhang.Monitor` (monitor.jsonl), read without torch: the fields of `runtime.monitoring.counters.Snapshot`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from unhang import encoding
from unhang.records.tail import Appended

# A snapshot of a thousand ranks has some hundred kilobytes.
LAST_BYTES = 2 << 20


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Latency in seconds, bus bandwidth in 10^9 bytes a second; None where none was counted."""

    group: str
    collective: str
    count: int
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    busbw_p50_gbps: float | None = None


@dataclass(frozen=True, kw_only=True)
class Failures:
    group: str
    collective: str
    cause: str
    count: int
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """`waited_s` is how much less this rank has waited in calls of its group than the most patient one, `share` its part of all such waiting."""

    group: str
    rank: int
    waited_s: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Silent:
    """A rank from whose monitor nothing has come for so long."""

    rank: int
    for_s: float


@dataclass(frozen=True, kw_only=True)
class Monitored:
    """All ranks together since `unhang.Monitor` was made, at `time_s` since 1970; `heard_from` are those whose counts are in it, however old.

    `torch_collectives`: None where nobody asked for torch's own, else whether they are counted, or why not; `unread` are those that were missed.
    `interval_stragglers` are of the `interval_s` seconds before alone; None where that is not known.
    """

    time_s: float
    world_size: int
    heard_from: int
    restarts: int = 0
    calls: tuple[Calls, ...] = ()
    failures: tuple[Failures, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    evaluations: int = 0
    evaluation_failures: int = 0
    evaluation_says: str = ""
    silent: tuple[Silent, ...] = ()
    store_lost: str | None = None
    torch_collectives: str | None = None
    unread: Mapping[str, int] = field(default_factory=dict)
    dropped: int = 0
    interval_s: float | None = None
    interval_calls: tuple[Calls, ...] = ()
    interval_stragglers: tuple[Straggler, ...] = ()


class Snapshots:
    """Follows the file; `newest` is the last whole line that could be read."""

    def __init__(self, lines: Appended) -> None:
        self.lines = lines
        self.newest: Monitored | None = None
        self.damaged = 0
        self._restarts_of_file = 0
        self._decoder = msgspec.json.Decoder(Monitored)

    def read(self) -> Monitored | None:
        for line in self.lines.read():
            if self.lines.restarted != self._restarts_of_file:
                self._restarts_of_file, self.damaged = self.lines.restarted, 0
            try:
                self.newest = self._decoder.decode(line)
            except encoding.NOT_JSON:
                self.damaged += bool(line.strip())
        return self.newest
