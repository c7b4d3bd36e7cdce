"""Everything that one incident left, loaded and cross-read: the view that the causes are asked about.

`load` reads; `IncidentView` answers questions in words (who is stopped, who left, who raised); `flight` answers the one about
collectives. Nothing here names a cause. Whatever could not be read stands in `not_examined`, never as healthy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from unhang import frames, fsio, logs, ras
from unhang.errors import RecordError, UnhangError
from unhang.flight import CollectiveWait as CollectiveWait
from unhang.flight import Flight, Stall, Waits, dump, standstill
from unhang.flight.dump import Dump
from unhang.flight.entries import not_understood
from unhang.frames import Frame
from unhang.kernel_lines import Kind, device_of
from unhang.logs import Hit, Line, Needles, Signature, Traceback, attempts, by_cause, exits, nccl_lines, watchdog
from unhang.logs.log_facts import Exit, Status
from unhang.model import Input, InputKind, NotExamined, Wait, frozen
from unhang.patterns import lazily
from unhang.records import kernel_events, stacks
from unhang.records.incident import BESIDE_ACCELERATOR, Activity, ChildRecord, Ended, Incident, Raised, RankRecord, Stacks
from unhang.records.kernel_events import KernelEvent
from unhang.records.rundir import RunDir

T = TypeVar("T")

# The clock of the kernel's log and that of its uptime are not quite the same.
_CLOCKS_S = 60.0
# A crash writes the stacks of some hundred threads at most.
_MAX_FATAL_BYTES = 4 << 20
_RANK = lazily(r"rank (\d{1,9})\b")

# What logs tell beside the signatures of causes, to be held against the other records.
_SAID = (*watchdog.SIGNATURES, *exits.SIGNATURES, *attempts.AGENTS, nccl_lines.BUS_ID)


@frozen
class ChildView:
    """A Python process below a rank, with its main thread, innermost last; () if that could not be read."""

    record: ChildRecord
    frames: tuple[Frame, ...] = ()

    @cached_property
    def place(self) -> Frame | None:
        """The user's line in its own work; None if it waits for work."""
        # Below multiprocessing's own function stand the frames of whoever forked it.
        start = max((i for i, f in enumerate(self.frames) if f.name == "_bootstrap" and frames.inside(f, "multiprocessing/process")), default=-1)
        return frames.user_frame(self.frames[start + 1 :])


@frozen
class RankView:
    """One rank: its record, and what its files held. `place` is the user's line at which its main thread stands, or was last seen."""

    record: RankRecord
    stacks: Stacks | None = None
    fatal: Stacks | None = None
    fatal_source: str | None = None
    fatal_signal: str | None = None
    dump: Dump | None = None
    raised_hits: tuple[Hit, ...] = ()
    children: tuple[ChildView, ...] = ()

    @property
    def number(self) -> int:
        return self.record.rank

    @property
    def flight(self) -> Flight | None:
        return self.dump.flight if self.dump is not None else None

    @property
    def activity(self) -> Activity | None:
        return self.record.activity

    @property
    def wait(self) -> Wait | None:
        """What its main thread waits in, by the kernel."""
        return self.activity.wait if self.activity is not None else None

    @property
    def ended(self) -> Ended | None:
        return self.record.ended

    @property
    def raised(self) -> Raised | None:
        return self.record.raised

    @property
    def alive(self) -> bool:
        return self.record.ended is None

    @property
    def stopped(self) -> bool:
        return self.alive and self.activity is not None and self.activity.stopped

    @property
    def uninterruptible(self) -> bool:
        return self.alive and self.activity is not None and self.activity.state == "D"

    @property
    def busy(self) -> bool:
        return self.alive and self.activity is not None and self.activity.busy

    @property
    def raised_symptom(self) -> bool:
        """Its exception only says that somebody else failed or was late."""
        return bool(self.raised_hits) and all(h.signature.role == "symptom" for h in self.raised_hits)

    @cached_property
    def captured(self) -> tuple[Frame, ...]:
        """The main thread as it was captured; () where it stood in unhang's own hook, which holds a rank that has raised."""
        found = stacks.main_thread(self.stacks) if self.stacks is not None else ()
        held = self.raised is not None and bool(self.raised.frames) and frames.without_hook(found) != found
        return () if held else found

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        """The main thread, innermost last: where it called sys.exit, else as captured, as it raised, or as a fatal signal found it."""
        if self.record.exit_frames and self.raised is None:
            return self.record.exit_frames
        if self.captured:
            return self.captured
        if self.raised is not None and self.raised.frames:
            return self.raised.frames
        return stacks.main_thread(self.fatal) if self.fatal is not None else ()

    @cached_property
    def place(self) -> Frame | None:
        return frames.user_frame(self.frames) or self.record.last_place

    @property
    def only_last_seen(self) -> bool:
        """Its place is that of a heartbeat: it may have gone on since."""
        return self.place is not None and frames.user_frame(self.frames) is None


@frozen
class IncidentView:
    """One incident. `hits` are keyed by cause id, `last_lines` by log; `incident_source` is incident.json, relative to the run directory.

    `statuses` are the counters that watchdogs printed, `exits` the ends of processes that launchers reported; () where a launcher started its workers
    again by itself: then nothing tells of which of them a line is. `kernel` is what the kernel log tells since the run began; None where it could not
    be read. `gpus` are the ranks that use each GPU, by PCI address; those of which it is not known are in none.
    """

    incident: Incident
    incident_source: str
    ranks: tuple[RankView, ...]
    hits: Mapping[str, tuple[Hit, ...]] = field(default_factory=dict)
    last_lines: Mapping[str, tuple[Line, ...]] = field(default_factory=dict)
    tracebacks: tuple[Traceback, ...] = ()
    statuses: tuple[Status, ...] = ()
    exits: tuple[Exit, ...] = ()
    kernel: tuple[KernelEvent, ...] | None = None
    kernel_source: str | None = None
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ras: ras.Report | None = None
    inputs: tuple[Input, ...] = ()
    not_examined: tuple[NotExamined, ...] = ()

    def rank(self, number: int) -> RankView:
        return self._by_number[number]

    @cached_property
    def _by_number(self) -> dict[int, RankView]:
        return {r.number: r for r in reversed(self.ranks)}

    def place(self, frame: Frame) -> str:
        return frames.place(frame, self.incident.cwd)

    def where(self, rank: RankView) -> str | None:
        return self.place(rank.place) if rank.place is not None else None

    @property
    def on_nccl(self) -> bool:
        """Whether NCCL is in use, or may be: no rank has told its backend."""
        told = [r.record.backend for r in self.ranks if r.record.backend]
        return not told or any("nccl" in backend for backend in told)

    @cached_property
    def _standstill(self) -> Waits:
        return standstill(
            {r.number: r.record for r in self.ranks},
            {r.number: r.dump for r in self.ranks if r.dump},
            {r.number: r.frames for r in self.ranks},
            at_s=self.incident.at_s,
            alive=[r.number for r in self.ranks if r.alive or r.raised_symptom],
        )

    @property
    def waits(self) -> Mapping[int, CollectiveWait]:
        """Who is inside a collective that has not finished, or was until it failed through no fault of its own; and in which."""
        return self._standstill.waits

    @property
    def front(self) -> Stall | None:
        """The collective at which the job stands still: who waits in it, who is absent. None where nobody waits."""
        return self._standstill.front

    @cached_property
    def missing(self) -> tuple[RankView, ...]:
        """Living ranks that the others wait for and that wait for nobody; where nobody waits, all living ranks that are seen not to."""
        alive = [r for r in self.ranks if r.alive and r.raised is None]
        if self.front is None:
            return tuple(r for r in alive if r.number not in self.waits)
        return tuple(r for r in alive if r.number in self.front.absent and r.number not in self.waits)

    @cached_property
    def gone(self) -> tuple[RankView, ...]:
        """Ranks that ended by themselves (no launcher ended them), the earliest first."""
        return tuple(sorted((r for r in self.ranks if r.ended is not None and not r.ended.by_launcher), key=self.onset))

    @cached_property
    def raised(self) -> tuple[RankView, ...]:
        """Ranks with an exception that nothing caught, the earliest first."""
        return tuple(sorted((r for r in self.ranks if r.raised is not None), key=self.onset))

    def onset(self, rank: RankView) -> float:
        """When something was first seen to be wrong with a rank: seconds since the start of the run."""
        times = [event.at_s for event in (rank.raised, rank.ended) if event is not None]
        if times:
            return min(times)
        last = rank.record.last_progress_s
        return self.incident.at_s if last is None else last

    def kernel_told(self, kind: Kind, rank: RankView) -> KernelEvent | None:
        """What the kernel log tells of the process of a rank; None also where its pids are not ours."""
        if self.incident.host_pids is False:
            return None
        return next((e for e in self.kernel or () if e.kind == kind and e.pid == rank.record.pid), None)

    def oom_kill_of(self, rank: RankView) -> KernelEvent | None:
        return self.kernel_told("oom-kill", rank)

    @property
    def oom_kills_of_somebody(self) -> tuple[KernelEvent, ...]:
        """Kills in the kernel log that may be of our ranks or of others: it counts pids as the host does, and we in a namespace of our own."""
        return tuple(e for e in self.kernel or () if e.kind == "oom-kill") if self.incident.host_pids is False else ()

    def raised_as(self, rank: RankView) -> tuple[str, ...]:
        """The causes whose signatures the exception of a rank carries."""
        return tuple(cause for cause, hits in self.hits.items() if any(h in rank.raised_hits for h in hits))

    def hits_of(self, cause: str) -> tuple[Hit, ...]:
        return self.hits.get(cause, ())


def load(rundir: RunDir, number: int, *, signatures: Mapping[Signature, str]) -> IncidentView:
    """Read incident `number`; `signatures` maps each to the id of its cause. Raises RunDirError where incident.json itself cannot be read."""
    return _Loader(rundir, number, signatures).load()


class _Loader:
    def __init__(self, rundir: RunDir, number: int, signatures: Mapping[Signature, str]) -> None:
        self.rundir = rundir
        self.number = number
        self.signatures = signatures
        self.needles = Needles((*signatures, *_SAID))
        self.inputs: list[Input] = []
        self.not_examined: list[NotExamined] = []
        self.named = set[Path]()
        # What the incident says it lacks, of which rank.
        self.missed = set[tuple[str, int]]()

    def load(self) -> IncidentView:
        path = self.rundir.incident(self.number)
        incident = self.rundir.read_incident(self.number)
        source = self.rundir.relative(path)
        self._read(source, "run", "", lambda _: None)
        self.not_examined.extend(NotExamined(what=m.what, why=m.why) for m in incident.missed)
        self.missed = {(what, int(rank)) for m in incident.missed for what in ("stack", "flight") if what in m.what for rank in _RANK.findall(m.what)}
        records = [self._with_torchs_dump(r, incident) for r in sorted(incident.ranks, key=lambda r: r.rank)]
        named = [(self.rundir.path / name, r.rank) for r in records for name in self._files_of_dump(r)]
        # The first rank that names a file, as in `_check`.
        flights = list({path.resolve(): (path, rank) for path, rank in reversed(named) if self.rundir.holds(path)}.values())
        with contextlib.closing(dump.read_all(flights)) as dumps:
            self.dumps = dict(zip(flights, dumps, strict=True))
        ranks = _called_alike([self._rank(r, incident, source) for r in records])
        hits = [h for r in ranks for h in r.raised_hits]
        tracebacks: list[Traceback] = []
        ends: dict[str, tuple[Line, ...]] = {}
        for log in incident.logs:
            found, backs, ends[log.path] = self._log(log.path, log.bytes, log.rank)
            hits += found
            tracebacks += backs
        said = [h for h in hits if h.signature in _SAID]
        gpus = _gpus(ranks, said)
        events = self._kernel(incident)
        hits += self._told_by_kernel(incident, events or (), ranks, gpus)
        restarted = sum(h.signature in attempts.AGENTS and "estart" in h.signature.needle for h in said)
        said = [] if restarted else said
        asked = self._read(incident.ras, "ras", "NCCL's own view of the job (RAS)", ras.load) if incident.ras else None
        return IncidentView(
            incident=incident,
            incident_source=source,
            ranks=ranks,
            hits=by_cause((h for h in hits if h.signature in self.signatures), self.signatures),
            last_lines=ends,
            tracebacks=tuple(tracebacks),
            statuses=watchdog.statuses(h for h in said if h.signature in watchdog.SIGNATURES),
            exits=exits.read(h for h in said if h.signature in exits.SIGNATURES),
            kernel=events,
            gpus=gpus,
            kernel_source=incident.kernel,
            ras=asked,
            inputs=tuple(self.inputs),
            not_examined=tuple(self.not_examined),
        )

    def _rank(self, record: RankRecord, incident: Incident, source: str) -> RankView:
        what = f"rank {record.rank}"
        captured = self._read(record.stacks, "stacks", f"the stacks of {what}", lambda p: self.rundir.read(p, Stacks)) if record.stacks else None
        taken = self._dump(record)
        fatal, fatal_source, signal = self._fatal(record, incident)
        if record.ended is None and incident.kind != "world-size":
            if record.stacks is None and ("stack", record.rank) not in self.missed:
                self._miss(f"the stacks of {what}", "none was taken")
            if record.flight is None and ("flight", record.rank) not in self.missed:
                self._miss(f"the flight recorder of {what}", "no dump was taken")
        raised: tuple[Hit, ...] = ()
        if record.raised is not None:
            text = f"{record.raised.type}: {record.raised.text}"
            raised = tuple(logs.match(text, self.signatures, source=source, rank=record.rank))
        return RankView(
            record=record,
            stacks=captured,
            dump=taken,
            fatal=fatal,
            fatal_source=fatal_source,
            fatal_signal=signal,
            raised_hits=raised,
            children=tuple(self._child(c, record.rank) for c in record.children),
        )

    def _child(self, record: ChildRecord, rank: int) -> ChildView:
        if record.stacks is None:
            return ChildView(record=record)
        what = f"the stacks of process {record.pid} below rank {rank}"
        found = self._read(record.stacks, "stacks", what, lambda p: self.rundir.read(p, Stacks))
        return ChildView(record=record, frames=stacks.main_thread(found) if found is not None else ())

    def _with_torchs_dump(self, record: RankRecord, incident: Incident) -> RankRecord:
        """Of a rank that could not be asked, the dump that torch wrote by itself when a collective timed out."""
        own = self.rundir.flight_of_torch(incident.attempt) / f"rank_{record.rank}"
        return replace(record, flight=self.rundir.relative(own)) if record.flight is None and own.is_file() else record

    def _files_of_dump(self, record: RankRecord) -> list[str]:
        """That of a rank, and that of its second recorder."""
        if record.flight is None:
            return []
        second = Path(record.flight).parent / "cpu" / Path(record.flight).name
        return [record.flight, *([str(second)] if (self.rundir.path / second).is_file() else [])]

    def _dump(self, record: RankRecord) -> Dump | None:
        """The dump of a rank, with the one of the second recorder that a build for an accelerator has for Gloo."""
        if record.flight is None:
            return None
        what = f"the flight recorder of rank {record.rank}"

        def read(path: Path) -> Dump:
            if isinstance(found := self.dumps.get((path, record.rank), RecordError(f"{path} is missing")), RecordError):
                raise found
            return found

        found = self._read(record.flight, "flight", what, read)
        for beside in self._files_of_dump(record)[1:]:
            second = self._read(beside, "flight", f"the second {what.removeprefix('the ')}", read)
            found = second if found is None else found if second is None else dump.both(found, second)
        if found is not None and (left := _left_out(found.flight)):
            self._miss(f"a part of {what}", left)
        return found

    def _fatal(self, record: RankRecord, incident: Incident) -> tuple[Stacks | None, str | None, str | None]:
        path = self.rundir.fatal_of(incident.attempt, record.rank)
        source = self.rundir.relative(path)
        try:
            if not path.is_file() or path.stat().st_size == 0:
                return None, None, None
        except OSError as e:
            self._miss(source, f"it cannot be read: {e.strerror or e}")
            return None, None, None
        text = self._read(
            source, "stacks", f"the last stacks of rank {record.rank}", lambda p: fsio.bounded_read(p, _MAX_FATAL_BYTES).decode("utf-8", "replace")
        )
        if text is None:
            return None, None, None
        first = next((line for line in text.splitlines() if line.startswith("Fatal Python error:")), None)
        try:
            return stacks.from_faulthandler(text), source, first
        except UnhangError as e:
            if first is not None and not _in_order(record):
                self._miss(f"the last stacks of rank {record.rank}", str(e))
            return None, source, first

    def _log(self, source: str, size: int, rank: int | None) -> tuple[list[Hit], list[Traceback], tuple[Line, ...]]:
        def read(path: Path) -> tuple[list[Hit], list[Traceback], tuple[Line, ...]]:
            found = logs.read(path, self.needles, limit_bytes=size, source=source, rank=rank)
            return list(found.hits), list(found.tracebacks), logs.last_lines(path, limit_bytes=size)

        return self._read(source, "log", f"the log {source}", read, size=size) or ([], [], ())

    def _kernel(self, incident: Incident) -> tuple[KernelEvent, ...] | None:
        if incident.kernel is None:
            if not any("kernel" in m.what for m in self.not_examined):
                self._miss("the kernel log", "it was not captured")
            return None
        found = self._read(incident.kernel, "kernel", "the kernel log", kernel_events.events)
        if found is None:
            return None
        undated = sum(e.kind in kernel_events.DEVICES and _of_this_run(e, incident) is None for e in found)
        if undated:
            lines = f"{undated} line{'s' if undated > 1 else ''} of the kernel log about devices"
            self._miss(lines, "whether they are of this run or older cannot be told: they carry no time that can be compared")
        return tuple(e for e in found if _of_this_run(e, incident) is not False)

    def _told_by_kernel(
        self, incident: Incident, events: Sequence[KernelEvent], ranks: Sequence[RankView], gpus: Mapping[str, tuple[int, ...]]
    ) -> list[Hit]:
        """What signatures find in the kernel's lines about devices, with the ranks that use the device. Nothing of GPUs that are surely others'."""
        known = {n for of_gpu in gpus.values() for n in of_gpu} >= {r.number for r in ranks}
        wanted = {e.line: e for e in events if e.kind in kernel_events.DEVICES and _of_this_run(e, incident)}
        wanted = {n: e for n, e in wanted.items() if not (known and e.kind in kernel_events.GPUS and e.device is not None and e.device not in gpus)}
        if not wanted or incident.kernel is None:
            return []
        try:
            found = logs.read(self.rundir.path / incident.kernel, self.needles, source=incident.kernel).hits
        except (UnhangError, OSError) as e:
            self._miss("the kernel log", str(e))
            return []
        hosts = {r.record.host for r in ranks}
        host = next(iter(hosts)) if len(hosts) == 1 else None
        placed = []
        for hit in found:
            if hit.line not in wanted or hit.signature not in self.signatures:
                continue
            event = wanted[hit.line]
            users = gpus.get(event.device, ()) if event.device is not None and event.kind in kernel_events.GPUS else ()
            placed += [replace(hit, rank=n, host=host, pid=None) for n in users or (None,)]
        return placed

    def _read(self, source: str, kind: InputKind, what: str, reader: Callable[[Path], T], *, size: int | None = None) -> T | None:
        path = self.rundir.path / source
        try:
            if path.exists():
                self._check(path)
            value = reader(path)
            self.inputs.append(Input(source=source, kind=kind, bytes=path.stat().st_size if size is None else size))
        except (UnhangError, OSError) as e:
            self._miss(what, str(e).replace(str(self.rundir.path) + "/", ""))
            return None
        return value

    def _check(self, path: Path) -> None:
        """A run directory may come from anybody: what its records name must be a file of its own. Raises RecordError."""
        if not self.rundir.holds(path):
            raise RecordError(f"{path} is no file of this run directory")
        # Each rank has files of its own, and a small record may name a large file many times.
        if (real := path.resolve()) in self.named:
            raise RecordError(f"several ranks name {path}; only the first is read")
        self.named.add(real)

    def _miss(self, what: str, why: str) -> None:
        self.not_examined.append(NotExamined(what=what, why=why))


def _called_alike(ranks: Sequence[RankView]) -> tuple[RankView, ...]:
    """The ranks with one name for each group. Where torch is built for GPUs and only Gloo was used, heartbeats say "cpu:0" of what dumps call "0"."""
    counted = {name for r in ranks for name in r.record.groups}
    dumped = {name for r in ranks if r.flight is not None for name in (*r.flight.groups, *r.flight.calls)}
    if not dumped or not counted or not all(name.startswith(BESIDE_ACCELERATOR) for name in counted):
        return tuple(ranks)
    if any(name.startswith(BESIDE_ACCELERATOR) for name in dumped):
        return tuple(ranks)
    plain = ({name.removeprefix(BESIDE_ACCELERATOR): told for name, told in r.record.groups.items()} for r in ranks)
    return tuple(replace(r, record=replace(r.record, groups=groups)) for r, groups in zip(ranks, plain, strict=True))


def _of_this_run(event: KernelEvent, incident: Incident) -> bool | None:
    """Whether the kernel told it since the run began; None where that cannot be known."""
    if event.boot_s is None or incident.uptime_s is None:
        return None
    return event.boot_s >= incident.uptime_s - incident.at_s - _CLOCKS_S


def _gpus(ranks: Sequence[RankView], said: Sequence[Hit]) -> dict[str, tuple[int, ...]]:
    """The ranks that use each GPU: as they said themselves, else as NCCL says in their own logs."""
    own = {r.number: address for r in ranks if (address := _address(r.record.gpu)) is not None}
    for hit in said:
        if hit.rank is not None and hit.rank not in own and (address := nccl_lines.gpu_of(hit)) is not None:
            own[hit.rank] = address
    found: dict[str, tuple[int, ...]] = {}
    for rank, address in sorted(own.items()):
        found[address] = (*found.get(address, ()), rank)
    return found


def _address(told: str | None) -> str | None:
    try:
        return device_of(told)
    except ValueError:
        return None


def _left_out(flight: Flight) -> str:
    """What of a dump could not be read, and what it does not tell."""
    return "; ".join(dict.fromkeys(part for part in (flight.cut, flight.untold, not_understood(flight.skipped)) if part))


def _in_order(record: RankRecord) -> bool:
    """Whether a rank ended by itself, through Python: what a signal might have written is not missed."""
    ended = record.ended
    return record.raised is not None or (ended is not None and ended.announced and (ended.exitcode or 0) >= 0)
