"""The whole of a run: attempt after attempt, a verdict after each failure, and the decision whether to go on.

A training is started again after a failure, up to `max_restarts` times, but not when it fails again and again for the
same cause, on the same ranks, after the same number of steps: starting it again would only fail again. Where a refused
option or environment is established as what ended the command before the first step, one failure is enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import math
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol

from unhang import encoding, fsio
from unhang.diagnosis.redact import redact_command
from unhang.diagnosis.rerun_command import RunCommand
from unhang.errors import EXIT_BAD_HOST, EXIT_FOUND, EXIT_USELESS, interrupted_by
from unhang.facts import processes, snapshot
from unhang.facts.host import Host
from unhang.launch import command as commands
from unhang.launch import environment, events, terminate
from unhang.launch.attempt import Attempt, Options, Result
from unhang.launch.command import Command
from unhang.launch.output import Sink
from unhang.model import Verdict, frozen
from unhang.records.incident import FROM_OUTSIDE
from unhang.records.rundir import RUN_SCHEMA, RunDir, not_written

OnFailure = Literal["restart", "abort", "report"]
PORT_WAIT_S = 60.0
# What trials whose processes were ended get to clean up.
LEAVE_S = 2.0
# Causes that lie in the code or in the command: the same start brings the same end.
DETERMINISTIC = frozenset(
    {
        *("rank-exception", "collective-mismatch", "rank0-guarded-collective", "premature-exit", "port-in-use", "rendezvous-misconfig"),
        *("config-error", "backend-unavailable", "wrong-backend-for-tensor", "arch-not-in-build", "launcher-wrong-env"),
        *("unused-parameters", "out-of-sync"),
    }
)
# Those of them that neither time nor chance has a part in, as it may have in an exception, a port or a race, and that no other setting answers, as
# Gloo does a missing NCCL.
FIXED = frozenset({"config-error", "arch-not-in-build", "launcher-wrong-env"})
# Causes that neither a restart nor another host fixes: in the code, the image, or what the pod was given.
SAME_IN_ANY_POD = DETERMINISTIC - {"port-in-use", "backend-unavailable"} | {"crash-at-exit", "gpu-oom", "shm-exhausted", "version-mismatch"}
# Causes in the host itself; another host may work.
BAD_HOST = frozenset({"gpu-hardware", "nic-hardware", "nvlink-nvswitch-fabric", "driver-reboot-needed", "host-lost"})
# What argparse and click refuse, and a script that Python cannot open, end with 2; exceptions with 1, and what is not found with 127.
_REFUSED_WITH_2 = re.compile(r": error: |can't open file '|No such option: ")
# What does not exist (2), is nothing that can be run (8) or may not be (13) stays so; a file server that does not answer does not.
_PASSING_ERRNO = re.compile(r"\[Errno (?!(?:2|8|13)\])\d+\]")


@frozen
class Policy:
    """What to do about failures. `pod`: the exit code tells Kubernetes what it may do."""

    on_failure: OnFailure = "restart"
    max_restarts: int = 3
    pod: bool = False


@frozen
class Outcome:
    """How the run ended. `exitcode` is what `unhang run` returns; `verdict` is that of the last incident, None without one.

    `steps` are those of the last attempt, and `steps_per_s` its rate, None where it was too short for one.
    """

    exitcode: int
    attempts: int
    incidents: int
    elapsed_s: float
    interrupted: bool
    run_dir: str
    verdict: Verdict | None
    steps: int = 0
    steps_per_s: float | None = None


def run_path(parent: Path, name: str, *, now: datetime.datetime | None = None) -> Path:
    """A new path `parent`/NAME-TIME, free at the time of asking."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    stamp = (now or datetime.datetime.now()).strftime("%Y%m%d-%H%M%S")
    path = parent / f"{safe}-{stamp}"
    number = 1
    while path.exists():
        number += 1
        path = parent / f"{safe}-{stamp}-{number}"
    return path


@frozen
class Changed:
    """What later attempts are started with instead."""

    environ: Mapping[str, str]
    command: Command


class Remedying(Protocol):
    """What knows of changes. `after` is called in a thread of its own while nothing of the training runs, and asks several times a second whether it
    is `cancelled`; None where the next attempt is to be as the last one was.
    """

    def at_start(self, tell: events.Tell) -> Changed | None: ...
    def after(self, result: Result, tell: events.Tell, cancelled: Callable[[], bool]) -> Changed | None: ...


class EventLog:
    """events.jsonl: writes each event down, hands it on, and keeps count. `began` is the start of the run as time.monotonic() has it."""

    def __init__(self, rundir: RunDir, told: events.Tell) -> None:
        self._rundir, self._told = rundir, told
        self._is_broken = False
        self.began = time.monotonic()
        self.incidents = 0
        self.verdict: Verdict | None = None

    def tell(self, event: events.Event) -> None:
        if isinstance(event, events.Opened):
            self.incidents += 1
        elif isinstance(event, events.Abandoned):
            self.incidents -= 1
        elif isinstance(event, (events.Drawn, events.Revised)):
            self.verdict = event.verdict
        if not isinstance(event, (events.Pace, events.Revised)):
            line: dict[str, Any] = {"s": round(time.monotonic() - self.began, 3), "event": type(event).__name__}
            line |= encoding.plain(event)
            if isinstance(event, events.Started):
                line["command"] = redact_command(event.command)
            if isinstance(event, events.Drawn):
                primary = event.verdict.primary
                line["verdict"] = {"cause": primary.cause, "says": primary.says} if primary else None
            try:
                with open(self._rundir.events, "ab", opener=fsio.open_private) as f:
                    f.write(encoding.encode(line) + b"\n")
            except OSError as e:
                if not self._is_broken:
                    self._is_broken = True
                    self._told(events.Note(text=not_written(self._rundir.events, e)))
        self._told(event)

    def finish(self, result: Result, *, attempts: int, interrupts: Sequence[int], code: int | None = None) -> Outcome:
        """The last event, and what the run came to; `interrupts` are the signals that asked for its end, `code` goes over the training's own."""
        came_to: dict[str, Any] = {
            "exitcode": exitcode_of(result, interrupts, code),
            "attempts": attempts,
            "incidents": self.incidents,
            "elapsed_s": round(time.monotonic() - self.began, 3),
            "run_dir": str(self._rundir.path),
            "interrupted": result.interrupted or bool(interrupts),
        }
        self.tell(events.Finished(**came_to))
        return Outcome(**came_to, verdict=self.verdict, steps=result.steps, steps_per_s=result.pace)


class Supervisor:
    """Start with `run`. Call it in the main thread: it handles SIGINT and SIGTERM while it runs."""

    def __init__(
        self,
        command: Command,
        *,
        rundir: RunDir,
        options: Options,
        policy: Policy,
        tell: events.Tell,
        sink: Sink,
        environ: Mapping[str, str] = os.environ,
        settings: Mapping[str, str] | None = None,
        described: Mapping[str, Any] | None = None,
        host: Host | None = None,
        remedying: Remedying | None = None,
        typed: RunCommand | None = None,
    ) -> None:
        """`settings` are variables that go over those of `environ`; `described` tells run.json where they come from, `typed` what the user typed."""
        self._command = command
        self._rundir = rundir
        self._options = options
        self._policy = policy
        self._log = EventLog(rundir, tell)
        self._tell = self._log.tell
        self._sink = sink
        self._settings = dict(settings or {})
        self._described = described
        self._typed = typed
        self._environ = {**environ, **self._settings}
        self._host = host or Host()
        self._remedying = remedying
        # What fails with settings of ours may go well without them.
        self._is_changed = False
        self._attempt: Attempt | None = None
        # Of each rank in the last attempt, without credentials, if the settings ask for step times.
        self.arguments: Mapping[int, tuple[str, ...]] = {}
        self._attempts = 0
        self._interrupts: list[int] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> Outcome:
        """Run the command to its end, however many attempts that takes. Raises CommandNotFound, RunDirError."""
        self._log.began = time.monotonic()
        terminate.adopt_orphans()
        version = environment.torch_version(self._command.python)
        if (remedying := self._remedying) is not None:
            before = self._environ
            self._change(self._helped(lambda: remedying.at_start(self._tell)))
            self._settings |= {name: value for name, value in self._environ.items() if before.get(name) != value}
        evidence = environment.evidence(version, self._environ, dumps=self._rundir.flight_of_torch(0))
        self._rundir.write(
            self._rundir.run,
            {
                "schema": RUN_SCHEMA,
                "command": redact_command(self._command.argv),
                **({"typed": redacted(self._typed)} if self._typed is not None else {}),
                "cwd": str(Path.cwd()),
                "python": self._command.python,
                "torch": None if version is None else f"{version[0]}.{version[1]}",
                "world_size": self._command.world_size,
                "environment": {**evidence, **self._settings},
                **({"settings": self._described} if self._described is not None else {}),
                "options": asdict(self._options) | {"pauses": str(self._options.pauses or "")} | asdict(self._policy),
                "supervisor": processes.identity(self._host, os.getpid()),
                "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            },
        )
        self._rundir.write(self._rundir.host, snapshot.take(self._host, only=("container", "memory", "shm")))
        return asyncio.run(self._supervise(version))

    def stop(self) -> None:
        """End the training as SIGTERM would, from any thread; nothing if it has ended."""
        if self._loop is None:
            self._interrupts.append(signal.SIGTERM)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._interrupt, signal.SIGTERM)

    async def _supervise(self, version: environment.Version | None) -> Outcome:
        loop = self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup and shells that run a job in the background have signals ignored on purpose.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._interrupt, number)
        loop.add_signal_handler(signal.SIGWINCH, self._to_attempt, Attempt.resize)
        # Nobody sends it by accident, and whoever does not handle it ignores it: who sees other hosts as well asks for evidence so.
        loop.add_signal_handler(signal.SIGURG, self._to_attempt, Attempt.look)
        # Batch systems announce the end of the time so; handlers that save a checkpoint are the training's.
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, self._to_attempt, Attempt.pass_on, number)
        failures: list[Result] = []
        # Those since the settings were changed: earlier ones say nothing about whether it gets on.
        alike = 0
        while True:
            result = await self._one(len(failures), version)
            self.arguments = result.arguments
            code = None
            if self._was_interrupted() or (result.exitcode == 0 and not result.ended_by_us):
                break
            failures.append(result)
            command = None if self._is_changed else self._command
            code = code_for_pod(self._policy, failures, failures[alike:], command)
            why = why_not_again(self._policy, failures, failures[alike:], command)
            if code == EXIT_BAD_HOST:
                why = "this host is at fault (--pod): a pod on another one may train"
            if why is None:
                if await self._remedied(result):
                    alike = len(failures)
                if self._was_interrupted():
                    break
                await self._free_port()
                if self._was_interrupted():
                    break
                self._tell(events.Restarting(attempt=len(failures), of=self._policy.max_restarts))
                continue
            if self._policy.on_failure == "restart":
                self._tell(events.GaveUp(why=why))
            break
        return self._log.finish(result, attempts=self._attempts, interrupts=self._interrupts, code=code)

    async def _one(self, number: int, version: environment.Version | None) -> Result:
        environ = {**self._environ, **environment.evidence(version, self._environ, dumps=self._rundir.flight_of_torch(number))}
        self._attempt = Attempt(
            number=number,
            command=self._command,
            environ=environ,
            rundir=self._rundir,
            options=self._options,
            tell=self._tell,
            sink=self._sink,
            started=self._log.began,
            first_incident=self._log.incidents + 1,
            host=self._host,
        )
        self._attempts += 1
        try:
            return await self._attempt.run()
        finally:
            self._attempt = None

    async def _remedied(self, result: Result) -> bool:
        """Whether the next attempt has other settings."""
        if self._remedying is None:
            return False
        remedying = self._remedying
        found: list[Changed | None] = []
        # A thread that nobody has to wait for: one that asks a name server may take its time.
        helping = threading.Thread(
            target=lambda: found.append(self._helped(lambda: remedying.after(result, self._tell, self._was_interrupted))), daemon=True
        )
        helping.start()
        until = math.inf
        while helping.is_alive() and time.monotonic() < until:
            if len(self._interrupts) > 1 and until == math.inf:
                terminate.kill_descendants()
                until = time.monotonic() + LEAVE_S
            await asyncio.sleep(0.05)
        changed = found[0] if found and not self._was_interrupted() else None
        self._change(changed)
        return changed is not None

    def _helped(self, ask: Callable[[], Changed | None]) -> Changed | None:
        """What is there to help may fail (a full /tmp, no more processes), and may not end a training."""
        try:
            return ask()
        except Exception as e:
            self._tell(events.Note(text=f"no other settings: {type(e).__name__}: {e}; the training goes on as it was"))
            return None

    def _change(self, changed: Changed | None) -> None:
        if changed is not None:
            self._environ = dict(changed.environ)
            self._command = changed.command
            self._is_changed = True

    async def _free_port(self) -> None:
        """Wait, bounded, until the port that the command names can be bound again."""
        port = self._command.port
        if port is None:
            return
        deadline = time.monotonic() + PORT_WAIT_S
        told = False
        while time.monotonic() < deadline and not self._was_interrupted():
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
                return
            if not told:
                self._tell(events.Note(text=f"port {port} is still taken; waiting for it"))
                told = True
            await asyncio.sleep(0.2)

    def _was_interrupted(self) -> bool:
        return bool(self._interrupts)

    def _interrupt(self, number: int) -> None:
        self._interrupts.append(number)
        if self._attempt is not None:
            self._attempt.interrupt(number)

    def _to_attempt(self, act: Callable[..., None], *number: int) -> None:
        """Let the attempt act, if there is one."""
        if self._attempt is not None:
            act(self._attempt, *number)


def redacted(typed: RunCommand) -> RunCommand:
    words = redact_command((*typed.options, *typed.command))
    return RunCommand(options=words[: len(typed.options)], command=words[len(typed.options) :])


def exitcode_of(result: Result, interrupts: Sequence[int], code: int | None = None) -> int:
    """What `unhang run` returns: `code`, if there is one, in the place of the training's own."""
    if result.interrupted or interrupts:
        return interrupted_by(next(iter(interrupts), signal.SIGINT))
    if code is not None:
        return code
    if result.ended_by_us:
        return EXIT_FOUND
    # Shells report a process that died of signal N as 128 + N.
    return result.exitcode if result.exitcode >= 0 else 128 - result.exitcode


def why_not_again(policy: Policy, failures: Sequence[Result], alike: Sequence[Result], command: Command | None = None) -> str | None:
    """The reason for not starting again; None to start. `alike` are the newest failures, those with the same settings.

    `command`: what would be started again as it was.
    """
    why = why_useless(failures, alike, command)
    if why is None and policy.on_failure != "restart":
        return f"--on-failure {policy.on_failure}"
    if why is None and len(failures) > policy.max_restarts:
        return f"--max-restarts {policy.max_restarts} is used up"
    return why


def why_useless(failures: Sequence[Result], alike: Sequence[Result], command: Command | None = None) -> str | None:
    """Why no other start can help, whatever the policy; None where one may. Arguments as of `why_not_again`."""
    result = failures[-1]
    if result.incident is not None and result.incident.crashed_at_exit:
        return "the training script had run to its end on all ranks: nothing is left to train"
    if result.incident is not None and result.incident.hung_at_exit:
        return "all ranks had left the process group or ended their script: nothing is left to train"
    if result.incident is not None and result.incident.kind == "world-size":
        return "the processes do not form the training that was asked for; starting again would not change that"
    if command is not None and fails_always(result, command):
        return "what was refused before the first step ended it: the same start would most likely be refused again"
    if no_progress(alike):
        when = f"after {result.steps} steps" if result.steps else "before the first optimizer step"
        return f"the same failure again, each time {when}: starting again would not help"
    return None


def code_for_pod(policy: Policy, failures: Sequence[Result], alike: Sequence[Result], command: Command | None = None) -> int | None:
    """The exit code that tells Kubernetes what the last failure means; None where the training's own is enough. Arguments as of `why_not_again`."""
    if not policy.pod:
        return None
    primary = failures[-1].verdict.primary if failures[-1].verdict else None
    cause = primary.cause if primary is not None and primary.standing == "established" else None
    if cause in BAD_HOST:
        return EXIT_BAD_HOST
    if cause in SAME_IN_ANY_POD and why_useless(failures, alike, command) is not None:
        return EXIT_USELESS
    # A training may end with these by chance.
    return EXIT_FOUND if failures[-1].exitcode in (EXIT_USELESS, EXIT_BAD_HOST) else None


def fails_always(result: Result, command: Command) -> bool:
    """Whether one failure shows that the next start ends alike: what was refused is the command, and not a helper that it went on without."""
    primary = result.verdict.primary if result.verdict else None
    if primary is None or primary.cause not in FIXED or primary.standing != "established" or result.steps or not commands.is_training(command):
        return False
    texts = [e.text for e in primary.evidence]
    if any(map(_PASSING_ERRNO.search, texts)):
        return False
    return _own_codes(result, command) <= ({2} if any(map(_REFUSED_WITH_2.search, texts)) else {1, 127})


def _own_codes(result: Result, command: Command) -> set[int]:
    """How the ranks ended by themselves, as far as that is known: a launcher has a code of its own for that. Otherwise how the command did."""
    ranks = result.incident.ranks if result.incident is not None and commands.launcher(command) != "python" else ()
    return {r.ended.exitcode for r in ranks if r.ended is not None and r.ended.exitcode and not r.ended.by_launcher} or {result.exitcode}


def no_progress(failures: Sequence[Result]) -> bool:
    """Whether the newest failures are one and the same: same cause, same ranks or line, same exit code, same number of steps in each attempt.

    A deterministic cause needs two of them, and so does a rank that ends itself in the same way at the same line. Others need three: a job that is
    killed for its memory every 500 steps may well get on.
    """
    result = failures[-1]
    cause = result.verdict.primary.cause if result.verdict and result.verdict.primary else None
    again = len(failures) > 1 and _own_end(result) is not None and _own_end(failures[-2]) == _own_end(result)
    needed = 2 if cause in DETERMINISTIC or again else 3
    return len(failures) >= needed and all(_alike(earlier, result) for earlier in failures[-needed:-1])


def _own_end(result: Result) -> tuple[object, ...] | None:
    """How and where the ranks that are blamed ended by themselves; None where something outside ended one, or may not be there the next time."""
    primary, incident = result.verdict.primary if result.verdict else None, result.incident
    blamed = [r for r in incident.ranks if r.rank in primary.ranks] if incident is not None and primary is not None and primary.where else []
    codes = [0 if r.ended is None or r.ended.by_launcher or (r.raised and not result.steps) else r.ended.exitcode or 0 for r in blamed]
    own = all(code and -code not in (*FROM_OUTSIDE, signal.SIGKILL) for code in codes)
    return (primary.where, *codes) if primary is not None and blamed and own else None


def _alike(before: Result, now: Result) -> bool:
    a = before.verdict.primary if before.verdict else None
    b = now.verdict.primary if now.verdict else None
    if (a is None) != (b is None) or before.exitcode != now.exitcode:
        return False
    # Which of the ranks raises before the launcher ends the others is chance.
    if a and b and (a.cause != b.cause or (a.ranks != b.ranks and (a.cause not in DETERMINISTIC or a.where is None or a.where != b.where))):
        return False
    # What may pass between two heartbeats.
    slack = 1 + 0.5 * max(before.pace or 0.0, now.pace or 0.0)
    return abs(before.steps - now.steps) <= slack


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """The supervisor's event loop leaves signals at their defaults; what they did before comes back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
