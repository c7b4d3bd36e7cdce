"""The ranks of one probe as processes: started, bounded, and ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from unhang.i18n import NOTHING, Text, joined, msg
from unhang.model import StageResult, StageState
from unhang.probes import worker

_WORKER = Path(worker.__file__)
# Time in which the others of a rank that failed may say why they did, too; and in which stacks are written.
_GRACE_S = 3.0
_STACKS_S = 1.0
# How soon somebody who wants no more of it is heard.
_LOOK_S = 0.25
# Asked from within a job, its agent's store and roles would be taken for ours.
_OF_ANOTHER_JOB = ("TORCHELASTIC_", "GROUP_", "ROLE_", "NCCL_COMM_ID")


@dataclass
class Told:
    """What a rank said last of a stage."""

    state: str = ""
    why: str = ""
    at: str = ""
    seconds: float = 0.0


@dataclass
class _Process:
    rank: int
    popen: subprocess.Popen[bytes]
    log: Path
    said: bytes = b""
    told: dict[str, Told] = field(default_factory=dict)


def exitcode(process: subprocess.Popen[bytes]) -> int | None:
    """As Popen tells it; None while it runs. It is not reaped: until then its number, and that of its group, is nobody else's."""
    if process.returncode is not None:
        return process.returncode
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def end_group(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """End a process that leads a session of its own with what it has started there, a Python behind a wrapper; whether the kernel let go of it."""
    _kill_group(process)
    # In a driver or on a file server that hangs it lets go of nobody, for as long as it likes.
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _await_end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    pause_s = 0.0005
    while exitcode(process) is None and (left := until - time.monotonic()) > 0:
        time.sleep(min(pause_s, left))
        pause_s = min(2 * pause_s, 0.05)


class Ranks:
    """World of `size` ranks that run `stages` in order; a context, after which no process is left."""

    def __init__(
        self,
        python: str,
        *,
        size: int,
        backend: str,
        stages: Sequence[str],
        logs: Path,
        timeout_s: float,
        environ: Mapping[str, str],
        cwd: Path,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._size = size
        self._processes: list[_Process] = []
        self._selector = selectors.DefaultSelector()
        self._asked = {"backend": backend, "port": _free_port(), "stages": list(stages), "timeout_s": timeout_s}
        self._python = python
        self._logs = logs
        self._environ = environ
        self._cwd = cwd
        self._cancelled = cancelled
        # Processes that could not be ended, once all is over.
        self.held: list[int] = []

    def __enter__(self) -> Ranks:
        try:
            for rank in range(self._size):
                self._start(rank)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    @property
    def logs(self) -> list[Path]:
        return [p.log for p in self._processes]

    def _start(self, rank: int) -> None:
        log = self._logs / f"rank{rank}.log"
        reads, writes = os.pipe()
        try:
            environ = {
                "NCCL_DEBUG": "INFO",
                **{name: value for name, value in self._environ.items() if not name.startswith(_OF_ANOTHER_JOB)},
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self._size),
                "LOCAL_WORLD_SIZE": str(self._size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._asked["port"]),
                "PYTHONUNBUFFERED": "1",
            }
            argv = [self._python, str(_WORKER), json.dumps({**self._asked, "report_fd": writes})]
            with log.open("ab") as out:
                popen = subprocess.Popen(
                    argv, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environ, cwd=self._cwd, pass_fds=(writes,), start_new_session=True
                )
        except BaseException:
            os.close(reads)
            raise
        finally:
            os.close(writes)
        process = _Process(rank, popen, log)
        self._processes.append(process)
        self._selector.register(os.fdopen(reads, "rb", buffering=0), selectors.EVENT_READ, process)

    def wait(self, stage: str, bound_s: float) -> StageResult:
        """Until all ranks have a stage behind them: passed, failed or lacking, with what was said, and how long the slowest rank took."""
        since = time.monotonic()
        until = since + bound_s
        while True:
            told = [p.told.get(stage, Told()) for p in self._processes]
            if all(t.state in ("passed", "lacking") for t in told):
                state: StageState = "lacking" if any(t.state == "lacking" for t in told) else "passed"
                says = next((t.why for t in told if t.state == state and t.why), "")
                return self._result(stage, state, says, max(t.seconds for t in told))
            broken = any(t.state == "failed" for t in told) or any(exitcode(p.popen) is not None and not self._open(p) for p in self._processes)
            if broken:
                until = min(until, time.monotonic() + _GRACE_S)
            if self._cancelled():
                return self._result(stage, "failed", msg("interrupted"), time.monotonic() - since)
            is_over = not self._read(min(_LOOK_S, max(0.0, until - time.monotonic()))) and time.monotonic() >= until
            if is_over or (broken and not any(self._open(p) for p in self._processes)):
                return self._result(stage, "failed", self._why(stage, bound_s), time.monotonic() - since)

    def _result(self, stage: str, state: StageState, says: str, seconds: float) -> StageResult:
        return StageResult(stage=stage, world_size=self._size, state=state, seconds=round(seconds, 3), says=says)

    def _open(self, process: _Process) -> bool:
        return any(key.data is process for key in self._selector.get_map().values())

    def _read(self, timeout_s: float) -> bool:
        """Whether anything was said, or a pipe closed."""
        ready = self._selector.select(timeout_s) if self._selector.get_map() else []
        for key, _ in ready:
            process: _Process = key.data
            text = os.read(key.fd, 65536)
            if not text:
                self._selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                _await_end(process.popen, _GRACE_S)
                continue
            *lines, process.said = (process.said + text).split(b"\n")
            for line in lines:
                _take(process, json.loads(line))
        return bool(ready)

    def _why(self, stage: str, bound_s: float) -> Text:
        """In one sentence: who failed how, or who never came back."""
        failed = [(p.rank, t.why) for p in self._processes if (t := p.told.get(stage, Told())).state == "failed"]
        # A rank that noticed only that another had gone says less than that one.
        ended = [
            (p.rank, _ended(exitcode(p.popen)))
            for p in self._processes
            if exitcode(p.popen) is not None and p.told.get(stage, Told()).state != "failed"
        ]
        if ended or failed:
            alike: dict[str, list[int]] = {}
            for rank, why in [*ended, *failed]:
                alike.setdefault(why, []).append(rank)
            return joined(msg("{ranks}: {why}", ranks=_named(numbers), why=why) for why, numbers in [*alike.items()][:3])
        stuck = [p for p in self._processes if p.told.get(stage, Told()).state not in ("passed", "lacking")]
        for p in stuck:
            if exitcode(p.popen) is None:
                os.kill(p.popen.pid, signal.SIGUSR2)
        self._read(_STACKS_S)
        at = next((t.at for p in stuck if (t := p.told.get(stage, Told())).at), "")
        where = msg(" (at {at})", "stage", at=at) if at else NOTHING
        return msg("{ranks} did not come back within {s} s{where}", ranks=_named([p.rank for p in stuck]), s=f"{bound_s:g}", where=where)

    def _end(self) -> None:
        for p in self._processes:
            if p.popen.stdin is not None:
                with contextlib.suppress(OSError):
                    p.popen.stdin.close()
        until = time.monotonic() + _GRACE_S
        for p in self._processes:
            _await_end(p.popen, max(0.0, until - time.monotonic()))
        for p in self._processes:
            _kill_group(p.popen)
        until = time.monotonic() + _GRACE_S
        self.held = [p.popen.pid for p in self._processes if not end_group(p.popen, max(0.0, until - time.monotonic()))]
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


def _take(process: _Process, said: dict[str, Any]) -> None:
    told = process.told.setdefault(said["stage"], Told())
    if said["state"] == "at":
        told.at = said["why"]
        return
    why = said.get("why", "")
    if "template" in said:
        why = msg(said["template"], **said["values"])
        why = msg("Wrong: {why}", why=why) if said["state"] == "failed" else why
    told.state, told.why, told.seconds = said["state"], why, said.get("seconds", 0.0)


def _ended(code: int | None) -> Text:
    if code is None:
        return msg("it is still there")
    if code < 0:
        return msg("ended by {signal}", signal=signal.Signals(-code).name)
    return msg("ended with exit code {code}", code=code)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
