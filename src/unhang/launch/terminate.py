"""Ending what we started, and nothing else.

Ours is whatever descends from the child while the child lives, and whatever was ever seen to. Descendants whose parents died come to
us (PR_SET_CHILD_SUBREAPER), so none can slip away; one that was never seen before is known by this run's token in its environment, or
by its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time

import psutil

from unhang.attach import protocol

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents die. Linux only; elsewhere nothing happens."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """For the child, between fork and exec: a supervisor that is killed outright takes its launcher along."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def kill_descendants(*, deadline_s: float = 3.0) -> None:
    """End at once whatever we have started. Nobody is reaped: each belongs to the Popen that waits for it."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        left = False
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    left = True
                    process.kill()
        if not left:
            return
        time.sleep(0.02)


def kill_tree(child: subprocess.Popen[bytes]) -> None:
    """End at once a child that has not ended by itself, and what descends from it."""
    tree: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(child.pid)
        tree = [root, *root.children(recursive=True)] if child.poll() is None else []
    for process in tree:
        with contextlib.suppress(psutil.Error):
            process.kill()
    child.wait()


class Family:
    """All processes that come of one child."""

    def __init__(self, child: subprocess.Popen[bytes], token: str) -> None:
        self._child = child
        self._marker = f"{protocol.ENV_TOKEN}={token}".encode()
        # Start times tell a process from a later one with the same number.
        self._seen: dict[int, float] = {}

    def members(self) -> list[psutil.Process]:
        """Those that live. Call it now and then: what was seen once stays known, whatever it does to its environment."""
        descendants: set[int] = set()
        with contextlib.suppress(psutil.Error):
            descendants = {p.pid for p in psutil.Process(self._child.pid).children(recursive=True)} | {self._child.pid}
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                born = process.create_time()
                if process.pid in descendants or self._seen.get(process.pid) == born or self._marked(process.pid):
                    self._seen[process.pid] = born
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def work(self) -> tuple[float, int]:
        """What all have done so far: CPU time in seconds (that of their ended children too), and bytes read and written."""
        cpu_s, io_bytes = 0.0, 0
        for process in self.members():
            with contextlib.suppress(psutil.Error, OSError):
                cpu_s += sum(process.cpu_times()[:4])
                if hasattr(process, "io_counters"):
                    counted = process.io_counters()
                    io_bytes += counted.read_chars + counted.write_chars
        return cpu_s, io_bytes

    def pass_on(self, number: int) -> None:
        """Send a signal to those that have a handler for it; others would die of it."""
        for process in self.members():
            with contextlib.suppress(psutil.Error, OSError):
                with open(f"/proc/{process.pid}/status", "rb") as f:  # noqa: PTH123
                    mask = next((line.split()[1] for line in f if line.startswith(b"SigCgt:")), b"0")
                if bool(int(mask, 16) >> (number - 1) & 1):
                    process.send_signal(number)

    def ask(self, number: int) -> None:
        """Send a signal to each; stopped ones are set going so that they can obey."""
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
                process.send_signal(signal.SIGCONT)

    def kill(self, *, deadline_s: float = 10.0) -> list[int]:
        """End everything at once and reap it. Returns the pids that still live: only uninterruptible I/O outlasts SIGKILL."""
        end = time.monotonic() + deadline_s
        while left := self.members():
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self.reap()
            if time.monotonic() > end:
                return [p.pid for p in left]
            psutil.wait_procs(left, timeout=0.2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=1.0)
        self.reap()
        return []

    def reap(self) -> None:
        """Collect adopted orphans that have ended. The child belongs to its Popen, and what we started ourselves is in our own session."""
        self._child.poll()
        ours = os.getsid(0)
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != self._child.pid and process.status() == psutil.STATUS_ZOMBIE and os.getsid(process.pid) != ours:
                    os.waitpid(process.pid, os.WNOHANG)

    def _marked(self, pid: int) -> bool:
        if os.getsid(pid) == self._child.pid:
            return True
        with open(f"/proc/{pid}/environ", "rb") as f:  # noqa: PTH123
            return self._marker in f.read().split(b"\0")
