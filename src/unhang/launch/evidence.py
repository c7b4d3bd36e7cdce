"""Evidence of living ranks, taken before anything is killed.

A process is asked first: its heartbeat thread answers even while the main thread is blocked inside a collective. Where it
cannot answer (stopped, or another thread holds the GIL), py-spy reads its stacks from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import linecache
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unhang import flight as flights
from unhang import fsio, ras
from unhang.errors import RecordError
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.frames import LOADER, Frame, inside, user_frame
from unhang.launch.listener import Message, Peer
from unhang.launch.outside_view import ChildReader, dump_by_py_spy, find_py_spy
from unhang.launch.watch import RankState
from unhang.model import Counters, frozen
from unhang.records import stacks as stacks_of
from unhang.records.incident import Activity, ChildRecord, GuardedLine, Missed, Stacks, ThreadStack
from unhang.records.rundir import RunDir
from unhang.user_files import is_user_file

ANSWER_TIMEOUT_S = 3.0
# A dump comes after the stacks: thousands of calls with their frames, onto a disk that may be slow.
DUMP_TIMEOUT_S = 5.0
# On a host whose cores are taken by others it takes longer: so long while its thread is seen to be at it, looked at so often.
DUMP_WORKING_S = 30.0
WORK_INTERVAL_S = 1.0
# Ranks part at one of the newest calls of a group.
GUARDED_CALLS = 64


@dataclass(kw_only=True)
class Taken:
    """What was got from one rank. Paths are relative to the run directory; `idle` are threads that release no lock (see `stacks.idle_threads`),
    `place` is the user's line.
    """

    answered: bool = False
    stacks: str | None = None
    flight: str | None = None
    activity: Activity | None = None
    idle: set[int] = field(default_factory=set)
    in_loader: bool = False
    place: Frame | None = None
    children: list[ChildRecord] = field(default_factory=list)

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers whose batches the rank waits for."""
        return tuple(c.pid for c in self.children if c.worker is not None) if self.in_loader else ()


@frozen
class _Request:
    """What was asked of one process, and its two answers."""

    number: int
    incident: int
    state: RankState
    peer: Peer
    evidence: asyncio.Future[Message]
    dumped: asyncio.Future[Message]
    asked_s: float


# Over all incidents: a late answer to one must not be taken for the answer to the next.
_numbers = itertools.count(1)


class Taker:
    """Asks ranks for evidence and keeps the answers in the run directory."""

    def __init__(self, rundir: RunDir, write: Callable[[Path, object], bool], *, host: Host | None = None) -> None:
        self._rundir = rundir
        self._write = write
        self._host = host or Host()
        self._asked: dict[int, _Request] = {}
        self._late: dict[int, Missed] = {}
        self.missed: list[Missed] = []

    @property
    def late(self) -> bool:
        """Whether answers may still come."""
        return bool(self._asked)

    def answer(self, peer: Peer, message: Message) -> None:
        """Take in an `evidence` or a `dumped` message of the process that was asked. Raises KeyError, TypeError or ValueError for a malformed one."""
        request = self._asked.get(int(message["id"]))
        if request is None or request.peer is not peer:
            return
        future = request.dumped if message["m"] == "dumped" else request.evidence
        if not future.done():
            future.set_result(message)

    async def take(self, incident: int, state: RankState, peer: Peer | None, taken: Taken, *, absent: bool = False) -> None:
        """Put everything that one rank can give into `taken` as it comes. Never raises for what the rank does.

        The children of a rank that others wait for (`absent`) are read meanwhile, those of one that stands in a data loader afterwards.
        """
        if absent:
            await asyncio.gather(self._take_own(incident, state, peer, taken), self._take_children(incident, state, taken))
        else:
            await self._take_own(incident, state, peer, taken)
            if taken.in_loader:
                await self._take_children(incident, state, taken)

    async def _take_children(self, incident: int, state: RankState, taken: Taken) -> None:
        reader = ChildReader(self._host, lambda pid, found: self._write_stacks(self._rundir.stacks(incident, state.rank, child=pid), found))
        self.missed += await reader.read(state.rank, state.pid, taken.children, taken.idle)

    async def _take_own(self, incident: int, state: RankState, peer: Peer | None, taken: Taken) -> None:
        stopped = bool(taken.activity and taken.activity.stopped)
        if peer is None or stopped or not await self._ask(incident, state, peer, taken):
            found = await self._from_outside(state, stopped=stopped)
            if found is not None:
                self._keep(incident, state, found, taken)

    async def wait_on(self, taken: Mapping[int, Taken]) -> None:
        """Wait once more, as long, for the answers that have not come: asking again would only make a slow rank begin a second dump."""
        await asyncio.gather(*(self._hear(r, taken[r.state.rank]) for r in tuple(self._asked.values()) if r.state.rank in taken))

    async def _ask(self, incident: int, state: RankState, peer: Peer, taken: Taken) -> bool:
        """Ask for stacks and a dump; False where not even the stacks come."""
        number = next(_numbers)
        loop = asyncio.get_running_loop()
        request = _Request(
            number=number,
            incident=incident,
            state=state,
            peer=peer,
            evidence=loop.create_future(),
            dumped=loop.create_future(),
            asked_s=time.monotonic(),
        )
        self._asked[number] = request
        path = self._rundir.flight(incident, state.rank)
        # Where it cannot be made, the rank says so: its dump fails.
        with contextlib.suppress(OSError):
            fsio.make_directory(path.parent)
        await peer.send("evidence", id=number, flight=str(path))
        await self._hear(request, taken)
        return taken.answered

    async def _hear(self, request: _Request, taken: Taken) -> None:
        """Wait for what has not come yet of the two answers."""
        rank = request.state.rank
        what = f"flight recorder of rank {rank}"
        try:
            if not taken.answered:
                self._absorb(request.incident, request.state, await asyncio.wait_for(asyncio.shield(request.evidence), ANSWER_TIMEOUT_S), taken)
            dumped = await self._dumped(request)
        except (asyncio.TimeoutError, asyncio.CancelledError) as e:
            self._forgive(request)
            if taken.answered:
                waited = time.monotonic() - request.asked_s
                self._late[request.number] = late = Missed(what=what, why=f"the rank gave its stacks but no dump within {waited:.1f} s")
                self.missed.append(late)
            if isinstance(e, asyncio.CancelledError):
                raise
            return
        del self._asked[request.number]
        self._forgive(request)
        if dumped.get("flight"):
            taken.flight = self._rundir.relative(self._rundir.flight(request.incident, rank))
        elif dumped.get("error"):
            self.missed.append(Missed(what=what, why=str(dumped["error"])))

    def _forgive(self, request: _Request) -> None:
        if late := self._late.pop(request.number, None):
            self.missed.remove(late)

    async def _dumped(self, request: _Request) -> Message:
        """Wait for the dump, for longer while the thread that makes it works. Raises asyncio.TimeoutError."""
        patience_s = DUMP_TIMEOUT_S
        before = self._helper(request)
        while True:
            try:
                return await asyncio.wait_for(asyncio.shield(request.dumped), patience_s)
            except asyncio.TimeoutError:
                now = self._helper(request)
                works = now is not None and before is not None and (now[1] > before[1] or now[0] in "RD")
                if not works or time.monotonic() - request.asked_s > DUMP_WORKING_S:
                    raise
            patience_s, before = WORK_INTERVAL_S, now

    def _helper(self, request: _Request) -> tuple[str, float] | None:
        """State and CPU time of the thread that answers, once it has said which that is."""
        if not request.evidence.done() or not isinstance(tid := request.evidence.result().get("tid"), int):
            return None
        return processes.thread(self._host, request.state.pid, tid)

    def _absorb(self, incident: int, state: RankState, reply: Message, taken: Taken) -> None:
        taken.answered = True
        try:
            threads = tuple(
                ThreadStack(
                    name=str(t["name"]),
                    main=bool(t["main"]),
                    tid=t.get("tid"),
                    keeps=bool(t.get("keeps")),
                    started=Frame(file=at[0], line=int(at[1]), name=at[2]) if (at := t.get("started")) else None,
                    frames=tuple(Frame(file=f, line=n, name=name, code=code, arguments=arguments) for f, n, name, code, arguments in t["frames"]),
                )
                for t in reply["threads"]
            )
            state.step = max(state.step, int(reply.get("step") or 0))
            state.groups |= {name: Counters(enqueued=e, completed=c) for name, (e, c) in (reply.get("groups") or {}).items()}
        except (KeyError, TypeError, ValueError) as e:
            self.missed.append(Missed(what=f"stacks of rank {state.rank}", why=f"malformed answer: {e}"))
            return
        self._keep(incident, state, Stacks(source="process", threads=threads), taken)

    def _keep(self, incident: int, state: RankState, found: Stacks, taken: Taken) -> None:
        taken.stacks = self._write_stacks(self._rundir.stacks(incident, state.rank), found) or taken.stacks
        taken.idle |= stacks_of.idle_threads(found)
        main = stacks_of.main_thread(found)
        taken.in_loader = any(inside(f, LOADER) for f in main)
        taken.place = user_frame(main)

    def _write_stacks(self, path: Path, found: Stacks) -> str | None:
        return self._rundir.relative(path) if self._write(path, with_guards(found)) else None

    async def _from_outside(self, state: RankState, *, stopped: bool) -> Stacks | None:
        what = f"stacks of rank {state.rank}"
        tool = find_py_spy()
        if tool is None:
            self.missed.append(Missed(what=what, why="the process did not answer and py-spy is not installed"))
            return None
        try:
            # py-spy pauses what it reads; a process that is stopped already must not be continued by it.
            return stacks_of.from_pyspy(await dump_by_py_spy(tool, state.pid, *(["--nonblocking"] if stopped else [])))
        except (OSError, RecordError) as e:
            self.missed.append(Missed(what=what, why=str(e)))
            return None


def with_guards(found: Stacks) -> Stacks:
    """The same stacks with the source and the `if` tests of every line of the user's own code, read now while the source is here."""
    return dataclasses.replace(
        found, threads=tuple(dataclasses.replace(t, frames=tuple(guarded(f) for f in t.frames)) if t.main else t for t in found.threads)
    )


def guarded_lines(dumps: Iterable[Path]) -> tuple[GuardedLine, ...]:
    """The `if` tests around the user's lines that issued the newest collectives of some dumps; a dump that cannot be read has none."""
    found: dict[tuple[str, int], tuple[str, ...]] = {}
    for dump in dumps:
        try:
            flight = flights.load(dump)
        except RecordError:
            continue
        for calls in flight.calls.values():
            for frame in (f for call in calls[-GUARDED_CALLS:] for f in call.frames if is_user_file(f.file)):
                if (frame.file, frame.line) not in found:
                    found[frame.file, frame.line] = stacks_of.guards_of(frame.file, frame.line)
    return tuple(GuardedLine(file=file, line=line, tests=tests) for (file, line), tests in sorted(found.items()) if tests)


def guarded(frame: Frame) -> Frame:
    """One frame with its source line and the `if` tests around it, if it is the user's."""
    if not is_user_file(frame.file):
        return frame
    code = frame.code or linecache.getline(frame.file, frame.line).strip()
    at = frame.file, frame.line
    return dataclasses.replace(frame, code=code, guards=stacks_of.guards_of(*at), endless=stacks_of.is_endless(*at))


# NCCL's own view of the job, asked while it hangs: it knows the ranks of other hosts, too.
RAS_VIEW = "NCCL's own view of the job (RAS)"
# No longer than the ranks themselves are waited for.
_PEERS_S = 2.0
_CONNECT_S = 2.0
_TOTAL_S = 8.0


def take_ras(rundir: RunDir, incident: int, states: Iterable[RankState], missed: Callable[[Missed], None]) -> str | None:
    """Ask a job on NCCL and keep the answer as it came, relative to the run directory. None where nobody answers, or nobody runs on NCCL."""
    if not any("nccl" in (state.backend or "") for state in states):
        return None
    if os.environ.get("NCCL_RAS_ENABLE") == "0":
        missed(Missed(what=RAS_VIEW, why="NCCL_RAS_ENABLE=0 turns it off"))
        return None
    try:
        answer = ras.fetch(peers_timeout_s=_PEERS_S, connect_timeout_s=_CONNECT_S, total_timeout_s=_TOTAL_S)
        path = rundir.ras(incident, answer.format)
        rundir.write_bytes(path, answer.data)
    except RecordError as e:
        missed(Missed(what=RAS_VIEW, why=f"{e}{f' ({e.cause})' if e.cause else ''}"))
        return None
    except OSError as e:
        missed(Missed(what=RAS_VIEW, why=f"cannot be kept: {e.strerror or e}"))
        return None
    if answer.cut:
        missed(Missed(what=f"the rest of {RAS_VIEW}", why=answer.cut))
    return rundir.relative(path)
