"""Incidents: evidence is gathered from all ranks at once, written down, and judged from what was written."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from unhang import flight, fsio
from unhang.diagnosis import rerun_command, why
from unhang.diagnosis.redact import redact_command
from unhang.errors import UnhangError
from unhang.facts import memory, processes
from unhang.facts.host import Host
from unhang.facts.kernel_log import uptime_s
from unhang.facts.processes import FIRST_PID_NAMESPACE
from unhang.flight import dump
from unhang.flight.dump import Dump
from unhang.frames import Frame, op_of_stack, user_frame
from unhang.launch import events, evidence
from unhang.launch.evidence import Taken, Taker, guarded, guarded_lines
from unhang.launch.listener import Peer
from unhang.launch.outside_view import MIN_WINDOW_S, Sampler
from unhang.launch.watch import RankState, Stall
from unhang.model import Verdict, frozen
from unhang.records import stacks
from unhang.records.incident import Activity, Incident, IncidentKind, LogRef, Missed, RankRecord
from unhang.records.rundir import RunDir

Judged = tuple[Incident, Verdict]

KERNEL_LINES = 400
# What a run directory that is made elsewhere has from the full one, beside incidents.
_SHARED = ("run.json", "host.json", "events.jsonl", "logs", "fatal", "flight")


@frozen
class EvidenceRequest:
    """One rank to take evidence from."""

    state: RankState
    peer: Peer | None
    activity: Activity | None


@dataclass(kw_only=True)
class PendingIncident:
    """An incident that is not written down yet. `gathered` is set once the evidence of the living is in; `told` once the user knows of it; `spares`
    if the ranks are left alive after its verdict.
    """

    number: int
    kind: IncidentKind
    at_s: float
    stall: Stall | None
    taker: Taker
    interrupted_by: str | None = None
    bound_s: float | None = None
    told: bool = False
    spares: bool = False
    taken: dict[int, Taken] = field(default_factory=dict)
    ras: str | None = None
    gathered: asyncio.Event = field(default_factory=asyncio.Event)


@frozen
class Situation:
    """What surrounds an incident when it is written down. `exitcodes` by pid; `activities` by rank."""

    attempt: int
    command: tuple[str, ...]
    promised: int | None
    usual_gap_s: float | None
    states: Sequence[RankState]
    activities: dict[int, Activity | None]
    exitcodes: dict[int, int]
    exitcode: int | None
    logs: tuple[LogRef, ...]
    elsewhere: dict[int, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Drawn:
    """An incident, where it was written, what was judged of it, and what is told of that now: who is about to be ended, or has ended."""

    rundir: RunDir
    incident: Incident
    judged: Verdict
    told: Verdict
    ends: bool


@dataclass(eq=False)
class Incidents:
    """Opens and closes the incidents of one attempt; `last` is the newest that was judged. `ends`: the kinds upon which the ranks are ended."""

    rundir: RunDir
    _: KW_ONLY
    host: Host
    first: int
    clock: Callable[[], float]
    tell: events.Tell
    sampler: Sampler | None = None
    ends: frozenset[IncidentKind] = frozenset()

    def __post_init__(self) -> None:
        self._next = self.first
        self._drawn: list[_Drawn] = []
        # One at a time: msgspec 0.22 crashes the process where two threads decode into a dataclass for the first time.
        self._judging = asyncio.Lock()
        self._oom_before = memory.oom_kills(self.host)
        self.troubles: deque[str] = deque()
        self._told_troubles: set[str] = set()
        self.current: PendingIncident | None = None
        self.last: Judged | None = None

    def open(self, kind: IncidentKind, stall: Stall | None = None, *, told: bool = True) -> PendingIncident:
        """Begin an incident; nothing is asked of anybody yet. One that is not `told` may still turn out to be none."""
        self.current = PendingIncident(
            number=self._next, kind=kind, at_s=self.clock(), stall=stall, taker=Taker(self.rundir, self.write, host=self.host)
        )
        self._next += 1
        if told:
            self.announce(self.current)
        return self.current

    def announce(self, opened: PendingIncident) -> None:
        opened.told = True
        self.tell(events.Opened(incident=opened.number, kind=opened.kind))

    def abandon(self) -> None:
        """What looked like an incident is none."""
        if self.current is not None:
            if self.current.told:
                self.tell(events.Abandoned(incident=self.current.number))
            self.current = None
            self._next -= 1

    async def parted(self, opened: PendingIncident, situation: Situation) -> bool:
        """Whether the evidence shows that ranks wait in calls that do not fit each other, or for each other in a circle."""
        records = {state.rank: _record(state, opened, situation) for state in situation.states}
        return await asyncio.to_thread(parted, self.rundir, records, opened.at_s)

    async def gather(self, opened: PendingIncident, asked: Sequence[EvidenceRequest], *, enough: asyncio.Event | None = None) -> None:
        """Take the evidence of all who can still give it, at the same time; what has come stays, where `enough` is set before all has."""
        taken = {a.state.rank: Taken(activity=a.activity) for a in asked}
        opened.taken = {**taken, **opened.taken}
        takes = [self._take(opened, a, taken[a.state.rank]) for a in asked]
        everything: asyncio.Future[Any] = asyncio.gather(*takes, self._ask_nccl(opened, asked), return_exceptions=True)
        if enough is not None:
            waiting: asyncio.Future[Any] = asyncio.ensure_future(enough.wait())
            try:
                await asyncio.wait({everything, waiting}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                everything.cancel()
        try:
            results = await everything
        except asyncio.CancelledError:
            if enough is None or not enough.is_set():
                raise
            results = []
        for a, got in zip(asked, results, strict=False):
            if isinstance(got, Exception):
                opened.taker.missed.append(Missed(what=f"evidence of rank {a.state.rank}", why=f"{type(got).__name__}: {got}"))
        opened.gathered.set()

    async def _take(self, opened: PendingIncident, asked: EvidenceRequest, taken: Taken) -> None:
        """What a rank gave earlier stays until it has given anything again: it may be ended before it has."""
        try:
            absent = opened.stall is not None and asked.state.rank in opened.stall.absent
            await opened.taker.take(opened.number, asked.state, asked.peer, taken, absent=absent)
            if self.sampler is not None and taken.activity is not None and not taken.activity.stopped:
                wait = await asyncio.to_thread(self.sampler.wait, asked.state, idle=taken.idle, workers=taken.workers)
                taken.activity = replace(taken.activity, wait=wait)
        finally:
            before = opened.taken[asked.state.rank]
            if taken.answered or taken.stacks:
                taken.flight = taken.flight or before.flight
                taken.children = taken.children or before.children
                opened.taken[asked.state.rank] = taken

    async def _ask_nccl(self, opened: PendingIncident, asked: Sequence[EvidenceRequest]) -> None:
        """Where ranks wait for somebody; never raises."""
        if opened.stall is None:
            return
        try:
            opened.ras = await asyncio.to_thread(evidence.take_ras, self.rundir, opened.number, [a.state for a in asked], opened.taker.missed.append)
        except Exception as e:
            opened.taker.missed.append(Missed(what=evidence.RAS_VIEW, why=f"{type(e).__name__}: {e}"))

    async def draw(self, opened: PendingIncident, situation: Situation) -> Verdict | None:
        """Write the incident down and judge it. None where it cannot be judged; the user is told. Never raises: this watches a living training."""
        self.current = None
        try:
            # Reading the kernel log and all dumps may take seconds, in which the ranks' output must go on.
            async with self._judging:
                drawn = await asyncio.to_thread(self._judged, opened, situation)
        except Exception as e:
            self.trouble(f"no verdict on incident {opened.number}: {type(e).__name__}: {e}")
            return None
        self._drawn.append(drawn)
        self.last = (drawn.incident, drawn.told)
        since = opened.stall.since_s if opened.stall else opened.at_s
        self.tell(events.Drawn(incident=opened.number, verdict=drawn.told, took_s=round(self.clock() - since, 3)))
        return drawn.told

    async def settle(self) -> None:
        """The attempt's processes have ended: from now on no verdict has a command for one of them."""
        async with self._judging:
            last = await asyncio.to_thread(self._revised)
        if last != self.last and last is not None:
            self.last = last
            self.tell(events.Revised(verdict=last[1]))

    def _revised(self) -> Judged | None:
        for i, drawn in enumerate(self._drawn, 1):
            now = rerun_command.with_living_processes(drawn.judged, drawn.incident.ranks, ends=drawn.ends)
            if now != drawn.told:
                drawn.told = now
                self._write_verdict(drawn.rundir, drawn.incident.number, now, is_last=i == len(self._drawn))
        return (drawn.incident, drawn.told) if self._drawn else None

    def _write_verdict(self, rundir: RunDir, number: int, verdict: Verdict, *, is_last: bool) -> None:
        self.write(rundir.incident_verdict(number), verdict)
        if is_last:
            self.write(rundir.verdict, verdict)

    def _judged(self, opened: PendingIncident, situation: Situation) -> _Drawn:
        incident = self._incident(opened, situation)
        rundir = self.rundir
        try:
            rundir.write(rundir.incident(opened.number), incident)
        except OSError as e:
            rundir = _spare(rundir)
            self.troubles.append(f"cannot write {self.rundir.incident(opened.number)}: {e.strerror}; this incident is in {rundir.path}")
            rundir.write(rundir.incident(opened.number), incident)
        judged = why.judge(rundir, number=opened.number)
        ends = opened.kind in self.ends and not opened.spares
        told = rerun_command.with_living_processes(judged, incident.ranks, ends=True) if ends else judged
        self._write_verdict(rundir, opened.number, told, is_last=True)
        return _Drawn(rundir=rundir, incident=incident, judged=judged, told=told, ends=ends)

    def write(self, path: Path, value: object) -> bool:
        """Write one file of the run directory; a disk that refuses is told of once."""
        try:
            self.rundir.write(path, value)
        except OSError as e:
            self.troubles.append(f"cannot write {path.parent}: {e.strerror}")
            return False
        return True

    def trouble(self, text: str) -> None:
        """Tell the user something, once."""
        if text not in self._told_troubles:
            self._told_troubles.add(text)
            self.tell(events.Note(text=text))

    def tell_troubles(self) -> None:
        """Tell what has gone wrong in other threads."""
        while self.troubles:
            self.trouble(self.troubles.popleft())

    def _incident(self, opened: PendingIncident, situation: Situation) -> Incident:
        stall = opened.stall
        # A rank that is asked twice may fail twice alike.
        missed = list(dict.fromkeys(opened.taker.missed))
        kernel = self._kernel_log(opened.number, missed)
        oom = memory.oom_kills(self.host)
        return Incident(
            number=opened.number,
            attempt=situation.attempt,
            kind=opened.kind,
            at_s=round(opened.at_s, 3),
            at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
            cwd=str(Path.cwd()),
            command=redact_command(situation.command),
            expected_world=situation.promised,
            stalled_for_s=round(opened.at_s - stall.since_s, 3) if stall else None,
            threshold_s=round(stall.threshold_s, 3) if stall else None,
            bound_s=opened.bound_s,
            usual_gap_s=None if situation.usual_gap_s is None else round(situation.usual_gap_s, 3),
            interrupted_by=opened.interrupted_by,
            exitcode=situation.exitcode,
            oom_kills=None if oom is None or self._oom_before is None else oom - self._oom_before,
            kernel=kernel,
            uptime_s=uptime_s(self.host),
            host_pids=_host_pids(self.host),
            ras=opened.ras,
            elsewhere=situation.elsewhere,
            ranks=tuple(_identified(_record(state, opened, situation), self.host) for state in situation.states),
            logs=situation.logs,
            guards=guarded_lines(self.rundir.path / t.flight for t in opened.taken.values() if t.flight),
            missed=tuple(missed),
        )

    def _kernel_log(self, number: int, missed: list[Missed]) -> str | None:
        try:
            ran = self.host.run(["dmesg"], timeout_s=3.0)
        except (OSError, TimeoutError) as e:
            missed.append(Missed(what="kernel log", why=str(e)))
            return None
        if ran.exitcode != 0:
            missed.append(Missed(what="kernel log", why=ran.err.strip() or f"dmesg ended with {ran.exitcode}"))
            return None
        path = self.rundir.kernel(number)
        text = "\n".join(ran.out.splitlines()[-KERNEL_LINES:]) + "\n"
        try:
            self.rundir.write_bytes(path, text.encode())
        except OSError as e:
            missed.append(Missed(what="kernel log", why=f"{path}: {e.strerror}"))
            return None
        return self.rundir.relative(path)


def _host_pids(host: Host) -> bool | None:
    """Whether this process counts pids as the kernel log does: it is in the first of all pid namespaces."""
    try:
        return str(host.path("/proc/self/ns/pid").readlink()) == FIRST_PID_NAMESPACE
    except OSError:
        return None


def parted(rundir: RunDir, records: Mapping[int, RankRecord], at_s: float) -> bool:
    dumps: dict[int, Dump] = {}
    frames: dict[int, tuple[Frame, ...]] = {}
    for rank, record in records.items():
        with contextlib.suppress(UnhangError):
            if record.flight:
                dumps[rank] = dump.read(rundir.path / record.flight, rank=rank)
        with contextlib.suppress(UnhangError):
            if record.stacks:
                frames[rank] = stacks.main_thread(rundir.read_stacks(record.stacks))
    stands = flight.standstill(records, dumps, frames, at_s=at_s)
    if in_a_circle(stands, records):
        return True
    parting = stands.front.parting if stands.front is not None else None
    # Of a group in which nobody waits it is history; messages that were not counted from the first may be of two moments.
    if parting is None or (parting.kind == "p2p-size" and parting.by != "pairs"):
        return False
    return parting.group is None or any(w.group == parting.group for w in stands.waits.values())


def in_a_circle(stands: flight.Waits, records: Mapping[int, RankRecord]) -> bool:
    """Whether ranks wait for each other in collectives of several groups, and none of them can leave its own before the others come to it.

    A collective that is pending may run beside a rank's work, a message may still be on its way: only the main thread of a rank that executes
    nothing, inside the very call that its recorder has as pending, at the line that issued it, is held there.
    """
    crossed = stands.front.crossed if stands.front is not None else ()
    return bool(crossed) and all(_is_held(stands.waits.get(rank), records[rank].activity) for rank in crossed)


def _is_held(wait: flight.CollectiveWait | None, activity: Activity | None) -> bool:
    if wait is None or wait.seq is None or wait.call is None or wait.call.is_p2p or activity is None:
        return False
    issued, stands = user_frame(wait.call.frames), user_frame(wait.frames)
    at_its_line = issued is not None and stands is not None and (issued.file, issued.line) == (stands.file, stands.line)
    return at_its_line and op_of_stack(wait.frames) != "" and activity.window_s >= MIN_WINDOW_S and not activity.busy


def _spare(rundir: RunDir) -> RunDir:
    """A run directory elsewhere that shares what the full one has. Raises OSError."""
    spare = RunDir(rundir.elsewhere, is_trusted=True)
    spare.path.mkdir(mode=0o700, exist_ok=True)
    if spare.path.is_symlink() or spare.path.stat().st_uid != os.geteuid():
        raise FileExistsError(errno.EEXIST, "it belongs to somebody else", str(spare.path))
    for kept in (*map(rundir.path.joinpath, _SHARED), *(rundir.path / "incidents").glob("*/*")):
        link = spare.path / kept.relative_to(rundir.path)
        if not os.path.lexists(link):
            fsio.make_directory(link.parent)
            link.symlink_to(kept)
    return spare


def logs_so_far(rundir: RunDir, attempt: int, channels: Sequence[tuple[int | None, str]]) -> tuple[LogRef, ...]:
    """The logs of an attempt as long as they are now; `channels` are (rank, stream)."""
    found = []
    for rank, stream in dict.fromkeys(channels):
        path = rundir.log(attempt, rank=rank, stream=stream)
        with contextlib.suppress(OSError):
            found.append(LogRef(path=rundir.relative(path), bytes=path.stat().st_size, rank=rank))
    return tuple(found)


def _identified(record: RankRecord, host: Host) -> RankRecord:
    """With what tells its process from others; of one that has ended the pid may be another's already."""
    return record if record.ended is not None else replace(record, process=processes.identity(host, record.pid))


def _record(state: RankState, opened: PendingIncident, situation: Situation) -> RankRecord:
    taken = opened.taken.get(state.rank) or Taken(activity=situation.activities.get(state.rank))
    ended = state.ended
    code = situation.exitcodes.get(state.pid)
    if ended is not None and code is not None:
        # An exit code that the launcher saw before it stopped anybody is the rank's own.
        ended = replace(ended, exitcode=code, by_launcher=False)
    return RankRecord(
        rank=state.rank,
        pid=state.pid,
        host=state.host,
        local_rank=state.local_rank,
        world_size=state.world_size or state.told_world,
        backend=state.backend,
        device=state.device,
        gpu=state.gpu,
        timeout_s=state.timeout_s,
        step=state.step,
        groups=state.groups,
        last_beat_s=state.last_beat_s,
        last_progress_s=state.last_progress_s,
        last_place=guarded(state.place) if state.place else None,
        answered=taken.answered,
        activity=taken.activity,
        raised=state.raised,
        exit_frames=state.exit_frames,
        ended=ended,
        done=state.left or state.finished,
        stacks=taken.stacks,
        flight=taken.flight,
        children=tuple(sorted(taken.children, key=lambda c: c.pid)),
    )
