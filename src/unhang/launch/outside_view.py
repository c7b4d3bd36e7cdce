"""What is seen of ranks from outside: what the kernel says they have been doing lately, only looked at once something is suspected; and the Python
processes below them, data loader workers above all, which have no hook.

py-spy never pauses those: a stopped process must not be continued, and a system call of somebody's library not be interrupted.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from unhang.diagnosis.redact import redact_command
from unhang.errors import RecordError
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.facts.processes import Child
from unhang.facts.waits import waits_in
from unhang.launch.watch import RankState
from unhang.model import Wait
from unhang.records import stacks as stacks_of
from unhang.records.incident import Activity, ChildRecord, Missed, Stacks

INTERVAL_S = 0.5
# The kernel's numbers must cover at least this long before a rank is said to be blocked.
MIN_WINDOW_S = 3.0
MAX_WINDOW_S = 10.0
# What a rank executes is compared over so long, or since it last moved on.
LOOP_WINDOW_S = 30.0
# Children of one rank that are read.
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


def window_s(threshold_s: float) -> float:
    """How far to look back: half the threshold at most, because what a rank did before it stopped must not count as a sign of life."""
    return min(max(threshold_s / 2, MIN_WINDOW_S + 2 * INTERVAL_S), MAX_WINDOW_S)


class Sampler:
    """Keeps the recent samples of every rank of this host. Times are seconds since the start of the run."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._samples: dict[int, deque[processes.Sample]] = {}
        self._threads: dict[int, int | None] = {}
        self._last_s = -INTERVAL_S

    def look(self, states: Sequence[RankState], *, now: float) -> None:
        """Take a sample of each, at most every INTERVAL_S."""
        if now - self._last_s < INTERVAL_S:
            return
        self._last_s = now
        children = processes.descendants(self._host, tuple(s.pid for s in states))
        for state in states:
            if self._threads.setdefault(state.pid, state.tid) != state.tid:
                # What one thread has done says nothing about another.
                self._threads[state.pid] = state.tid
                self._samples.pop(state.pid, None)
            found = processes.sample(self._host, state.pid, t=now, tid=state.tid, children=children[state.pid])
            if found is not None:
                self._samples.setdefault(state.pid, deque(maxlen=int(2 * MAX_WINDOW_S / INTERVAL_S))).append(found)

    def newest(self, state: RankState) -> float | None:
        """When the rank was last looked at."""
        samples = self._samples.get(state.pid)
        return samples[-1].t if samples else None

    def wait(self, state: RankState, *, idle: Collection[int] = (), workers: Collection[int] = ()) -> Wait | None:
        """What the rank waits in now. `idle` and `workers` as in `waits_in`. It may take a while."""
        found = wait_of(self._host, state.pid, tid=state.tid, idle=idle, workers=workers)
        # Its own threads complete a collective for it.
        return replace(found, ends=True) if found is not None and state.is_in_collective else found

    def activity(self, state: RankState, *, window_s: float = MAX_WINDOW_S, since_s: float = 0.0) -> Activity | None:
        """What the rank did during the last `window_s` or less, and not before `since_s`, None if it was never looked at."""
        samples = self._samples.get(state.pid)
        if not samples:
            return None
        last = samples[-1]
        seen = [s for s in samples if last.t - s.t <= window_s and s.t >= since_s] or [last]
        first = seen[0]
        window = max(last.t - first.t, 1e-3)
        return Activity(
            window_s=round(window, 3),
            state=last.state,
            cpu_share=round((last.cpu_s - first.cpu_s) / window, 4),
            tree_cpu_share=round(_gained(s.tree_cpu_s for s in seen) / window, 4),
            io_bytes_per_s=round(_gained(s.io_bytes for s in seen) / window, 1),
            switches_per_s=round((last.switches - first.switches) / window, 2),
            moved_share=state.moved_share(first.t),
            rss_bytes=last.rss_bytes,
            wchan=last.wchan,
            places=state.places_seen(max(last.t - LOOP_WINDOW_S, state.last_progress_s + 1.0)),
        )


def _gained(values: Iterable[float]) -> float:
    """How much a sum over processes has grown: one that nobody waited for takes what it had used out of the sum."""
    return sum(max(after - before, 0.0) for before, after in pairwise(values))
