"""A training over several hosts: attempt after attempt, each on hosts that were just looked at, without those that verdicts have named.

Each attempt is a static world: an address of the first host that the others reached, and a port that was free on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal

from unhang.diagnosis.redact import redact_command, redact_data
from unhang.errors import EXIT_BAD_HOST, EXIT_USER, UnhangError
from unhang.hosts import preflight
from unhang.hosts.attempt import Attempt, Job
from unhang.hosts.hostlist import Host
from unhang.hosts.job import LEASE_S
from unhang.hosts.join import Rendezvous
from unhang.hosts.reach import START_S, STEP_S, Agents, pipes, reached
from unhang.launch import events, supervise
from unhang.launch.attempt import Result
from unhang.launch.output import Sink
from unhang.launch.patience import Patience
from unhang.model import frozen
from unhang.records.rundir import RunDir

SCHEMA = "unhang/hosts-run/1"
Preflight = Literal["off", "quick", "full"]
# After its lease, an agent has noticed that it is over, and its ranks are gone.
_FENCE_S = LEASE_S + 30.0
# What a verdict counts against the hosts that it names, and how much is too much.
_WEIGHTS, _TOO_MUCH = {"established": 2, "likely": 1}, 2
# Where more hosts are named it is rather the network.
_MOST_LEFT_OUT = 1 / 4


@frozen
class Asked:
    """What `unhang run --hosts` was told. An attempt has `least` hosts to `most`; `preflight` "off" looks at nothing."""

    looked_at: preflight.Asked
    job: Job
    policy: supervise.Policy
    least: int
    most: int
    preflight: Preflight = "quick"


@frozen
class Resumable:
    """What runs, and on which hosts: for whoever follows it after the one who started it. `asked` has no environment.

    `can_restart`: nothing had to be taken out of the words of the command, which can be started again as they stand here. `failures` are the attempts
    before, and `named` what verdicts have against hosts.
    """

    schema: str = SCHEMA
    attempt: int
    hosts: tuple[str, ...]
    can_restart: bool
    asked: Asked
    failures: int = 0
    named: Mapping[str, int] = field(default_factory=dict)


class Training:
    """Start with `run`, in the main thread: it handles SIGINT and SIGTERM while it runs."""

    def __init__(
        self,
        asked: Asked,
        *,
        rundir: RunDir,
        patience: Patience,
        tell: events.Tell,
        sink: Sink,
        found: Callable[[preflight.Result], None] = lambda result: None,
        rendezvous: Callable[[Callable[[str], None]], Rendezvous] | None = None,
    ) -> None:
        """`found` is told of a preflight after which no training can begin. With a `rendezvous` the hosts are those that join there."""
        self._asked, self._rundir, self._patience, self._sink, self._found = asked, rundir, patience, sink, found
        self._log = supervise.EventLog(rundir, tell)
        self._rendezvous = None if rendezvous is None else rendezvous(lambda text: self._log.tell(events.Note(text=text)))
        self._attempt: Attempt | None = None
        self._interrupts: list[int] = []
        self._beginning: asyncio.Future[Result] | None = None
        self._named = Counter[str]()
        self._failures = 0
        self._lost: tuple[str, ...] = ()

    def run(self) -> supervise.Outcome:
        """Raises UnhangError where no training can begin."""
        return asyncio.run(self._run())

    def attach(self, left: Resumable, *, elapsed_s: float) -> supervise.Outcome:
        """Follow an attempt of a run that was begun `elapsed_s` ago, and go on as that run would have."""
        self._log.began -= elapsed_s
        self._log.incidents = max(self._rundir.incident_numbers(), default=0)
        self._named.update(left.named)
        self._failures = left.failures
        policy = self._asked.policy
        self._asked = replace(self._asked, policy=replace(policy, max_restarts=max(0, policy.max_restarts - left.failures)))
        return asyncio.run(self._run(left))

    async def _run(self, left: Resumable | None = None) -> supervise.Outcome:
        loop = asyncio.get_running_loop()
        ends = [signal.SIGINT, signal.SIGTERM]
        if self._asked.looked_at.by == "ssh":
            # A terminal that is closed ends this process, and no training.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        else:
            ends.append(signal.SIGHUP)
        for number in ends:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._interrupt, number)
        if self._rendezvous is None:
            return await self._all(left)
        async with self._rendezvous as rendezvous:
            rendezvous.interrupt = self._interrupt
            try:
                outcome = await self._all(left)
            except UnhangError as e:
                await rendezvous.announce_end(EXIT_USER, str(e))
                raise
            primary = outcome.verdict.primary if outcome.verdict is not None else None
            await rendezvous.announce_end(outcome.exitcode, primary.says if primary is not None else "")
            return outcome

    async def _all(self, left: Resumable | None) -> supervise.Outcome:
        failures: list[Result] = []
        attempts = left.attempt if left is not None else 0
        result = await self._through_interrupts(self._followed(left) if left is not None else self._one(0))
        while True:
            attempts += 1
            code = None
            if self._interrupts or (result.exitcode == 0 and not result.ended_by_us):
                break
            failures.append(result)
            self._failures += 1
            code = supervise.code_for_pod(self._asked.policy, failures, failures)
            stop = supervise.why_not_again(self._asked.policy, failures, failures) or self._leave_out(result)
            if stop is None and code == EXIT_BAD_HOST and not self._left_out:
                stop = "a host is at fault, and there is none to take its place (--pod)"
            if stop is None:
                await self._wait_for_leases()
                if self._interrupts:
                    break
                self._log.tell(events.Restarting(attempt=len(failures), of=self._asked.policy.max_restarts))
                try:
                    result = await self._through_interrupts(self._one(attempts))
                    continue
                except UnhangError as e:
                    stop = str(e)
            if self._asked.policy.on_failure == "restart":
                self._log.tell(events.GaveUp(why=stop))
            break
        return self._log.finish(result, attempts=attempts, interrupts=self._interrupts, code=code)

    async def _through_interrupts(self, attempt: Coroutine[Any, Any, Result]) -> Result:
        """What has started nothing yet ends at once."""
        self._beginning = asyncio.ensure_future(attempt)
        try:
            return await self._beginning
        except asyncio.CancelledError:
            return Result(exitcode=1, ended_by_us=False, interrupted=True, steps=0, pace=None, incident=None, verdict=None)

    def _interrupt(self, number: int) -> None:
        self._interrupts.append(number)
        if self._attempt is not None:
            self._attempt.interrupt(number)
        elif self._beginning is not None:
            self._beginning.cancel()

    def _leave_out(self, result: Result) -> str | None:
        """Count what the verdict has against hosts; why no other attempt makes sense."""
        primary = result.verdict.primary if result.verdict else None
        names = {host.name for host in self._asked.looked_at.hosts}
        for host in names & set(primary.hosts if primary is not None else ()):
            self._named[host] += _WEIGHTS.get(primary.standing, 0) if primary is not None else 0
        named = [host for host, against in self._named.items() if against >= _TOO_MUCH]
        if len(named) > max(1, _MOST_LEFT_OUT * len(names)):
            return f"{len(named)} of {len(names)} hosts were named: more likely it is what they have in common, as the network"
        if out := self._left_out:
            self._log.tell(events.Note(text=f"left out from now on: {', '.join(out)}"))
        return None

    @property
    def _left_out(self) -> list[str]:
        """As many as there are others to take their places: a host that is needed is tried again."""
        spare = len(self._asked.looked_at.hosts) - self._asked.least
        return sorted([host for host, against in self._named.most_common() if against >= _TOO_MUCH][:spare])

    async def _wait_for_leases(self) -> None:
        if not self._lost:
            return
        self._log.tell(events.Note(text=f"waiting {_FENCE_S:.0f} s, after which no rank of this attempt is left on {', '.join(self._lost)}"))
        until = time.monotonic() + _FENCE_S
        while time.monotonic() < until and not self._interrupts:
            await asyncio.sleep(0.5)

    async def _one(self, number: int) -> Result:
        if self._rendezvous is not None and number == 0:
            joined = await self._rendezvous.wait_for_hosts(self._asked.least)
            self._asked = replace(self._asked, looked_at=replace(self._asked.looked_at, hosts=joined))
        asked = self._asked
        hosts = [host for host in asked.looked_at.hosts if host.name not in self._left_out]
        async with contextlib.AsyncExitStack() as line:
            agents = await self._reach(line, hosts)
            fit = [host for host in hosts if host.name in agents.names]
            result = None
            if asked.preflight != "off":
                result = await preflight.through(agents, replace(asked.looked_at, hosts=tuple(hosts), quick=asked.preflight == "quick"))
                fit = [host for host in fit if host.name not in result.bad and host.name in agents.names]
            if len(fit) < asked.least:
                if result is not None and number == 0:
                    self._found(result)
                raise UnhangError(f"{len(fit)} of {len(hosts)} hosts are fit to train, and {asked.least} are needed", hint="unhang doctor --hosts")
            chosen = fit[: asked.most]
            if unfit := [host.name for host in hosts if host not in fit]:
                self._log.tell(events.Note(text=f"not fit to train (unhang doctor --hosts says why): {', '.join(unfit)}"))
            if without := [host.name for host in chosen if not agents.hello[host.name]["unhang"]]:
                raise UnhangError(
                    f"{asked.looked_at.python} has no unhang on {', '.join(without)}",
                    hint="install it into the training's environment there, or name another one by --python",
                )
            ranks = len(chosen) * asked.job.per_host
            self._log.tell(events.Note(text=f"{ranks} ranks on {len(chosen)} hosts: {', '.join(host.name for host in chosen)}"))
            first = chosen[0].name
            if first == asked.looked_at.hosts[0].name and asked.looked_at.master:
                return await self._through(line, agents, chosen, number, asked.looked_at.master)
            address = result.addresses[first] if result is not None else agents.hello[first]["reached_at"] or first
            return await self._through(line, agents, chosen, number, address)

    async def _followed(self, left: Resumable) -> Result:
        hosts = [host for host in self._asked.looked_at.hosts if host.name in left.hosts]
        async with contextlib.AsyncExitStack() as line:
            return await self._through(line, await self._reach(line, hosts), hosts, left.attempt, None)

    async def _reach(self, line: contextlib.AsyncExitStack, hosts: Sequence[Host]) -> Agents:
        """Reconnect to these hosts; close the connections that `line` holds."""
        await line.aclose()
        asked = self._asked.looked_at
        if self._rendezvous is not None:
            made = self._rendezvous.pipes(hosts)
        else:
            made = pipes(hosts, python=asked.python, ssh=asked.ssh, by=asked.by, each=True)
        return await line.enter_async_context(reached(made, limit_s=STEP_S if asked.by == "srun" else START_S))

    async def _through(self, line: contextlib.AsyncExitStack, agents: Agents, hosts: Sequence[Host], number: int, address: str | None) -> Result:
        names = [host.name for host in hosts]
        self._rundir.write(self._rundir.hosts, replace(_resumable(self._asked, number, names), failures=self._failures, named=dict(self._named)))
        self._attempt = Attempt(
            agents,
            names,
            self._asked.job,
            number=number,
            reach=partial(self._reach, line, hosts),
            first_incident=self._log.incidents + 1,
            rundir=self._rundir,
            patience=self._patience,
            tell=self._log.tell,
            sink=self._sink,
            started=self._log.began,
            leave_hung=self._asked.policy.on_failure == "report",
        )
        try:
            return await self._attempt.run(address)
        finally:
            self._lost, self._attempt = self._attempt.lost, None


def _resumable(asked: Asked, attempt: int, names: Sequence[str]) -> Resumable:
    kept = replace(asked, job=replace(asked.job, environ={}), looked_at=replace(asked.looked_at, environ={}))
    clean = redact_data(replace(kept, job=replace(kept.job, words=redact_command(kept.job.words))))
    return Resumable(attempt=attempt, hosts=tuple(names), can_restart=clean.job == kept.job, asked=clean)
