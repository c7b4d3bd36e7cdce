"""Pipes to hosts: each with an agent at its end, started by the user's own ssh, or one srun for all, or joined by the host itself. Questions and
answers, each within its time.

What travels to a host is the agent and all collectors as one archive, which Python there imports from memory. Nothing is written on the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import shlex
import signal
import zipfile
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from functools import cache
from pathlib import Path

from unhang.hosts import answers
from unhang.hosts.hostlist import Host
from unhang.hosts.job import Answer, Question
from unhang.model import frozen

# A scheduler may take its time for a step.
START_S, STEP_S = 15.0, 60.0
_CONNECT = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=8", "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=3")
# ssh clients that are started at once: each takes a process, and a quarter of a second of a processor.
_AT_ONCE = 32
_MAX_LINE_BYTES = 1 << 20
# What all answers of a host come to is far less. What is no answer counts eight times, so that 1 MB of it is too much; short lines cost as much.
_MAX_HOST_BYTES, _BABBLE, _LEAST_LINE_BYTES = 8 << 20, 8, 200
_MAX_SAID_BYTES = 4000
_MAX_SHOWN_CHARS = 300
# How a job divides its hosts among tasks of its own, as srun would for ours; and where its user came from, which is no address of a host.
_OF_TASKS = frozenset((
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK",
    "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND", "SLURM_DISTRIBUTION", "SLURM_HINT", "SSH_CONNECTION",
))  # fmt: skip
_ROOT = Path(__file__).resolve().parents[1]
_MODULES = (
    "hosts/agent.py",
    "hosts/job.py",
    "errors.py",
    "fsio.py",
    "i18n.py",
    "kernel_lines.py",
    "model.py",
    "patterns.py",
    "printable.py",
    "probes/worker.py",
    "text.py",
)
# It needs msgspec.
_NOT_THERE = ("snapshot_file.py",)
_LEAST_PYTHON = (3, 10)

# One line for the shell there, short enough for any packet; what follows is not, so a host that stops here has an MTU that does not fit.
LOADER = (
    "import os,sys;"
    'print(\'{"id":-1,"version":[%d,%d]}\'%sys.version_info[:2],flush=True);'
    "i=sys.stdin.buffer;n=i.readline()or sys.exit();f=os.memfd_create('unhang');os.write(f,i.read(int(n)));"
    "sys.path.insert(0,'/proc/self/fd/%d'%f);"
    "from unhang.hosts.agent import main;main()"
)


@frozen
class Failure:
    """Why a host gave no answer. `stage`: "login" (not even a shell), "python" (no Python that is new enough), "source" (what is longer than a packet
    does not arrive), "answer" (it was there, and is silent now), "flood" (it sends without end), "invalid" (its answer is none).

    `said` are the last words of ssh or of the host, or what is wrong with its answer.
    """

    stage: str
    said: str


class Pipe:
    """What leads to one host (a process such as ssh, a connection), or to all (srun, whose lines are labelled with the number of the task)."""

    def __init__(self, hosts: Sequence[Host], *, labelled: bool = False) -> None:
        self.hosts, self.labelled = hosts, labelled
        self.sends: asyncio.StreamWriter | None = None
        self.waiting: dict[tuple[str, int], asyncio.Future[Answer]] = {}
        self.said = b""
        # Its other end has closed it: the host was there to do so.
        self.is_closed = False
        self.flooding: set[str] = set()
        self.stage = {host.name: "login" for host in hosts}
        self._begun: dict[str, list[bytes]] = {}
        self._left: dict[str, int] = dict.fromkeys(self.stage, _MAX_HOST_BYTES)
        self._errors = _MAX_HOST_BYTES // _BABBLE
        self._number = {host.name: i for i, host in enumerate(hosts)}
        self._reading: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Raises OSError with the reason where it leads nowhere."""
        raise NotImplementedError

    async def close(self) -> None:
        """Agents end when their pipe does."""
        for task in self._reading:
            task.cancel()

    def _end(self) -> None:
        """Cut it off at once."""
        raise NotImplementedError

    def expect(self, host: str, number: int, *, allowed_bytes: int = 0) -> asyncio.Future[Answer]:
        """Who answers to a question may send so much more in all."""
        self._left[host] += allowed_bytes
        future = asyncio.get_running_loop().create_future()
        self.waiting[host, number] = future
        return future

    async def send(self, data: bytes) -> None:
        assert self.sends is not None
        with contextlib.suppress(OSError):
            self.sends.write(data)
            await self.sends.drain()

    async def _read(self, lines: asyncio.StreamReader) -> None:
        try:
            async for line in lines:
                self._take(line)
                if self._number.keys() <= self.flooding:
                    self._end()
                    break
            else:
                self.is_closed = True
        except ValueError:  # a line that is longer than any of an agent
            self._flood()
        except OSError as e:
            self.is_closed = isinstance(e, ConnectionResetError)
            self.said += (e.strerror or str(e)).encode()
        self._give_up(self._number)

    def _give_up(self, hosts: Container[str]) -> None:
        for (host, _), future in self.waiting.items():
            if host in hosts:
                future.cancel()

    def _flood(self) -> None:
        # Of several hosts nobody knows whose line it was.
        self.flooding |= set() if self.labelled else self._number.keys()
        self._end()

    def to(self, host: str) -> list[str] | None:
        """Whom a question is for, where all are asked through one pipe."""
        return [str(self._number[host])] if self.labelled else None

    def _take(self, line: bytes) -> None:
        host, size = self.hosts[0].name, max(len(line), _LEAST_LINE_BYTES)
        if self.labelled:
            label, _, line = line.partition(b": ")
            if not label.strip().isdigit() or len(label) > 6 or int(label) >= len(self.hosts):
                return
            host = self.hosts[int(label)].name
        self._left[host] -= size
        if self._left[host] < 0:
            if host not in self.flooding:
                self.flooding.add(host)
                self._give_up({host})
            return
        if line[:1] == b"+":
            self._begun.setdefault(host, []).append(line[1:].rstrip(b"\n"))
            return
        if line[:1] == b"=":
            line = b"".join([*self._begun.pop(host, ()), line[1:]])
        try:
            answer: Answer = json.loads(line)
            number = int(answer["id"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            # What a login shell prints.
            self.said = (self.said + line)[-_MAX_SAID_BYTES:]
            self._left[host] -= size * _BABBLE
            return
        if number < 0:
            # A banner may have had a box of "+---+".
            self._begun.pop(host, None)
        if number <= 0:
            self.stage[host] = "answer" if number == 0 else "source"
        if (future := self.waiting.pop((host, number), None)) is not None and not future.done():
            future.set_result(answer)


class Program(Pipe):
    """A process: ssh, srun, or the agent itself."""

    def __init__(self, argv: Sequence[str], hosts: Sequence[Host], *, labelled: bool = False, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(hosts, labelled=labelled)
        self.argv, self._environ = argv, environ
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environ,
                limit=_MAX_LINE_BYTES,
                start_new_session=True,
            )
        )
        try:
            self.process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Cancelled itself, it would end the process alone, and wait for children that have its pipes.
            self.process = await starting
            raise
        except OSError as e:
            raise OSError(e.errno, f"{self.argv[0]}: {e.strerror}") from e
        assert self.process.stdout is not None
        self.sends = self.process.stdin
        self._reading = [asyncio.create_task(self._read(self.process.stdout)), asyncio.create_task(self._listen())]

    async def close(self) -> None:
        """A process that does not end with its pipe is ended."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 2.0)
        except (asyncio.TimeoutError, asyncio.CancelledError):
            self._end()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.process.wait(), 2.0)
        await super().close()

    def _end(self) -> None:
        """End the process, with its children (ProxyCommand)."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # asyncio waits for the pipes as well, which may be full, or in other hands: there is no public way to close them.
        self.process._transport.close()  # type: ignore[attr-defined]

    async def _listen(self) -> None:
        assert self.process is not None and self.process.stderr is not None
        while data := await self.process.stderr.read(_MAX_LINE_BYTES):
            self.said = (self.said + data)[-_MAX_SAID_BYTES:]
            self._errors -= len(data)
            if self._errors < 0 and not self.labelled:
                self._flood()
                break


class Agents:
    """All hosts that answered, by name; `failed` are the others."""

    def __init__(self, pipes: Sequence[Pipe]) -> None:
        self._pipes = {host.name: pipe for pipe in pipes for host in pipe.hosts}
        self._numbers = itertools.count(1)
        self.hello: dict[str, Answer] = {}
        self.failed: dict[str, Failure] = {}
        # What agents themselves failed to do.
        self.errors: list[str] = []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self._pipes if name in self.hello and name not in self.failed)

    def is_closed(self, name: str) -> bool:
        """Whether that host itself has closed the connection. Of ssh and srun that is not known: they end for other reasons as well."""
        pipe = self._pipes[name]
        return pipe.is_closed and not isinstance(pipe, Program)

    async def start(self, limit_s: float) -> None:
        turns = asyncio.Semaphore(_AT_ONCE)
        pipes = dict.fromkeys(self._pipes.values())
        await asyncio.gather(*(self._start(pipe, turns, limit_s) for pipe in pipes))

    async def _start(self, pipe: Pipe, turns: asyncio.Semaphore, limit_s: float) -> None:
        async with turns:
            names = [host.name for host in pipe.hosts]
            begun, ready = ({name: pipe.expect(name, number) for name in names} for number in (-1, 0))
            try:
                await pipe.start()
            except OSError as e:
                self.failed |= {name: Failure(stage=pipe.stage[name], said=e.strerror or str(e)) for name in names}
                return
            await asyncio.wait(begun.values(), timeout=limit_s)
            for name, future in begun.items():
                if _is_answered(future) and self._is_valid(name, {"do": "begun"}, future.result()):
                    version = future.result()["version"]
                    if tuple(version) < _LEAST_PYTHON:
                        self.failed[name] = Failure(stage="python", said=".".join(map(str, version)))
            if any(_is_answered(future) for future in begun.values()):
                data = archive()
                sending = asyncio.ensure_future(pipe.send(b"%d\n" % len(data) + data))
                if wanted := [f for name, f in ready.items() if name not in self.failed]:
                    await asyncio.wait(wanted, timeout=limit_s)
                sending.cancel()
            for name, future in ready.items():
                if not _is_answered(future):
                    self.failed.setdefault(name, self._failure(name))
                elif self._is_valid(name, {"do": "ready"}, future.result()):
                    self.hello[name] = future.result()

    def _is_valid(self, name: str, question: Question, answer: Answer) -> bool:
        """Whether it is an answer to that; a host that gives another has failed."""
        why = answers.why_not(question, answer)
        if why is not None:
            self.failed[name] = Failure(stage="invalid", said=why)
        return why is None

    def _failure(self, name: str) -> Failure:
        pipe = self._pipes[name]
        if name in pipe.flooding:
            return Failure(stage="flood", said="")
        lines = [line.strip() for line in pipe.said.decode(errors="replace").splitlines() if line.strip()]
        stage = pipe.stage[name]
        if stage == "login" and any("python" in line.lower() or "SyntaxError" in line for line in lines):
            stage = "python"
        return Failure(stage=stage, said=lines[-1][:_MAX_SHOWN_CHARS] if lines else "")

    async def ask(self, questions: Mapping[str, Question], *, limit_s: float, allowed_bytes: int = 0) -> dict[str, Answer]:
        """What hosts answer to one question each. A host that is silent for so long has failed, and is not asked again.

        `allowed_bytes` is what an answer may have beyond what preflights take in all.
        """
        futures: dict[str, asyncio.Future[Answer]] = {}
        sends = []
        for name, question in questions.items():
            number = next(self._numbers)
            pipe = self._pipes[name]
            futures[name] = pipe.expect(name, number, allowed_bytes=allowed_bytes)
            sends.append(pipe.send(json.dumps({"id": number, "to": pipe.to(name), **question}).encode() + b"\n"))
        if not futures:
            return {}
        sending = asyncio.gather(*sends)
        await asyncio.wait(futures.values(), timeout=limit_s)
        sending.cancel()
        found = {}
        for name, future in futures.items():
            if not _is_answered(future):
                self.failed[name] = self._failure(name)
            elif isinstance(failure := (answer := future.result()).get("failure"), str):
                self.errors.append(f"{name}: {questions[name]['do']}: {failure}"[:_MAX_SHOWN_CHARS])
            elif self._is_valid(name, questions[name], answer):
                found[name] = answer
        return found

    async def ask_all(self, question: Question, *, limit_s: float) -> dict[str, Answer]:
        return await self.ask(dict.fromkeys(self.names, question), limit_s=limit_s)

    async def close(self) -> None:
        await asyncio.gather(*(pipe.close() for pipe in dict.fromkeys(self._pipes.values())))


def _is_answered(future: asyncio.Future[Answer]) -> bool:
    return future.done() and not future.cancelled()


def pipes(hosts: Sequence[Host], *, python: str, ssh: Sequence[str] = (), by: str = "ssh", each: bool = False) -> list[Pipe]:
    """Those to these hosts, not started; `python` is looked for there, else python3 is taken. `by` is "ssh" or "srun".

    Of srun one step for all, or one for `each`: then a host that is down keeps none of the others from starting.
    """
    there = shlex.quote(python)
    command = f'p={there}; [ -x "$p" ] || p=python3; exec "$p" -u -c {shlex.quote(LOADER)}'
    if by == "srun":
        return [_srun(command, some) for some in ([[host] for host in hosts] if each else [list(hosts)])]
    return [Program(["ssh", *_CONNECT, *ssh, "--", h.login, f"sh -c {shlex.quote(command)}"], [h]) for h in hosts]


def _srun(command: str, hosts: Sequence[Host]) -> Program:
    """One task on each of these hosts, beside other steps of the job, with all that the job has there."""
    argv = ["srun", "--label", "--overlap", "--no-kill", "--cpu-bind=none", f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", "--ntasks-per-node=1"]
    argv += [f"--nodelist={','.join(h.name for h in hosts)}", "sh", "-c", command]
    return Program(argv, hosts, labelled=True, environ={name: value for name, value in os.environ.items() if name not in _OF_TASKS})


@contextlib.asynccontextmanager
async def reached(made: Sequence[Pipe], *, limit_s: float = START_S) -> AsyncIterator[Agents]:
    """Agents at the ends of these pipes for as long as the context lasts."""
    agents = Agents(made)
    try:
        await agents.start(limit_s)
        yield agents
    finally:
        await agents.close()


@cache
def archive() -> bytes:
    """The modules, each package with an empty beginning: nothing else of ours is needed there."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in ("unhang", "unhang/hosts", "unhang/probes"):
            packed.writestr(f"{package}/__init__.py", "")
        for path in (*(_ROOT / m for m in _MODULES), *sorted((_ROOT / "facts").glob("*.py"))):
            if path.name not in _NOT_THERE:
                packed.write(path, f"unhang/{path.relative_to(_ROOT)}")
    return data.getvalue()
