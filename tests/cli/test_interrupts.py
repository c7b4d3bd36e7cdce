"""Signals while a command waits: its exit code is the one that shells know, nothing is said, and nothing of it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
