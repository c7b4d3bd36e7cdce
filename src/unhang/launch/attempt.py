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
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unhang.errors import CommandNotFound
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.launch import ending, environment, events
from unhang.launch.command import Command
from unhang.launch.incidents import Asked, Incidents, Open, Situation, logs_so_far
from unhang.launch.listener import Listener, Peer
from unhang.launch.output import Channel, Sink, Stream
from unhang.launch.rhythm import STARTUP_S, Rhythm
from unhang.launch.roster import Roster
from unhang.launch.sampling import MAX_WINDOW_S, MIN_WINDOW_S, Sampler, window_s
from unhang.launch.watch import RankState, Stall, Watch
from unhang.model import Verdict
from unhang.records.incident import Activity, Incident
from unhang.records.rundir import RunDir
from unhang.runtime.attach import protocol

TICK_S = 0.1
# After a rank has failed its launcher should end the others; where it does not, we do.
FAILED_GRACE_S = 30.0
# Processes that outlive the command (loggers that upload a last file) may take this long.
LINGER_S = 5.0
# How long an interrupted training may take to save itself. Schedulers kill after 30 s or so on their own.
INTERRUPT_GRACE_S = {signal.SIGINT: 30.0}
OTHER_GRACE_S = 60.0
# A rank in uninterruptible I/O is being served by a slow disk or file server, at first.
IO_GRACE_S = 120.0
# All ranks are inside one and the same collective, and data moves (or GPUs spin): that may be a very large one.
JOINED_GRACE_S = 120.0
CENSUS_INTERVAL_S = 2.0
TERM_GRACE_S = 3.0
PACE_INTERVAL_S = 1.0
GATHERING_S = 10.0


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
        self._host = host
        self._began_s = self._now()
        self._channels: list[Channel] = []
        self._holding: list[Peer] = []
        self._reported: Stall | None = None
        self._compared: float | None = None
        self._concluded = False
        self._failed_meanwhile = False
        self._counted_s = 0.0
        self._unattached_told = False
        self._interrupts = 0
        self._ended_by_us = False
        self._wrong_world = False
        self._first_step_told = False
        self._pace: deque[tuple[float, int]] = deque(maxlen=10)
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
                try:
                    await self._look(now)
                except Exception as e:
                    # Watching is ours; the training must not pay for a mistake in it.
                    self._incidents.abandon()
                    self._incidents.trouble(f"this look at the training failed: {type(e).__name__}: {e}")
            self._census(now)
            self._show_pace(now)
            self._incidents.tell_troubles()

    def _census(self, now: float) -> None:
        """Know our processes while their descent still shows, and collect orphans that have ended."""
        if now - self._counted_s < CENSUS_INTERVAL_S:
            return
        self._counted_s = now
        self._family.members()
        self._family.reap()
        if not self._roster.ever and not self._unattached_told and now - self._began_s > self._options.startup_s:
            self._unattached_told = True
            self._tell(events.Note(text="no process of the training reports to us; it is watched from its output and exit code only"))

    async def _after_grace(self, failed: Open, failed_s: float) -> None:
        """A rank has failed and the command still runs: trainings that can lose a rank go on, the others are ended."""
        if any(s.last_progress_s > failed_s + FAILED_GRACE_S / 2 for s in self._watch.alive()):
            await self._draw(failed)
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
            if exitcode != 0 and not self._ended_by_us and (current is None or current.kind != "failure"):
                current = self._incidents.open("failure")
            if current is not None and current.kind == "failure" and (exitcode != 0 or self._anybody_failed()):
                await self._draw(current, exitcode=exitcode)
        self._incidents.tell_troubles()
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

    def _anybody_failed(self) -> bool:
        """A rank that vanished from a command that then succeeded had done its work (os._exit at the end of a script)."""
        return any(s.raised for s in self._roster.states()) or any(self._roster.exitcodes.values())

    async def _settle(self) -> None:
        """Wait, bounded, for the last messages, the last output and the last processes."""
        deadline = time.monotonic() + LINGER_S
        while time.monotonic() < deadline and (self._family.members() or self._roster.peers):
            await asyncio.sleep(TICK_S)
            self._family.reap()
        if self._family.members():
            self._family.ask(signal.SIGTERM)
            await self._until_gone(TERM_GRACE_S)
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
        await self._until_gone(TERM_GRACE_S)
        self._family.kill()

    async def _until_gone(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and self._family.members():
            await asyncio.sleep(TICK_S)
            self._family.reap()

    def interrupt(self, number: int) -> None:
        """The user's Ctrl-C or SIGTERM: passed on at first, enforced the second time or after INTERRUPT_GRACE_S."""
        self._interrupts += 1
        self._roster.closing = True
        self._release_all()
        if self._interrupts > 1:
            self._family.kill()
            return
        if self._child.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, number)
        self._tell(events.Note(text="interrupted; the training is asked to end (again to force)"))
        self._spawn(self._enforce(INTERRUPT_GRACE_S.get(signal.Signals(number), OTHER_GRACE_S)))

    def resize(self) -> None:
        """Our terminal has another size now."""
        for channel in self._channels:
            channel.resize()

    async def _enforce(self, grace_s: float) -> None:
        await asyncio.sleep(grace_s)
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
        elif current.kind != "failure":
            self._failed_meanwhile = True
        elif current.gathered.is_set() and waiting is not None:
            self._spawn(self._take_late(current, waiting))

    def vanished(self, state: RankState) -> None:
        """A rank has closed its connection without a word."""
        self._spawn(self._confirm_end(state))

    async def _confirm_end(self, state: RankState) -> None:
        """A process closes its files before it is seen to be dead; one that still lives after a while only no longer reports."""
        deadline = time.monotonic() + 1.0
        while processes.exists(self._host, state.pid) and time.monotonic() < deadline:
            await asyncio.sleep(TICK_S / 5)
        if not processes.exists(self._host, state.pid):
            self.failed(None)
            return
        self._roster.still_there(state)
        self._tell(events.Note(text=f"rank {state.rank} (pid {state.pid}) no longer reports; it is not watched any more"))

    def restarted(self) -> None:
        """The launcher starts its ranks again by itself: what went wrong before is an incident of its own."""
        current = self._incidents.current
        if current is not None and current.kind == "failure" and current.gathered.is_set():
            # What is known of the ranks now belongs to it; a moment later the new ones have taken their places.
            situation = self._situation(current)
            self._incidents.current = None
            self._spawn(self._draw_before_restart(current, situation))

    async def _draw_before_restart(self, failed: Open, situation: Situation) -> None:
        await self._incidents.draw(failed, situation)
        self._tell(events.Note(text="the launcher starts the ranks again by itself"))

    def wrong_world(self) -> None:
        """The processes do not form the training that was asked for."""
        if not self._wrong_world and self._options.check_world and not self._roster.closing:
            self._wrong_world = True
            self._spawn(self._take_world())

    def answered(self, peer: Peer, message: dict[str, Any]) -> None:
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

    async def _take_failure(self, opened: Open) -> None:
        self._sampler.look(self._watch.alive(), now=self._now())
        await self._incidents.gather(opened, self._everybody())
        self._release_all()

    async def _take_late(self, opened: Open, peer: Peer) -> None:
        """A rank that raised after the evidence was taken has a dump of its own to give."""
        await self._incidents.gather(opened, [a for a in self._everybody() if a.peer is peer])
        if peer in self._holding:
            self._holding.remove(peer)
            self.release(peer)

    async def _take_world(self) -> None:
        opened = self._incidents.open("world-size")
        await self._incidents.gather(opened, self._everybody())
        await self._draw(opened)
        await self._end()

    def _release_all(self) -> None:
        holding, self._holding = self._holding, []
        for peer in holding:
            self.release(peer)

    # -- looking for trouble

    async def _look(self, now: float) -> None:
        window = window_s(self._watch.rhythm.threshold_s)
        if self._watch.suspects(now, window_s=window):
            self._sampler.look([s for s in self._roster.states() if s.ended is None], now=now)
        stall = self._watch.look(now)
        if stall is None:
            self._moves_again(now)
            return
        if not stall.absent and (await self._compare(stall) or now - stall.since_s < stall.threshold_s):
            return
        seen = {rank: self._sampler.activity(self._watch.ranks[rank], window_s=window) for rank in stall.absent or stall.waiting}
        if any(a is None or a.window_s < MIN_WINDOW_S for a in seen.values()):
            return
        busy = tuple(rank for rank, a in seen.items() if a is not None and self._lives(self._watch.ranks[rank], a, now, stall))
        if not stall.absent:
            await self._all_wait(stall, busy, now)
        elif not busy:
            await self._hang(stall)
        elif stall.waiting and self._reported is None:
            self._reported = stall
            await self._take_straggler(stall, busy)

    def _lives(self, state: RankState, activity: Activity, now: float, stall: Stall) -> bool:
        """Whether a rank executes: by the kernel's numbers, by its steps, or because a slow disk serves it."""
        stepping = state.last_step_s is not None and now - state.last_step_s < stall.threshold_s / 2
        return activity.busy or stepping or (activity.state == "D" and now - stall.since_s < IO_GRACE_S)

    async def _compare(self, stall: Stall) -> bool:
        """All ranks of this host wait: whether in calls that do not fit each other, which is a hang that needs no rhythm and no patience."""
        if self._compared == stall.since_s:
            return False
        self._compared = stall.since_s
        opened = self._incidents.open("hang", stall, told=False)
        await self._incidents.gather(opened, self._everybody(stall))
        if await self._incidents.parted(opened, self._situation(opened)):
            await self._conclude(opened, announce=True)
            return True
        self._abandon()
        return False

    async def _all_wait(self, stall: Stall, busy: tuple[int, ...], now: float) -> None:
        """All ranks of this host are inside the same collective: a hang if nothing moves in it and no other host is missing."""
        for_s = now - stall.since_s
        if not self._watch.complete():
            if self._reported is None:
                self._reported = stall
                self._tell(events.Note(text=f"all ranks of this host have waited for {for_s:.0f} s for ranks of other hosts"))
        elif not busy or for_s >= max(JOINED_GRACE_S, 10 * stall.threshold_s):
            await self._hang(stall)

    async def _hang(self, stall: Stall) -> None:
        if self._concluded:
            return
        self._reported = stall
        opened = self._incidents.open("hang", stall)
        await self._incidents.gather(opened, self._everybody(stall))
        await self._conclude(opened)

    async def _conclude(self, opened: Open, *, announce: bool = False) -> None:
        """The evidence of a hang is in: judge it, and end the training unless it has gone on or failed meanwhile."""
        if announce:
            self._incidents.announce(opened)
            self._reported = opened.stall
        if self._failed_meanwhile:
            self._failed_meanwhile = False
            opened.kind = "failure"
            self._release_all()
            return
        if self._child.poll() is not None or self._watch.look(self._now()) is None:
            self._abandon()
            return
        await self._draw(opened)
        self._concluded = True
        if self._options.leave_hung:
            self._after_incident()
        elif self._child.poll() is None:
            await self._end()

    async def _take_straggler(self, stall: Stall, busy: tuple[int, ...]) -> None:
        opened = self._incidents.open("straggler", stall)
        await self._incidents.gather(opened, [a for a in self._everybody(stall) if a.state.rank in (*busy, *stall.waiting)])
        self._tell(events.Straggling(ranks=busy, waiting=stall.waiting, for_s=round(self._now() - stall.since_s, 1), incident=opened.number))
        await self._draw(opened)
        self._after_incident()

    def _abandon(self) -> None:
        self._incidents.abandon()
        self._after_incident()

    def _after_incident(self) -> None:
        """A rank may have failed while another incident was open."""
        if self._failed_meanwhile and not self._roster.closing:
            self._failed_meanwhile = False
            self._spawn(self._take_failure(self._incidents.open("failure")))

    def _moves_again(self, now: float) -> None:
        if self._reported is not None:
            self._tell(events.CaughtUp(after_s=round(now - self._reported.since_s, 1)))
        self._reported = self._compared = None
        self._concluded = False

    def _everybody(self, stall: Stall | None = None) -> list[Asked]:
        window = _window(stall)
        return [Asked(state=s, peer=p, activity=self._sampler.activity(s, window_s=window)) for p, s in self._roster.peers.items()]

    async def _draw(self, opened: Open, *, exitcode: int | None = None) -> None:
        await self._incidents.draw(opened, self._situation(opened, exitcode=exitcode))
        self._incidents.tell_troubles()

    def _situation(self, opened: Open, *, exitcode: int | None = None) -> Situation:
        states = self._roster.states(former=opened.kind == "world-size")
        codes = dict(self._roster.exitcodes)
        if self._child.returncode is not None:
            codes[self._child.pid] = self._child.returncode
        return Situation(
            attempt=self._number,
            command=self._command.argv,
            promised=self._command.world_size,
            usual_gap_s=self._watch.rhythm.usual_gap_s,
            states=states,
            activities={s.rank: self._sampler.activity(s, window_s=_window(opened.stall)) for s in states},
            exitcodes=codes,
            exitcode=exitcode,
            logs=logs_so_far(self._rundir, self._number, [(c.rank, c.stream) for c in self._channels]),
        )

    # -- small things

    def _show_pace(self, now: float) -> None:
        alive = self._watch.alive()
        if not alive or now - self._paced_s < PACE_INTERVAL_S:
            return
        self._paced_s = now
        step = min(s.step for s in alive)
        world = self._command.world_size or max((s.world_size or 1 for s in alive), default=1)
        # Ranks of other hosts do not report here: those of this one are there when no more have come for a while.
        here = len(alive) >= world or now - max(s.since_s for s in alive) > GATHERING_S
        if step > 0 and here and not self._first_step_told:
            self._first_step_told = True
            devices = tuple(sorted({s.device or "unknown device" for s in alive}))
            self._pace.clear()
            self._tell(events.FirstStep(ranks=len(alive), devices=devices, backend=alive[0].backend, after_s=round(now, 1)))
        self._pace.append((now, step))
        if self._first_step_told:
            self._tell(events.Pace(step=step, steps_per_s=self._rate(), ranks=len(alive), elapsed_s=now))

    def _rate(self) -> float | None:
        if len(self._pace) < 2 or self._pace[-1][0] <= self._pace[0][0]:
            return None
        (t0, s0), (t1, s1) = self._pace[0], self._pace[-1]
        return (s1 - s0) / (t1 - t0)

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
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._release_all()
            self._incidents.trouble(f"part of watching the training failed: {type(error).__name__}: {error}")


def _window(stall: Stall | None) -> float:
    return MAX_WINDOW_S if stall is None else window_s(stall.threshold_s)
