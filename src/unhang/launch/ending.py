"""Ending what we started, and nothing else.

A process is ours if it descends from this one and either is in the session of our child or carries this run's token in its
environment. Descendants whose parents died come to us (PR_SET_CHILD_SUBREAPER), so none can slip away.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time

import psutil

from unhang.runtime.attach import protocol

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


class Family:
    """All processes that come of one child."""

    def __init__(self, child: subprocess.Popen[bytes], token: str) -> None:
        self._child = child
        self._marker = f"{protocol.ENV_TOKEN}={token}".encode()
        self._seen = {child.pid}

    def members(self) -> list[psutil.Process]:
        """Those that live."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if process.status() != psutil.STATUS_ZOMBIE and self._ours(process.pid):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        self._seen.update(p.pid for p in found)
        return found

    def ask(self, number: int) -> None:
        """Send a signal to each; stopped ones are set going so that they can obey."""
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                # psutil compares the start time: a number that has passed to another process is not signalled.
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
        """Collect adopted orphans that have ended. The child itself belongs to its Popen."""
        self._child.poll()
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if process.pid != self._child.pid and process.pid in self._seen and process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)

    def _ours(self, pid: int) -> bool:
        if pid == self._child.pid or os.getsid(pid) == self._child.pid:
            return True
        with open(f"/proc/{pid}/environ", "rb") as f:  # noqa: PTH123
            return self._marker in f.read().split(b"\0")
