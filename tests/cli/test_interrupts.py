"""Signals while a command waits: its exit code is the one that shells know, nothing is said, and nothing of it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import psutil
import pytest

EACH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
# More than a pipe holds: it can be written only once somebody reads.
MORE = b"step 1\n" * 20_000


class Started:
    def __init__(self, *argv: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, env={**os.environ, **environ}
        )

    def send(self, number: int) -> tuple[int, bytes, bytes]:
        self.process.send_signal(number)
        # Standard input stays open: it is not for its end that the process goes.
        stdin, self.process.stdin = self.process.stdin, None
        try:
            out, err = self.process.communicate(timeout=300)
        finally:
            stdin.close()
        return self.process.returncode, out, err

    def reads(self, folder: Path, *, by_another: bool) -> bool:
        """Whether a file in a folder is open; `by_another`: in a process that this one has started."""
        return any(
            os.path.dirname(file.path) == str(folder) for p in self._left() if not by_another or p.pid != self.process.pid for file in _open_files(p)
        )

    def ends_all(self) -> bool:
        """Within far less than what it has started would take."""
        deadline = time.monotonic() + 300
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not left

    def _left(self) -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["status"]) if _session(p.pid) == self.process.pid and p.info["status"] != psutil.STATUS_ZOMBIE]

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def _open_files(process: psutil.Process) -> list[object]:
    try:
        return process.open_files()
    except psutil.Error:
        return []


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def until(true, started: Started) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline and started.process.poll() is None
        time.sleep(0.01)


@EACH
@pytest.mark.parametrize("words", [["why", "-"], ["vars", "-"], ["export", "--check", "-"]], ids=lambda w: w[0])
def test_while_standard_input_is_read(words, number):
    with Started(sys.executable, "-m", "unhang", *words) as started:
        started.process.stdin.write(MORE)
        assert started.send(number) == (128 + number, b"", b"")


def zeros(path: Path, begin: bytes = b"") -> None:
    """A terabyte, of which nothing is on the disk: nobody gets to its end."""
    with path.open("wb") as f:
        f.write(begin)
        f.truncate(1 << 40)


def a_log(folder: Path) -> None:
    zeros(folder / "rank0.log")


def an_archive(folder: Path) -> None:
    member = tarfile.TarInfo("rank0.log")
    member.size = 1 << 42
    zeros(folder / "logs.tar", member.tobuf(tarfile.GNU_FORMAT))


def logs_of_ranks(folder: Path) -> None:
    for rank in range(4):
        zeros(folder / f"rank{rank}.log")
    # Neither waits for a writer.
    for name in ("rank4.log", "run.json", "nccl_trace_rank_0"):
        os.mkfifo(folder / name)


@EACH
@pytest.mark.parametrize("given", [a_log, an_archive, logs_of_ranks], ids=lambda g: g.__name__)
def test_while_what_never_ends_is_read(given, number, tmp_path: Path):
    given(tmp_path)
    with Started(sys.executable, "-m", "unhang", "why", str(tmp_path)) as started:
        until(lambda: started.reads(tmp_path, by_another=given is not an_archive), started)
        assert started.send(number) == (128 + number, b"", b"")
        assert started.ends_all()


def test_one_that_is_lost_while_it_waits(tmp_path: Path):
    (tmp_path / "log").write_text("step 1\n")
    code = (
        f"import signal, sys, threading\nsys.argv[1:] = ['why', {str(tmp_path / 'log')!r}]\n"
        "class Lost:\n    def __del__(self): signal.raise_signal(signal.SIGTERM)\n"
        "from unhang.logs import discovery\n"
        "def find(*given, **more):\n    Lost()\n    print('on', flush=True)\n    threading.Event().wait()\n"
        "discovery.find = find\n"
        "from unhang.cli.main import entry\nentry()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert ran.returncode == 143 and ran.stdout == b"on\n"


@EACH
def test_while_the_machine_is_looked_at(tmp_path: Path, number):
    """A command that does not answer."""
    for name in ("nft", "iptables", "iptables-save"):
        (tmp_path / name).write_text(f"#!/bin/sh\n: > {tmp_path}/asked\nexec sleep 600\n")
        (tmp_path / name).chmod(0o755)
    with Started(sys.executable, "-m", "unhang", "doctor", "--only", "firewall", PATH=f"{tmp_path}:{os.environ['PATH']}") as started:
        until((tmp_path / "asked").exists, started)
        code, out, _ = started.send(number)
        assert (code, out) == (128 + number, b"")
        assert started.ends_all()


def test_one_that_a_finalizer_loses():
    """What is raised inside of __del__ goes nowhere, and the command goes on to its end."""
    code = (
        "import signal, sys\nsys.argv[1:] = ['explain', '--list']\n"
        "class Lost:\n    def __del__(self): signal.raise_signal(signal.SIGTERM)\n"
        "from unhang.cli import explain\nbefore = explain.register\n"
        "def register(app): Lost(); before(app)\n"
        "explain.register = register\n"
        "from unhang.cli.main import entry\nentry()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert ran.returncode == 143 and b"rank-exception" in ran.stdout


@EACH
def test_one_that_comes_when_all_is_told(number):
    """A library that closes something at the exit, and takes its time."""
    code = (
        "import atexit, sys, time\natexit.register(lambda: (print('closing', flush=True), time.sleep(600)))\n"
        "sys.argv[1:] = ['explain', '--list']\nfrom unhang.cli.main import entry\nentry()\n"
    )
    with Started(sys.executable, "-c", code) as started:
        assert any(line == b"closing\n" for line in started.process.stdout)
        assert started.send(number) == (128 + number, b"", b"")
