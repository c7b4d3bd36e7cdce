"""What has happened in a run, folded from its events.jsonl line by line: which attempt, which ranks came, what went wrong, whether it is over;
and the newest snapshot of `unhang.Monitor` (monitor.jsonl), with the fields of `runtime.monitoring.counters.Snapshot`, read without torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

import msgspec

from unhang import encoding
from unhang.model import frozen
from unhang.records.tail import Appended

KEPT = 100


@frozen
class Happened:
    """One event, `s` seconds after the start of the run. `fields` are as they stand in the file."""

    s: float
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class _Event(msgspec.Struct, frozen=True, tag_field="event"):
    s: float


class Started(_Event, frozen=True, tag="Started"):
    attempt: int
    pid: int


class Attached(_Event, frozen=True, tag="Attached"):
    pid: int
    host: str
    rank: int | None = None


class Joined(_Event, frozen=True, tag="Joined"):
    rank: int
    world_size: int


class Stalled(_Event, frozen=True, tag="Stalled"):
    ranks: tuple[int, ...]
    kind: str


class CaughtUp(_Event, frozen=True, tag="CaughtUp"):
    after_s: float


class Opened(_Event, frozen=True, tag="Opened"):
    incident: int
    kind: str


class Abandoned(_Event, frozen=True, tag="Abandoned"):
    incident: int


class Cause(msgspec.Struct, frozen=True):
    cause: str
    says: str


class Drawn(_Event, frozen=True, tag="Drawn"):
    incident: int
    verdict: Cause | None = None


class Restarting(_Event, frozen=True, tag="Restarting"):
    attempt: int
    of: int


class Climbing(_Event, frozen=True, tag="Climbing"):
    cause: str


class GaveUp(_Event, frozen=True, tag="GaveUp"):
    why: str


class Finished(_Event, frozen=True, tag="Finished"):
    exitcode: int
    attempts: int
    incidents: int
    elapsed_s: float


class _Any(msgspec.Struct, frozen=True):
    s: float
    event: str


_Known = Union[Started, Attached, Joined, Stalled, CaughtUp, Opened, Abandoned, Drawn, Restarting, Climbing, GaveUp, Finished]  # noqa: UP007
# There is one of each rank; the table of ranks shows them.
_OF_EACH_RANK = frozenset({"Attached", "Joined"})


@dataclass
class KnownProcess:
    """A process that has reported in the present attempt. Times are seconds since the start of the run."""

    pid: int
    host: str
    since_s: float
    world_size: int | None = None


@dataclass
class OpenIncident:
    """An incident. `closed`: its verdict was drawn. `passed`: things have moved again since."""

    number: int
    kind: str
    at_s: float
    attempt: int
    closed: bool = False
    passed: bool = False
    verdict: Cause | None = None


class History:
    """Follows the file. What belongs to an attempt (`ranks`, `stalled`, `trying`) is forgotten when the next one starts."""

    def __init__(self, lines: Appended) -> None:
        self.lines = lines
        self._any = msgspec.json.Decoder(_Any)
        self._restarts_of_file = 0
        self._forget()

    def _forget(self) -> None:
        self.damaged = 0
        self.started: Started | None = None
        self.starts = 0
        self.ranks: dict[int, KnownProcess] = {}
        self.incidents: list[OpenIncident] = []
        self.stalled: Stalled | None = None
        self.trying: Climbing | None = None
        self.gave_up: GaveUp | None = None
        self.finished: Finished | None = None
        self.recent: deque[Happened] = deque(maxlen=KEPT)
        self.newest_s: float | None = None

    @property
    def wrong(self) -> OpenIncident | None:
        """What went wrong last in this attempt and has not passed."""
        last = self.incidents[-1] if self.incidents else None
        return last if last is not None and not last.passed and self.started is not None and last.attempt == self.started.attempt else None

    def read(self) -> None:
        for line in self.lines.read():
            if self.lines.restarted != self._restarts_of_file:
                self._restarts_of_file = self.lines.restarted
                self._forget()
            if line.strip():
                self._take(line)
        if self.lines.restarted != self._restarts_of_file:
            self._restarts_of_file = self.lines.restarted
            self._forget()

    def _take(self, line: bytes) -> None:
        try:
            of_any = self._any.decode(line)
            fields = encoding.with_messages(msgspec.json.decode(line))
        except encoding.NOT_JSON:
            self.damaged += 1
            return
        known: Any = None
        if of_any.event in _NAMES:
            try:
                known = msgspec.convert(fields, _Known, str_keys=True)
            except msgspec.ValidationError:
                self.damaged += 1
                return
        self.newest_s = of_any.s
        if of_any.event not in _OF_EACH_RANK:
            del fields["s"], fields["event"]
            self.recent.append(Happened(s=of_any.s, event=of_any.event, fields=fields))
        if known is not None:
            self._fold(known)

    def _fold(self, event: Any) -> None:
        if isinstance(event, Started):
            self.started, self.stalled, self.trying = event, None, None
            self.starts += 1
            self.ranks.clear()
        elif isinstance(event, Attached):
            if event.rank is not None:
                self.ranks[event.rank] = KnownProcess(pid=event.pid, host=event.host, since_s=event.s)
        elif isinstance(event, Joined):
            if event.rank in self.ranks:
                self.ranks[event.rank].world_size = event.world_size
        elif isinstance(event, Stalled):
            self.stalled = event
        elif isinstance(event, CaughtUp):
            self.stalled = None
            for wrong in self.incidents:
                wrong.passed = True
        elif isinstance(event, Opened):
            attempt = self.started.attempt if self.started is not None else 0
            self.incidents.append(OpenIncident(number=event.incident, kind=event.kind, at_s=event.s, attempt=attempt))
        elif isinstance(event, (Abandoned, Drawn)):
            self._close(event)
        elif isinstance(event, Climbing):
            self.trying = event
        elif isinstance(event, Restarting):
            self.trying = None
        elif isinstance(event, GaveUp):
            self.gave_up = event
        elif isinstance(event, Finished):
            self.finished = event

    def _close(self, event: Abandoned | Drawn) -> None:
        of_number = next((wrong for wrong in reversed(self.incidents) if wrong.number == event.incident), None)
        if isinstance(event, Abandoned):
            if of_number is not None:
                self.incidents.remove(of_number)
            return
        if of_number is None:
            attempt = self.started.attempt if self.started is not None else 0
            of_number = OpenIncident(number=event.incident, kind="straggler", at_s=event.s, attempt=attempt)
            self.incidents.append(of_number)
        of_number.closed, of_number.verdict = True, event.verdict


_NAMES = frozenset(kind.__struct_config__.tag for kind in _Known.__args__)  # type: ignore[attr-defined]


# A snapshot of a thousand ranks has some hundred kilobytes.
LAST_BYTES = 2 << 20


@frozen
class Calls:
    """Latency in seconds, bus bandwidth in 10^9 bytes a second; None where none was counted."""

    group: str
    collective: str
    count: int
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    busbw_p50_gbps: float | None = None


@frozen
class Failures:
    group: str
    collective: str
    cause: str
    count: int
    says: str = ""


@frozen
class Straggler:
    """`waited_s` is how much less this rank has waited in calls of its group than the most patient one, `share` its part of all such waiting."""

    group: str
    rank: int
    waited_s: float
    share: float


@frozen
class Silent:
    """A rank from whose monitor nothing has come for so long."""

    rank: int
    for_s: float


@frozen
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
