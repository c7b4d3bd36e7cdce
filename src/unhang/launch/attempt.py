"""One start of the command, from the first process to the last.

Whatever goes wrong becomes an incident: evidence is taken while the ranks live. A rank that raised, and a launcher that is
about to stop its workers, wait (bounded, see attach.protocol) until the others' evidence is in.

Long because everything that happens to the processes meets here; what can be decided apart stands in alarm, incidents, roster and ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import psutil

from unhang import fsio
from unhang.attach import protocol
from unhang.diagnosis.redact import redact_command
from unhang.errors import CommandNotFound
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.launch import environment, events, terminate
from unhang.launch.command import Command, launcher
from unhang.launch.hang_detector import Alarm
from unhang.launch.incidents import EvidenceRequest, Incidents, PendingIncident, Situation, logs_so_far
from unhang.launch.interruption import Interruption, asked_to_end, still_there
from unhang.launch.listener import Listener, Message, Peer, Tasks
from unhang.launch.output import Channel, Sink, Stream
from unhang.launch.outside_view import MAX_WINDOW_S, Sampler, window_s
from unhang.launch.patience import Patience
from unhang.launch.rank_table import RankTable
from unhang.launch.status_file import StatusWriter
from unhang.launch.step_rate import STARTUP_S, Rhythm
from unhang.launch.still_running import StillRunning
from unhang.launch.watch import Pace, RankState, Stall, Watch
from unhang.model import Verdict, frozen
from unhang.records.incident import Incident, IncidentKind
from unhang.records.rundir import RunDir

TICK_S = 0.1
# After a rank has failed its launcher should end the others; where it does not, we do. torchrun itself takes 30 s for ranks that ignore SIGTERM.
FAILED_GRACE_S = 40.0
# Processes that outlive the command (loggers that upload a last file) may take this long; after a success longer, and as long as they work.
LINGER_S = 5.0
LINGER_WELL_S = 30.0
LINGER_WORKING_S = 600.0
# Over so long our processes' work is measured; below this share of a CPU they only wait.
WORK_WINDOW_S = 10.0
WORK_SHARE = 0.1
WORK_BYTES = 100_000
# A process that has closed its connection has ended, or replaced its program, within this.
EXIT_S = 5.0
# It takes to write an incident down.
WORLD_S = 20.0
# How long an interrupted training may take to save itself. Schedulers kill after 30 s or so on their own.
INTERRUPT_GRACE_S = {signal.SIGINT: 30.0}
OTHER_GRACE_S = 60.0
# Launchers got the signal, too: torchrun kills ranks that have not ended by then.
LAUNCHERS_GRACE_S = 30.0
# So long after the signal it is said who is waited for.
WAITING_FOR_S = 5.0
# Who still lives so long before the end of either time is named.
OVERDUE_BEFORE_S = 1.0
CENSUS_INTERVAL_S = 2.0
TERM_GRACE_S = 3.0


@frozen
class Options:
    """What the user decides about watching and ending."""

    hang_after_s: float | None = None
    startup_s: float = STARTUP_S
    # Where the pauses that scripts survived are remembered; None to remember nothing.
    pauses: Path | None = None
    leave_hung: bool = False
    check_world: bool = True
    terminal_out: bool = False
    terminal_err: bool = False


@frozen
class Result:
    """How an attempt ended. `exitcode` is the command's own (negative: signal); `pace` in steps per second; `arguments` by rank."""

    exitcode: int
    ended_by_us: bool
    interrupted: bool
    steps: int
    pace: float | None
    incident: Incident | None
    verdict: Verdict | None
    arguments: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


class Attempt:
    """Start with `await run()`. `interrupt()` may be called from a signal handler of the event loop."""

    def __init__(
        self,
        *,
        number: int,
        command: Command,
        environ: dict[str, str],
        rundir: RunDir,
        options: Options,
        tell: events.Tell,
        sink: Sink,
        started: float,
        first_incident: int,
        host: Host,
    ) -> None:
        self._number = number
        self._command = command
        self._environ = environ
        self._rundir = rundir
        self._options = options
        self._tell = tell
        self._sink = sink
        self._started = started
        ends: frozenset[IncidentKind] = frozenset() if options.leave_hung else frozenset({"hang", "world-size"})
        self._sampler = Sampler(host)
        self._incidents = Incidents(rundir, host=host, first=first_incident, clock=self._now, tell=tell, sampler=self._sampler, ends=ends)
        self._watch = Watch(Rhythm(hang_after_s=options.hang_after_s, startup_s=options.startup_s))
        self._roster = RankTable(self._watch, promised=command.world_size, clock=self._now, tell=tell, reactions=self)
        self._alarm = Alarm(
            self,
            watch=self._watch,
            sampler=self._sampler,
            incidents=self._incidents,
            patience=Patience(
                hang_after_s=options.hang_after_s,
                startup_s=options.startup_s,
                script=f"{Path.cwd()}/{next((w for w in command.argv if w.endswith('.py')), command.name)}",
                path=options.pauses,
                trouble=self._incidents.troubles.append,
            ),
            leave_hung=options.leave_hung,
            clock=self._now,
            tell=tell,
        )
        self._interruption = Interruption(
            self, watch=self._watch, sampler=self._sampler, incidents=self._incidents, alarm=self._alarm, clock=self._now, tell=tell
        )
        self._host = host
        self._began_s = self._now()
        self._channels: list[Channel] = []
        self._holding: list[Peer] = []
        self._counted_s = 0.0
        self._work: deque[tuple[float, float, int]] = deque(maxlen=int(WORK_WINDOW_S / CENSUS_INTERVAL_S) + 1)
        self._unattached_told = False
        self._ended_by_us = False
        self._wrong_world = False
        self._overdue = StillRunning()
        self._interrupted_s: float | None = None
        self._pace = Pace(self._watch, promised=command.world_size, tell=tell)
        self._tasks = Tasks()
        self._onlookers = StatusWriter(
            rundir,
            attempt=number,
            watch=self._watch,
            roster=self._roster,
            sampler=self._sampler,
            clock=self._now,
            trouble=self._incidents.trouble,
            host=host,
        )

    # -- the life of the command

    async def run(self) -> Result:
        """Start the command and stay until its last process has ended. Raises CommandNotFound where it cannot be started."""
        shown = asyncio.ensure_future(self._show())
        try:
            async with Listener(self._roster, lambda why: self._incidents.trouble(f"refused a message: {why}")) as listener:
                try:
                    self._begin(listener)
                    await self._attend()
                    await self._close()
                finally:
                    await self._clean_up()
                await self._incidents.settle()
                return self._result()
        finally:
            shown.cancel()
            # By now all ranks are known to have ended.
            await asyncio.to_thread(self._onlookers.close)

    async def _show(self) -> None:
        """Beside everything else, which may take its time: whoever looks on wants to see just that."""
        while True:
            try:
                self._onlookers.look()
            except Exception as e:
                self._incidents.trouble(f"nothing more is told to onlookers: {type(e).__name__}: {e}")
                return
            await asyncio.sleep(TICK_S)

    def _begin(self, listener: Listener) -> None:
        out, err = self._channel(None, "out"), self._channel(None, "err")
        fatal = self._rundir.fatal(self._number)
        for directory in (fatal, self._rundir.flight_of_torch(self._number)):
            with contextlib.suppress(OSError):
                fsio.make_directory(directory)
        extra = environment.attached(
            listener.environment,
            self._environ,
            run=self._rundir.path,
            fatal=fatal,
            attempt=self._number,
            stdio=f"{out.identity},{err.identity}",
        )
        try:
            self._child = subprocess.Popen(
                self._command.argv,
                env={**self._environ, **extra},
                stdout=out.write_fd,
                stderr=err.write_fd,
                start_new_session=True,
                preexec_fn=terminate.die_with_parent,
            )
        except OSError as e:
            raise CommandNotFound(f"cannot start {self._command.argv[0]}: {e.strerror}") from e
        self._family = terminate.Family(self._child, listener.environment[protocol.ENV_TOKEN])
        out.release()
        err.release()
        self._tell(events.Started(attempt=self._number, pid=self._child.pid, command=self._command.argv))

    async def _attend(self) -> None:
        """Until the command has ended, by itself or by us."""
        failed_s: float | None = None
        while self._child.poll() is None:
            await asyncio.sleep(TICK_S)
            now = self._now()
            current = self._incidents.current
            if current is None or current.kind != "failure":
                failed_s = None
            else:
                failed_s = failed_s or now
                if now - failed_s > FAILED_GRACE_S and not self._roster.closing:
                    await self._after_grace(current, failed_s)
            if current is None and not self._roster.closing:
                try:
                    await self._alarm.look(now)
                except Exception as e:
                    # Watching is ours; the training must not pay for a mistake in it.
                    self._incidents.abandon()
                    self._incidents.trouble(f"this look at the training failed: {type(e).__name__}: {e}")
            self._census(now)
            self._pace.look(now)
            self._incidents.tell_troubles()

    def _census(self, now: float) -> None:
        """Know our processes while their descent still shows, and collect orphans that have ended."""
        if now - self._counted_s < CENSUS_INTERVAL_S:
            return
        self._counted_s = now
        self._work.append((now, *self._family.work()))
        self._family.reap()
        if not self._roster.closing:
            self._roster.look(now, lambda pid: processes.exists(self._host, pid))
        if not self._roster.ever and not self._unattached_told and now - self._began_s > self._options.startup_s:
            self._unattached_told = True
            self._tell(events.Note(text="no process of the training has reported to us so far; it is watched from its output and exit code only"))

    async def _after_grace(self, failed: PendingIncident, failed_s: float) -> None:
        """A rank has failed and the command still runs: trainings that can lose a rank go on, and so do ranks that work; the others are ended."""
        alive = self._watch.alive()
        if any(s.last_progress_s > failed_s + FAILED_GRACE_S / 2 for s in alive):
            await self.draw(failed)
            self._tell(events.Note(text="the other ranks go on without it"))
            return
        if not any(s.wait(self._now()) for s in alive):
            if not self.anybody_failed():
                # It ended without a word, its launcher minds as little as the others: it had done its work.
                self._incidents.abandon()
                return
            if self._is_working() and not self._options.leave_hung:
                return
        if self._options.leave_hung:
            await self.draw(failed)
            if alive:
                self._tell(events.Note(text="the launcher has not ended the other ranks; they are left alone (--on-failure report)"))
            return
        self._tell(events.Note(text=f"the launcher has not ended the other ranks within {FAILED_GRACE_S:g} s; ending them"))
        await self.end()

    def _is_working(self) -> bool:
        """Whether our processes have used the CPU lately, or moved data; what is not known yet counts as work."""
        first, last = self._work[0], self._work[-1]
        window = last[0] - first[0]
        if window < WORK_WINDOW_S - 2 * CENSUS_INTERVAL_S:
            return True
        return last[1] - first[1] > WORK_SHARE * window or last[2] - first[2] > WORK_BYTES * window

    async def _close(self) -> None:
        """After the command has ended: collect what is left and close an open incident."""
        exitcode = self._child.returncode
        await self._settle()
        current = self._incidents.current
        if not self._interruption.count and not self._wrong_world:
            if exitcode != 0 and not self._ended_by_us and (current is None or current.kind != "failure"):
                current = self._incidents.open("failure")
            if current is not None and current.kind == "failure" and (exitcode != 0 or self.anybody_failed()):
                await self.draw(current, exitcode=exitcode)
        if self._wrong_world and self._tasks:
            # The ranks that trained alone may have ended before they were told of.
            await asyncio.wait(self._tasks, timeout=WORLD_S)
        await self._interruption.over()
        self._incidents.abandon()
        self._incidents.tell_troubles()

    def _result(self) -> Result:
        incident, verdict = self._incidents.last or (None, None)
        return Result(
            exitcode=self._child.returncode,
            ended_by_us=self._ended_by_us,
            interrupted=self._interruption.count > 0,
            steps=max((s.step for s in self._roster.states()), default=0),
            pace=self._pace.steps_per_s,
            incident=incident,
            verdict=verdict,
            arguments={s.rank: s.argv for s in self._roster.states()},
        )

    def anybody_failed(self) -> bool:
        """A rank that vanished from a command that then succeeded had done its work (os._exit at the end of a script)."""
        return any(s.raised for s in self._roster.states()) or any(self._roster.exitcodes.values())

    async def _settle(self) -> None:
        """Wait, bounded, for the last messages, the last output and the last processes."""
        deadline = time.monotonic() + LINGER_S
        while time.monotonic() < deadline and (self._family.members() or self._roster.peers):
            await asyncio.sleep(TICK_S)
            self._family.reap()
        if self._child.returncode == 0 and not (self._ended_by_us or self._interruption.count):
            await self._linger()
        if left := self._family.members():
            if not self._ended_by_us:
                self._tell(events.Note(text=f"ending what the training has left: {_named(left)}"))
            self._family.ask(signal.SIGTERM)
            await self._until_gone()
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and not all(c.closed.is_set() for c in self._channels):
            await asyncio.sleep(TICK_S / 5)

    async def _linger(self) -> None:
        """After a success: what still runs may be an upload."""
        began = time.monotonic()
        if left := self._family.members():
            self._tell(events.Note(text=f"waiting for what the training has left running: {_named(left)} (Ctrl-C ends it)"))
        self._work.clear()
        while self._family.members() and not self._interruption.count:
            await asyncio.sleep(CENSUS_INTERVAL_S / 4)
            self._family.reap()
            now = self._now()
            if not self._work or now - self._work[-1][0] >= CENSUS_INTERVAL_S:
                self._work.append((now, *self._family.work()))
            waited = time.monotonic() - began
            if waited > LINGER_WORKING_S or (waited > LINGER_WELL_S and not self._is_working()):
                return

    async def _clean_up(self) -> None:
        self._roster.closing = True
        if hasattr(self, "_family") and (left := self._family.kill()):
            self._tell(events.Note(text=f"processes {left} are in uninterruptible I/O and could not be ended"))
        for forced in self._overdue.killed():
            self._tell(forced)
        await self._tasks.end()
        for channel in self._channels:
            channel.close()

    async def end(self) -> None:
        """End all processes of the attempt: politely, then for good."""
        self._ended_by_us = self._roster.closing = True
        self.release_all()
        self._family.ask(signal.SIGTERM)
        await self._until_gone()
        self._family.kill()

    async def _until_gone(self) -> None:
        deadline = time.monotonic() + TERM_GRACE_S
        while time.monotonic() < deadline and self._family.members():
            await asyncio.sleep(TICK_S)
            self._family.reap()

    def interrupt(self, number: int) -> None:
        """The user's Ctrl-C or SIGTERM."""
        self._roster.closing = True
        if self._interrupted_s is None:
            self._interrupted_s = self._now()
        self._interruption.arrive(number)

    def force(self) -> None:
        """The user will wait no longer."""
        self._note_overdue(by_us=True)
        self.release_all()
        self._family.kill()

    def hand_on(self, number: int) -> None:
        """Pass an interrupt on; it is enforced after INTERRUPT_GRACE_S."""
        self.release_all()
        grace_s = INTERRUPT_GRACE_S.get(signal.Signals(number), OTHER_GRACE_S)
        if self._child.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, number)
            self._tell(asked_to_end(number, grace_s, launchers_s=self._launchers_grace_s(grace_s)))
        self._spawn(self._enforce(number, grace_s))

    def pass_on(self, number: int) -> None:
        """A signal that is none of ours: the training's processes that handle it get it."""
        self._family.pass_on(number)

    def look(self) -> None:
        """Take evidence of all ranks now, judge it, and leave them alone."""
        if self._incidents.current is None and self.running() and not self._roster.closing:
            self._spawn(self._alarm.look_now())

    def resize(self) -> None:
        """Our terminal has another size now."""
        for channel in self._channels:
            channel.resize()

    async def _enforce(self, number: int, grace_s: float) -> None:
        await asyncio.sleep(WAITING_FOR_S)
        waited_s = WAITING_FOR_S
        left = self._family.members()
        if left and self.running():
            there = [s for s in self.states() if processes.exists(self._host, s.pid)]
            sooner_s = self._launchers_grace_s(grace_s)
            launchers_s = None if sooner_s is None else sooner_s - waited_s
            self._tell(still_there(number, there, _named(left), after_s=waited_s, left_s=grace_s - waited_s, launchers_s=launchers_s))
        for until_s in sorted({min(LAUNCHERS_GRACE_S, grace_s), grace_s}):
            await asyncio.sleep(until_s - OVERDUE_BEFORE_S - waited_s)
            waited_s = until_s - OVERDUE_BEFORE_S
            self._note_overdue(by_us=False)
        await asyncio.sleep(OVERDUE_BEFORE_S)
        self._note_overdue(by_us=True)
        await self.end()

    def _launchers_grace_s(self, grace_s: float) -> float | None:
        """After how long a launcher may end the ranks by force before we do; None where there is none, or it does not come before us."""
        launched = launcher(self._command) != "python" or any(s.told_world is not None and s.pid != self._child.pid for s in self.states())
        return LAUNCHERS_GRACE_S if launched and grace_s > LAUNCHERS_GRACE_S else None

    def _note_overdue(self, *, by_us: bool) -> None:
        now = self._now()
        since_s = now if self._interrupted_s is None else self._interrupted_s
        self._overdue.note(self.states(), now=now, since_s=since_s, exists=lambda pid: processes.exists(self._host, pid), by_us=by_us)

    # -- what the roster sets off

    def failed(self, waiting: Peer | None) -> None:
        """A rank has failed, or its launcher is about to stop the others."""
        if waiting is not None:
            self._holding.append(waiting)
        current = self._incidents.current
        if current is None:
            # Opened at once: a second failure that arrives before the task runs belongs to the same incident.
            self._spawn(self._take_failure(self._incidents.open("failure")))
        elif current.kind != "failure":
            self._alarm.failed_meanwhile = True
        elif current.gathered.is_set() and waiting is not None:
            self._spawn(self._take_late(current, waiting))

    def vanished(self, state: RankState) -> None:
        """A rank has closed its connection."""
        self._spawn(self._confirm_end(state))

    async def _confirm_end(self, state: RankState) -> None:
        """A process closes its files before it is seen to be dead; one that still lives after a while hangs in its end, or no longer reports."""
        deadline = time.monotonic() + EXIT_S
        while processes.exists(self._host, state.pid) and time.monotonic() < deadline:
            if any(s.pid == state.pid for s in self._roster.peers.values()):
                # It has replaced itself by another program.
                return
            await asyncio.sleep(TICK_S / 5)
        if processes.exists(self._host, state.pid):
            self._roster.still_there(state)
            if not state.announced:
                self._tell(events.Note(text=f"rank {state.rank} (pid {state.pid}) no longer reports; it is not watched any more"))
        elif not state.announced:
            self.failed(None)

    def restarted(self) -> None:
        """The launcher starts its ranks again by itself: what went wrong before is an incident of its own."""
        current = self._incidents.current
        if current is not None and current.kind == "failure" and current.gathered.is_set():
            # What is known of the ranks now belongs to it; a moment later the new ones have taken their places.
            situation = self.situation(current)
            self._incidents.current = None
            self._spawn(self._draw_before_restart(current, situation))

    async def _draw_before_restart(self, failed: PendingIncident, situation: Situation) -> None:
        await self._incidents.draw(failed, situation)
        self._tell(events.Note(text="the launcher starts the ranks again by itself"))

    def wrong_world(self) -> None:
        """The processes do not form the training that was asked for."""
        if not self._wrong_world and self._options.check_world and not self._roster.closing:
            self._wrong_world = True
            self._spawn(self._take_world())

    def answered(self, peer: Peer, message: Message) -> None:
        """A rank has given evidence."""
        if self._incidents.current is not None:
            self._incidents.current.taker.answer(peer, message)

    def release(self, peer: Peer) -> None:
        """Let a process that holds still go on."""
        self._spawn(peer.send("go"))

    def hand_over_output(self, peer: Peer, rank: int) -> None:
        """Give a rank output streams of its own, so that every line is known to be its."""
        handed: list[Channel] = []
        try:
            handed.append(self._channel(rank, "out"))
            handed.append(self._channel(rank, "err"))
            peer.send_stdio(handed[0].write_fd, handed[1].write_fd)
        except OSError as e:
            self._incidents.trouble(f"cannot hand rank {rank} its output: {e}")
        for channel in handed:
            channel.release()

    async def _take_failure(self, opened: PendingIncident) -> None:
        self._sampler.look(self._watch.alive(), now=self._now())
        await self._incidents.gather(opened, self.everybody())
        self.release_all()

    async def _take_late(self, opened: PendingIncident, peer: Peer) -> None:
        """A rank that raised after the evidence was taken has a dump of its own to give."""
        await self._incidents.gather(opened, [a for a in self.everybody() if a.peer is peer])
        if peer in self._holding:
            self._holding.remove(peer)
            self.release(peer)

    async def _take_world(self) -> None:
        opened = self._incidents.open("world-size")
        await self._incidents.gather(opened, self.everybody())
        await self.draw(opened)
        if not self._options.leave_hung:
            await self.end()

    def release_all(self) -> None:
        holding, self._holding = self._holding, []
        for peer in holding:
            self.release(peer)

    # -- what the alarm looks at and sets off

    def states(self) -> list[RankState]:
        """The ranks that live."""
        return [s for s in self._roster.states() if s.ended is None]

    def running(self) -> bool:
        """Whether the command still runs."""
        return self._child.poll() is None

    def everybody(self, stall: Stall | None = None) -> list[EvidenceRequest]:
        """All that live: also those that no longer report, which are read from outside."""
        window, since_s = _window(stall)
        peers: dict[int, Peer | None] = {s.pid: p for p, s in self._roster.peers.items()}
        living = {s.pid: s for s in (*self._roster.peers.values(), *self.states())}
        return [
            EvidenceRequest(state=s, peer=peers.get(pid), activity=self._sampler.activity(s, window_s=window, since_s=since_s))
            for pid, s in living.items()
        ]

    async def draw(self, opened: PendingIncident, *, exitcode: int | None = None) -> None:
        await self._incidents.draw(opened, self.situation(opened, exitcode=exitcode))
        self._incidents.tell_troubles()

    def situation(self, opened: PendingIncident, *, exitcode: int | None = None) -> Situation:
        states = self._roster.states(former=opened.kind == "world-size")
        codes = dict(self._roster.exitcodes)
        if self._child.returncode is not None:
            codes[self._child.pid] = self._child.returncode
        window, since_s = _window(opened.stall)
        return Situation(
            attempt=self._number,
            command=self._command.argv,
            promised=self._command.world_size,
            usual_gap_s=self._watch.rhythm.usual_gap_s,
            states=states,
            activities={s.rank: self._sampler.activity(s, window_s=window, since_s=since_s) for s in states},
            exitcodes=codes,
            exitcode=exitcode,
            elsewhere=self._roster.elsewhere(),
            logs=logs_so_far(self._rundir, self._number, [(c.rank, c.stream) for c in self._channels]),
        )

    # -- small things

    def _channel(self, rank: int | None, stream: Stream) -> Channel:
        terminal = self._options.terminal_out if stream == "out" else self._options.terminal_err
        log = self._rundir.log(self._number, rank=rank, stream=stream)
        channel = Channel(rank=rank, stream=stream, log=log, sink=self._pass_on, trouble=self._incidents.trouble, terminal=terminal)
        self._channels.append(channel)
        return channel

    def _pass_on(self, rank: int | None, stream: Stream, data: bytes) -> None:
        # What a launcher says of our ending its ranks would bury the verdict; its log keeps it.
        if not (self._ended_by_us and rank is None):
            self._sink(rank, stream, data)

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _spawn(self, coroutine: Any) -> None:
        self._tasks.start(coroutine, self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.release_all()
            self._incidents.trouble(f"part of watching the training failed: {type(error).__name__}: {error}")


def _named(members: list[psutil.Process]) -> str:
    named = []
    for process in members[:3]:
        with contextlib.suppress(psutil.Error):
            named.append(f"{' '.join(redact_command(process.cmdline()))[:60] or process.name()} (pid {process.pid})")
    return ", ".join(named) + (f" and {len(members) - 3} more" if len(members) > 3 else "")


def _window(stall: Stall | None) -> tuple[float, float]:
    """How far to look back, and to what time at most: that of an interrupted training may be shorter than its window."""
    return (MAX_WINDOW_S, 0.0) if stall is None else (window_s(stall.threshold_s), stall.since_s)
