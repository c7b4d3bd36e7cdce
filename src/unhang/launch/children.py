"""Python processes below a rank, read from outside: data loader workers above all. They have no hook.

py-spy never pauses them: a stopped process must not be continued, and a system call of somebody's library not be interrupted.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from unhang.diagnosis.redact import redact_command
from unhang.errors import RecordError
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.facts.processes import Child
from unhang.facts.waits import waits_in
from unhang.model import Wait
from unhang.records import stacks as stacks_of
from unhang.records.incident import ChildRecord, Missed, Stacks

# Of one rank.
AT_MOST = 16
TIMEOUT_S = 5.0
AT_ONCE = 4

# What multiprocessing starts for itself.
_HELPERS = ("resource_tracker",)
# torch names its workers so since 2.6.
_WORKER = "pt_data_worker"


class ChildReader:
    """Reads the children of one rank. `keep` writes the stacks of one and returns where they are, None if they cannot be written."""

    def __init__(self, host: Host, keep: Callable[[int, Stacks], str | None]) -> None:
        self._host = host
        self._keep = keep
        self._free = asyncio.Semaphore(AT_ONCE)

    async def read(self, rank: int, pid: int, found: list[ChildRecord], idle: set[int]) -> list[Missed]:
        """Put the children of a rank into `found` as they are read, and their threads that release nothing into `idle`; returns what could not be."""
        missed: list[str] = []
        try:
            await asyncio.wait_for(self._read(pid, found, idle, missed), TIMEOUT_S)
        except asyncio.TimeoutError:
            missed.append(f"not all were read within {TIMEOUT_S:g} s")
        # Where one cannot be read, mostly none can.
        return [Missed(what=f"child processes of rank {rank}", why=why) for why in dict.fromkeys(missed)][:1]

    async def _read(self, pid: int, found: list[ChildRecord], idle: set[int], missed: list[str]) -> None:
        children = await asyncio.to_thread(relevant, self._host, pid)
        tool = find_py_spy()
        if children and tool is None:
            missed.append("py-spy is not installed")
        await asyncio.gather(*(self._one(child, tool, found, idle, missed) for child in children))

    async def _one(self, child: Child, tool: str | None, found: list[ChildRecord], idle: set[int], missed: list[str]) -> None:
        record = ChildRecord(pid=child.pid, state=child.state, exitcode=child.exitcode)
        if not child.ended and tool is not None:
            try:
                async with self._free:
                    out = await dump_by_py_spy(tool, child.pid, "--nonblocking", "--locals")
                read = stacks_of.from_pyspy(out)
                worker, index = stacks_of.worker_of_pyspy(out)
                idle |= stacks_of.idle_threads(read)
                record = replace(record, worker=worker, index=index, stacks=self._keep(child.pid, read))
            except (OSError, RecordError) as e:
                if processes.exists(self._host, child.pid):
                    missed.append(str(e))
        found.append(replace(record, wait=await asyncio.to_thread(wait_of, self._host, child.pid, idle=idle)))


def wait_of(host: Host, pid: int, *, tid: int | None = None, idle: Collection[int] = (), workers: Collection[int] = ()) -> Wait | None:
    """The same as `waits_in`, without credentials in the command line of the holder."""
    wait = waits_in(host, pid, tid=tid, idle=idle, workers=workers)
    if wait is None or wait.command is None:
        return wait
    return replace(wait, command=" ".join(redact_command(wait.command.split(" "))))


def relevant(host: Host, pid: int) -> list[Child]:
    """The Python processes below a rank, first those that may hold it up: failed ones, then those that do not merely poll for work."""
    own = processes.child(host, pid)
    if own is None:
        return []
    below = (processes.child(host, p) for p in processes.descendants(host, (pid,))[pid])
    found = [c for c in below if c is not None and _is_python(c, own) and not any(h in c.command for h in _HELPERS)]
    # Nobody waits for one that has done its work.
    found = [c for c in found if not c.ended or c.exitcode]
    return sorted(found, key=lambda c: (not c.ended, c.polls, c.name != _WORKER, c.pid))[:AT_MOST]


def _is_python(child: Child, rank: Child) -> bool:
    """A zombie has no executable any more, only a name."""
    if child.executable is None:
        return child.name in (_WORKER, rank.name) or child.name.startswith("python")
    return child.executable == rank.executable or Path(child.executable).name.startswith("python")


PY_SPY_TIMEOUT_S = 8.0


def find_py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


async def dump_by_py_spy(tool: str, pid: int, *options: str) -> bytes:
    """What `py-spy dump --json` prints of a process. Raises OSError.

    It pauses what it reads. A process that is stopped would be continued by that: give `--nonblocking`.
    """
    argv = [tool, "dump", "--json", *options, "--pid", str(pid)]
    # Its last line is to be the reason, not the end of its own backtrace.
    environ = {**os.environ, "RUST_BACKTRACE": "0"}
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environ
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), PY_SPY_TIMEOUT_S)
    except (asyncio.TimeoutError, asyncio.CancelledError) as e:
        process.kill()
        await process.wait()
        if isinstance(e, asyncio.CancelledError):
            raise
        raise TimeoutError(f"py-spy did not end within {PY_SPY_TIMEOUT_S:g} s") from e
    if process.returncode != 0:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise ChildProcessError(f"py-spy: {last[0]}")
    return out
