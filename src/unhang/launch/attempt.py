"""One start of the command, from the first process to the last.

Whatever goes wrong becomes an incident: evidence is taken while the ranks live. A rank that raised, and a launcher that is
about to stop its workers, wait (bounded, see runtime.attach.protocol) until the others' evidence is in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unhang.errors import CommandNotFound
from unhang.facts.host import Host
from unhang.launch import ending, environment, events
from unhang.launch.command import Command
from unhang.launch.incidents import Asked, Incidents, Open, Situation, logs_so_far
from unhang.launch.listener import Listener, Peer
from unhang.launch.output import Channel, Sink, Stream
from unhang.launch.rhythm import STARTUP_S, Rhythm
from unhang.launch.roster import Roster
from unhang.launch.sampling import MAX_WINDOW_S, MIN_WINDOW_S, Sampler
from unhang.launch.watch import RankState, Stall, Watch
from unhang.model import Verdict
from unhang.records.incident import Incident
from unhang.records.rundir import RunDir
from unhang.runtime.attach import protocol

TICK_S = 0.1
# After a rank has failed its launcher should end the others; where it does not, we do.
FAILED_GRACE_S = 30.0
# Processes that outlive the command (loggers that upload a last file) may take this long.
LINGER_S = 5.0
INTERRUPT_GRACE_S = 10.0
# A rank in uninterruptible I/O is being served by a slow disk or file server, at first.
IO_GRACE_S = 120.0
TERM_GRACE_S = 3.0
PACE_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user decides about watching and ending."""

    hang_after_s: float | None = None
    startup_s: float = STARTUP_S
    leave_hung: bool = False
    check_world: bool = True
    terminal_out: bool = False
    terminal_err: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """How an attempt ended. `exitcode` is the command's own (negative: signal); `pace` in steps per second."""

    exitcode: int
    ended_by_us: bool
    interrupted: bool
    steps: int
    pace: float | None
    incident: Incident | None
    verdict: Verdict | None


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
        tell: Callable[[events.Event], None],
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
        self._incidents = Incidents(rundir, host=host, first=first_incident, clock=self._now, tell=tell)
        self._watch = Watch(Rhythm(hang_after_s=options.hang_after_s, startup_s=options.startup_s))
        self._roster = Roster(self._watch, promised=command.world_size, clock=self._now, tell=tell, reactions=self)
        self._sampler = Sampler(host)
        self._channels: list[Channel] = []
        self._holding: list[Peer] = []
        self._reported: Stall | None = None
        self._interrupts = 0
        self._ended_by_us = False
        self._wrong_world = False
        self._first_step_told = False
        self._pace: deque[tuple[float, int]] = deque(maxlen=30)
        self._paced_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    # -- the life of the command

    async def run(self) -> Result:
        """Start the command and stay until its last process has ended. Raises CommandNotFound where it cannot be started."""
        async with Listener(self._roster, lambda why: self._incidents.trouble(f"refused a message: {why}")) as listener:
            try:
                self._begin(listener)
                await self._attend()
                return await self._close()
            finally:
                await self._clean_up()

    def _begin(self, listener: Listener) -> None:
        out, err = self._channel(None, "out"), self._channel(None, "err")
        fatal = self._rundir.fatal(self._number)
        for directory in (fatal, self._rundir.flight_of_torch(self._number)):
            with contextlib.suppress(OSError):
                directory.mkdir(parents=True, exist_ok=True)
        extra = environment.attached(listener.environment, self._environ, fatal=fatal, attempt=self._number, stdio=f"{out.identity},{err.identity}")
        try:
            self._child = subprocess.Popen(
                self._command.argv,
                env={**self._environ, **extra},
                # A terminal cannot be read from another session: a training that asks a question shall fail, not hang.
                stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
                stdout=out.write_fd,
                stderr=err.write_fd,
                start_new_session=True,
                preexec_fn=ending.die_with_parent,
            )
        except OSError as e:
            raise CommandNotFound(f"cannot start {self._command.argv[0]}: {e.strerror}") from e
        self._family = ending.Family(self._child, listener.environment[protocol.ENV_TOKEN])
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
                await self._look(now)
            self._show_pace(now)

    async def _after_grace(self, failed: Open, failed_s: float) -> None:
        """A rank has failed and the command still runs: trainings that can lose a rank go on, the others are ended."""
        if any(s.last_progress_s > failed_s + FAILED_GRACE_S / 2 for s in self._watch.alive()):
            self._draw(failed)
            self._tell(events.Note(text="the other ranks go on without it"))
            return
        self._tell(events.Note(text=f"the launcher has not ended the other ranks within {FAILED_GRACE_S:g} s; ending them"))
        await self._end()

    async def _close(self) -> Result:
        """After the command has ended: collect what is left and close an open incident."""
        exitcode = self._child.returncode
        await self._settle()
        current = self._incidents.current
        if not self._interrupts and not self._wrong_world:
            if current is None and exitcode != 0 and not self._ended_by_us:
                current = self._incidents.open("failure")
            if current is not None and current.kind == "failure":
                self._draw(current, exitcode=exitcode)
        incident, verdict = self._incidents.last or (None, None)
        return Result(
            exitcode=exitcode,
            ended_by_us=self._ended_by_us,
            interrupted=self._interrupts > 0,
            steps=max((s.step for s in self._roster.states()), default=0),
            pace=self._rate(),
            incident=incident,
            verdict=verdict,
        )

    async def _settle(self) -> None:
        """Wait, bounded, for the last messages, the last output and the last processes."""
        deadline = time.monotonic() + LINGER_S
        while time.monotonic() < deadline and (self._family.members() or self._roster.peers):
            await asyncio.sleep(TICK_S)
            self._family.reap()
        if self._family.members():
            self._family.ask(signal.SIGTERM)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and not all(c.closed.is_set() for c in self._channels):
            await asyncio.sleep(TICK_S / 5)

    async def _clean_up(self) -> None:
        self._roster.closing = True
        if hasattr(self, "_family") and (left := self._family.kill()):
            self._tell(events.Note(text=f"processes {left} are in uninterruptible I/O and could not be ended"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            channel.close()

    async def _end(self) -> None:
        """End all processes of the attempt: politely, then for good."""
        self._ended_by_us = self._roster.closing = True
        self._release_all()
        self._family.ask(signal.SIGTERM)
        deadline = time.monotonic() + TERM_GRACE_S
        while time.monotonic() < deadline and self._family.members():
            await asyncio.sleep(TICK_S)
            self._family.reap()
        self._family.kill()

    def interrupt(self, number: int) -> None:
        """The user's Ctrl-C or SIGTERM: passed on at first, enforced the second time or after INTERRUPT_GRACE_S."""
        self._interrupts += 1
        self._roster.closing = True
        self._release_all()
        if self._interrupts > 1:
            self._family.kill()
            return
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, number)
        self._tell(events.Note(text="interrupted; the training is asked to end (again to force)"))
        self._spawn(self._enforce())

    async def _enforce(self) -> None:
        await asyncio.sleep(INTERRUPT_GRACE_S)
        await self._end()

    # -- what the roster sets off

    def failed(self, waiting: Peer | None) -> None:
        """A rank has failed, or its launcher is about to stop the others."""
        if waiting is not None:
            self._holding.append(waiting)
        current = self._incidents.current
        if current is None:
            # Opened at once: a second failure that arrives before the task runs belongs to the same incident.
            self._spawn(self._take_failure(self._incidents.open("failure")))
        elif current.gathered.is_set():
            self._spawn(self._take_late(current, waiting))

    def restarted(self) -> None:
        """The launcher starts its ranks again by itself: what went wrong before is an incident of its own."""
        current = self._incidents.current
        if current is not None and current.kind == "failure" and current.gathered.is_set():
            self._draw(current)
            self._tell(events.Note(text="the launcher starts the ranks again by itself"))

    def wrong_world(self) -> None:
        """The processes do not form the training that was asked for."""
        if not self._wrong_world and self._options.check_world and not self._roster.closing:
            self._wrong_world = True
            self._spawn(self._take_world())

    def answered(self, message: dict[str, Any]) -> None:
        """A rank has given evidence."""
        if self._incidents.current is not None:
            self._incidents.current.taker.answer(message)

    def release(self, peer: Peer) -> None:
        """Let a process that holds still go on."""
        self._spawn(peer.send("go"))

    def hand_over_output(self, peer: Peer, rank: int) -> None:
        """Give a rank output streams of its own, so that every line is known to be its."""
        out, err = self._channel(rank, "out"), self._channel(rank, "err")
        try:
            peer.send_stdio(out.write_fd, err.write_fd)
        except OSError as e:
            self._incidents.trouble(f"cannot hand rank {rank} its output: {e}")
        out.release()
        err.release()

    async def _take_failure(self, opened: Open) -> None:
        self._sampler.look(self._watch.alive(), now=self._now())
        await self._incidents.gather(opened, self._everybody())
        self._release_all()

    async def _take_late(self, opened: Open, peer: Peer | None) -> None:
        """A rank that raised after the evidence was taken has a dump of its own to give."""
        await self._incidents.gather(opened, [a for a in self._everybody() if a.peer is peer])
        self._release_all()

    async def _take_world(self) -> None:
        opened = self._incidents.open("world-size")
        await self._incidents.gather(opened, self._everybody())
        self._draw(opened)
        await self._end()

    def _release_all(self) -> None:
        holding, self._holding = self._holding, []
        for peer in holding:
            self.release(peer)

    # -- looking for trouble

    async def _look(self, now: float) -> None:
        if self._watch.suspects(now):
            self._sampler.look(self._watch.alive(), now=now)
        stall = self._watch.look(now)
        if stall is None:
            if self._reported is not None:
                self._tell(events.CaughtUp(after_s=round(now - self._reported.since_s, 1)))
                self._reported = None
            return
        seen = {rank: self._sampler.activity(self._watch.ranks[rank], window_s=_window(stall)) for rank in stall.absent}
        if any(a is None or a.window_s < MIN_WINDOW_S for a in seen.values()):
            return
        in_io = now - stall.since_s < IO_GRACE_S
        busy = tuple(rank for rank, a in seen.items() if a is not None and (a.busy or (a.state == "D" and in_io)))
        if busy:
            if stall.waiting and self._reported is None:
                self._reported = stall
                await self._take_straggler(stall, busy)
            return
        if self._reported is not None and self._options.leave_hung:
            return
        self._reported = stall
        opened = self._incidents.open("hang", stall)
        await self._incidents.gather(opened, self._everybody(stall))
        self._draw(opened)
        if not self._options.leave_hung:
            await self._end()

    async def _take_straggler(self, stall: Stall, busy: tuple[int, ...]) -> None:
        opened = self._incidents.open("straggler", stall)
        await self._incidents.gather(opened, [a for a in self._everybody(stall) if a.state.rank in (*busy, *stall.waiting)])
        self._tell(events.Straggling(ranks=busy, waiting=stall.waiting, for_s=round(self._now() - stall.since_s, 1), incident=opened.number))
        self._draw(opened)

    def _everybody(self, stall: Stall | None = None) -> list[Asked]:
        window = _window(stall)
        return [Asked(state=s, peer=p, activity=self._sampler.activity(s, window_s=window)) for p, s in self._roster.peers.items()]

    def _draw(self, opened: Open, *, exitcode: int | None = None) -> None:
        states = self._roster.states(former=opened.kind == "world-size")
        codes = dict(self._roster.exitcodes)
        if self._child.returncode is not None:
            codes[self._child.pid] = self._child.returncode
        self._incidents.draw(
            opened,
            Situation(
                attempt=self._number,
                command=self._command.argv,
                promised=self._command.world_size,
                usual_gap_s=self._watch.rhythm.usual_gap_s,
                states=states,
                activities={s.rank: self._sampler.activity(s, window_s=_window(opened.stall)) for s in states},
                exitcodes=codes,
                exitcode=exitcode,
                logs=logs_so_far(self._rundir, self._number, [(c.rank, c.stream) for c in self._channels]),
            ),
        )

    # -- small things

    def _show_pace(self, now: float) -> None:
        alive = self._watch.alive()
        if not alive or now - self._paced_s < PACE_INTERVAL_S:
            return
        self._paced_s = now
        step = min(s.step for s in alive)
        if step > 0 and not self._first_step_told and len(alive) >= self._expected(alive):
            self._first_step_told = True
            devices = tuple(sorted({s.device or "unknown device" for s in alive}))
            self._tell(events.FirstStep(ranks=len(alive), devices=devices, backend=alive[0].backend, after_s=round(now, 1)))
        self._pace.append((now, step))
        if self._first_step_told:
            self._tell(events.Pace(step=step, steps_per_s=self._rate(), ranks=len(alive), elapsed_s=now))

    def _expected(self, alive: list[RankState]) -> int:
        return self._command.world_size or max((s.world_size or 1 for s in alive), default=1)

    def _rate(self) -> float | None:
        if len(self._pace) < 2 or self._pace[-1][0] <= self._pace[0][0]:
            return None
        (t0, s0), (t1, s1) = self._pace[0], self._pace[-1]
        return (s1 - s0) / (t1 - t0)

    def _channel(self, rank: int | None, stream: Stream) -> Channel:
        terminal = self._options.terminal_out if stream == "out" else self._options.terminal_err
        log = self._rundir.log(self._number, rank=rank, stream=stream)
        channel = Channel(rank=rank, stream=stream, log=log, sink=self._sink, trouble=self._incidents.trouble, terminal=terminal)
        self._channels.append(channel)
        return channel

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _spawn(self, coroutine: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _window(stall: Stall | None) -> float:
    """How far to look back. Half the threshold of a stall: what a rank did before it stopped must not count as a sign of life."""
    return MAX_WINDOW_S if stall is None else max(stall.threshold_s / 2, MIN_WINDOW_S + 1.0)
