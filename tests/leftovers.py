"""Makes sure that a test run leaves neither temporary directories nor processes, even if it is killed."""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

# Tests take away what begins with UNHANG_.
MARK = "TESTS_OF_UNHANG"
_WAIT_S = 10.0

# By its parent as well: what the session forks has the other end of its standard input, too.
_REAPER = """
import os, select, shutil, sys
from tests.leftovers import end_all
parent, variable, directory = int(sys.argv[1]), *sys.argv[2:]
while os.getppid() == parent and not select.select([0], [], [], 0.5)[0]:
    pass
end_all(variable)
shutil.rmtree(directory, ignore_errors=True)
"""


def living(variable: str) -> list[tuple[int, str]]:
    """Processes that began with this `NAME=value` in their environment, and their commands; not the asking one."""
    found: list[tuple[int, str]] = []
    processes = Path("/proc")
    for entry in processes.iterdir() if processes.is_dir() else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")))
            except OSError:
                continue
    return found


def end_all(variable: str) -> list[tuple[int, str]]:
    """Kill them, and those that they start meanwhile; who they were."""
    ended: dict[int, str] = {}
    until = time.monotonic() + _WAIT_S
    # One that nobody waits for has no environment any more.
    while (found := living(variable)) and time.monotonic() < until:
        for pid, command in found:
            ended[pid] = command
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    return list(ended.items())


def unnumbered(parent: Path) -> Path:
    """A new directory, of us alone, in whose name stands no number: that of a rank would mean that the path is the rank's own."""
    made = parent / f"unhang-tests-{uuid.uuid4().hex[:12].translate(str.maketrans('0123456789', 'ghijklmnop'))}"
    made.mkdir(mode=0o700)
    return made


class Session:
    """All that the tests start has its mark, and its temporary directory for theirs. Both end with it."""

    def __init__(self) -> None:
        self._before = dict(os.environ)
        # Python takes this one away itself, at its very end, and would complain of its being gone.
        multiprocessing.util.get_temp_dir()
        # pytest keeps the last directories of its own for whoever wants to look at a failure.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        self.directory = str(unnumbered(Path(tempfile.gettempdir())))
        os.environ["TMPDIR"] = self.directory
        tempfile.tempdir = None
        self.variable = f"{MARK}={uuid.uuid4().hex}"
        # Without the mark, in a session of its own: it outlives what it waits for.
        self._reaper = subprocess.Popen(
            [sys.executable, "-c", _REAPER, str(os.getpid()), self.variable, self.directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[1],
            env={**self._before, "PYTHONPATH": str(Path(__file__).parents[1])},
            start_new_session=True,
        )
        os.environ[MARK] = self.variable.partition("=")[2]

    def end(self) -> None:
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        self._reaper.wait(3 * _WAIT_S)
        for name in ("PYTEST_DEBUG_TEMPROOT", "TMPDIR", MARK):
            os.environ.pop(name, None)
            if name in self._before:
                os.environ[name] = self._before[name]
        tempfile.tempdir = None
