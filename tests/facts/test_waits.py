"""What a thread waits in: real processes, blocked in each way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.tables import for_each

from unhang.facts.host import Host
from unhang.facts.waits import waits_in
from unhang.model import Wait

_BLOCKED = """
import fcntl, multiprocessing, os, queue, select, socket, subprocess, sys, threading, time
def listening():
    server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(); return server
def held(path):
    if os.fork() == 0:
        lock = open(path, "w"); fcntl.flock(lock, fcntl.LOCK_EX); open(path + ".held", "w"); time.sleep(60); os._exit(0)
    while not os.path.exists(path + ".held"): pass
    return open(path, "w")
def taken(lock):
    lock.acquire(); return lock
def joined(work):
    thread = threading.Thread(target=work, daemon=True); thread.start(); thread.join()
"""

# (statement, kind, timed, whether something can still end it)
CASES = [
    ("time.sleep(60)", "sleep", True, True),
    ("taken(threading.Lock()).acquire()", "mutex", False, False),
    ("taken(threading.Lock()).acquire(timeout=60)", "mutex", True, True),
    ("queue.Queue().get()", "mutex", False, False),
    ("joined(lambda: taken(threading.Lock()).acquire())", "mutex", False, False),
    ("joined(lambda: time.sleep(60))", "mutex", False, True),
    ("joined(lambda: listening().accept())", "mutex", False, True),
    ("taken(multiprocessing.Lock()).acquire()", "semaphore", False, True),
    ("s = listening(); socket.create_connection(s.getsockname()).recv(1)", "socket", False, True),
    ("s = listening(); socket.create_connection(s.getsockname(), timeout=60).recv(1)", "socket", True, True),
    ("os.read(os.pipe()[0], 1)", "pipe", False, False),
    ("select.select([], [], [], 60)", "poll", True, True),
    # A handler of a signal may release anything.
    ("import signal; signal.signal(signal.SIGUSR1, print); threading.Event().wait()", "mutex", False, True),
    # Anybody may write into a FIFO with a name.
    ("os.mkfifo('control'); os.read(os.open('control', os.O_RDWR), 1)", "pipe", False, True),
    # The child that waits in a lock is not what the parent waits for.
    ("s = listening(); c = socket.create_connection(s.getsockname()); os.fork() or threading.Event().wait(); c.recv(1)", "socket", False, True),
    # Here it is.
    ("multiprocessing.Process(target=threading.Event().wait).start(); multiprocessing.active_children()[0].join()", "child", False, False),
]


def blocked(tmp_path: Path, statement: str) -> Wait | None:
    """The first answer about a process that has come as far as `statement`, after it has had time to block there."""
    ready = tmp_path / "ready"
    code = f"{_BLOCKED}\nopen({str(ready)!r}, 'w').close()\n{statement}"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        before: Wait | None = None
        while time.monotonic() < deadline:
            time.sleep(0.1)
            found = waits_in(Host(), process.pid) if ready.exists() else None
            if found is not None and found == before:
                return found
            before = found
        return before
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@for_each(("statement", "kind", "timed", "ends"), CASES, ids=[c[0][:40] for c in CASES])
def test_a_wait_is_told_by_its_kind_and_by_whether_it_can_end(tmp_path: Path, statement: str, kind: str, timed: bool, ends: bool) -> None:
    wait = blocked(tmp_path, statement)
    assert wait is not None
    assert (wait.kind, wait.timed, wait.ends) == (kind, timed, ends)


def test_the_holder_of_a_file_lock_and_a_child_are_named(tmp_path: Path) -> None:
    lock = blocked(tmp_path, "fcntl.flock(held('lock'), fcntl.LOCK_EX)")
    assert lock is not None
    assert (lock.kind, lock.what, lock.ends) == ("file-lock", str(tmp_path / "lock"), True)
    assert lock.holder is not None and sys.executable in (lock.command or "")
    child = blocked(tmp_path, "subprocess.run(['sleep', '60'])")
    assert child is not None and (child.kind, child.command) == ("child", "sleep 60")
    piped = blocked(tmp_path, "subprocess.check_output(['sleep', '60'])")
    assert piped is not None and (piped.kind, piped.ends, piped.command) == ("pipe", True, "sleep 60")


def test_a_fifo_that_nobody_has_opened_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    wait = blocked(tmp_path, "open('fifo').read()")
    assert wait is not None and (wait.kind, wait.what) == ("fifo", "fifo")


def test_of_a_process_that_runs_or_is_gone_nothing_is_said(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert waits_in(Host(), process.pid) is None
    finally:
        process.kill()
        process.wait()
    assert waits_in(Host(), process.pid) is None
