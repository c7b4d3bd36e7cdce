import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from unhang.attach import protocol
from unhang.launch import terminate

TOKEN = "0123456789abcdef"
# A child whose own child ignores SIGTERM and leaves the session; it says the pid of that one.
DAEMON = """
import os, signal, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
inner = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
inner.stdout.readline()
print(inner.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def family():
    terminate.adopt_orphans()
    child = subprocess.Popen(
        [sys.executable, "-c", DAEMON],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, protocol.ENV_TOKEN: TOKEN},
    )
    inner = int(child.stdout.readline())
    yield terminate.Family(child, TOKEN), child, inner
    for pid in (child.pid, inner):
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
    child.communicate()


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_members_are_found_in_other_sessions_too(family):
    relatives, child, inner = family
    assert {p.pid for p in relatives.members()} == {child.pid, inner}


def test_an_orphan_comes_to_us_and_is_ended(family):
    relatives, child, inner = family
    relatives.members()
    child.kill()
    child.wait()
    until(lambda: psutil.Process(inner).ppid() == os.getpid())
    assert {p.pid for p in relatives.members()} == {inner}
    assert relatives.kill() == []
    assert not psutil.pid_exists(inner)  # reaped


def test_a_polite_request_does_not_end_who_ignores_it(family):
    relatives, child, inner = family
    relatives.ask(signal.SIGTERM)
    until(lambda: child.poll() is not None)
    assert not gone(inner)
    relatives.kill()
    assert gone(inner)


def test_a_stopped_process_obeys(family):
    relatives, child, _ = family
    os.kill(child.pid, signal.SIGSTOP)
    relatives.ask(signal.SIGTERM)
    until(lambda: child.poll() == -signal.SIGTERM)


def test_others_are_left_alone(family):
    relatives, _, _ = family
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert stranger.pid not in {p.pid for p in relatives.members()}
        relatives.kill()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()
