"""A session that is ended in any way takes with it what its tests have started and made."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.leftovers import MARK, living

SESSION = """
import signal, subprocess, sys, tempfile
from tests.leftovers import Session
session = Session()
forever = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True, stdout=subprocess.DEVNULL)
print(forever.pid, session.variable, tempfile.mkdtemp(), flush=True)
sys.stdin.read()
session.end()
assert forever.wait(0) == -signal.SIGKILL
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
@pytest.mark.parametrize("how", ["its own end", signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left(how):
    root = Path(__file__).parents[1]
    environ = {name: value for name, value in os.environ.items() if name != MARK} | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", SESSION]
    with subprocess.Popen(command, cwd=root, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
        pid, variable, directory = session.stdout.readline().split()
        # What has just begun has no environment yet.
        until = time.monotonic() + 40
        while not (found := living(variable)):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert [str(one) for one, _ in found] == [pid] and Path(directory).is_dir()
        if isinstance(how, signal.Signals):
            session.send_signal(how)
        session.stdin.close()
        assert session.wait(40) == (-how if isinstance(how, signal.Signals) else 0)
    until = time.monotonic() + 40
    while living(variable) or Path(directory).exists():
        assert time.monotonic() < until
        time.sleep(0.05)
