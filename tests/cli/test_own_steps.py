"""What is made of the user's own few steps."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from unhang.cli import own_steps
from unhang.errors import UnhangError
from unhang.knowledge.words import Text
from unhang.launch.attempt import OTHER_GRACE_S
from unhang.remedies.trial import Wrong


def told(**more):
    return json.dumps({"exitcode": 0, "steps": 5, "steps_per_s": 4.0, "verdict": None, **more}).encode()


def test_steps_that_went_well():
    found = own_steps._steps(told(), 0, "", {}, over=False, limit_s=60)
    assert (found.exitcode, found.steps, found.step_s, found.says) == (0, 5, 0.25, "")


def test_who_still_steps_when_the_time_is_over_has_passed():
    found = own_steps._steps(told(exitcode=130), 130, "", {}, over=True, limit_s=60)
    assert (found.exitcode, found.says) == (0, "")


def test_who_has_not_stepped_by_then_has_not():
    assert "no optimizer step within 60 s" in own_steps._steps(told(steps=0, steps_per_s=None), 130, "", {}, over=True, limit_s=60).says


def test_a_failure_is_told_with_its_cause():
    verdict = {"primary": {"cause": "gloo-connect", "standing": "likely", "says": "refused"}}
    found = own_steps._steps(told(exitcode=1, verdict=verdict), 1, "", {}, over=False, limit_s=60)
    assert (found.exitcode, found.says) == (1, "gloo-connect: refused")


@pytest.mark.parametrize("exitcode", [2, 3, -9])
def test_what_could_not_be_started_has_neither_passed_nor_failed(exitcode):
    found = own_steps._steps(b"", exitcode, "unhang: this is why", {}, over=False, limit_s=60)
    assert isinstance(found, Text) and "this is why" in found and "this is why" in found.of("zh")


def test_what_a_shell_did_not_find_is_wrong_whatever_is_set():
    assert isinstance(own_steps._steps(told(exitcode=127, steps=0), 127, "", {}, over=False, limit_s=60), Wrong)
    assert own_steps._steps(told(exitcode=127), 127, "", {}, over=False, limit_s=60).exitcode == 127


def ended(says, cause="rank-exception", choice=None, evidence=(), **more):
    told_of = {"cause": cause, "standing": "established", "says": says, "evidence": [{"source": "a", "text": e} for e in evidence]}
    return own_steps._steps(told(**{"exitcode": 1, "steps": 0, "verdict": {"primary": told_of}, **more}), 1, "", choice or {}, over=False, limit_s=60)


UNKNOWN_OPTION = "train.py does not know --max-stepz"
REFUSED = ("train.py: error: unrecognized arguments: --max-stepz",)


@pytest.mark.parametrize(
    ("says", "more"),
    [
        (UNKNOWN_OPTION, {"cause": "config-error"}),
        (UNKNOWN_OPTION, {"cause": "config-error", "choice": {"backend": "gloo"}, "evidence": REFUSED}),
        ("rank 0 ended itself with exit code 2", {"cause": "unknown", "evidence": ("usage: train.py [-h]", "train.py: error: no such model")}),
        ("every rank raised ModuleNotFoundError: No module named 'nosuch' at train.py:1", {}),
        ("every rank raised ImportError: cannot import name 'nosuch' from 'os'", {}),
        ("every rank raised SyntaxError: invalid syntax (train.py, line 1)", {}),
        ("every rank raised FileNotFoundError: [Errno 2] No such file or directory: '/data/train.json'", {}),
        ("torchrun is of another Python", {"cause": "launcher-wrong-env"}),
    ],
)
def test_what_no_setting_mends_is_wrong_whatever_is_set(says, more):
    found = ended(says, **more)
    assert isinstance(found, Wrong) and says in found.why and says in found.why.of("zh")
    # Who has stepped has come further than that.
    assert ended(says, steps=3, **more).exitcode == 1


@pytest.mark.parametrize(
    ("says", "more"),
    [
        ("every rank raised ValueError: x", {}),
        ("every rank raised FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/torch_1_2'", {}),
        ("rank 0 ended itself with exit code 2", {"cause": "unknown", "evidence": ("closing",)}),
        ("/dev/shm is full", {"cause": "shm-exhausted"}),
    ],
)
def test_what_a_setting_may_mend_has_failed(says, more):
    assert ended(says, **more).exitcode == 1


def test_what_does_not_fit_so_many_processes_has_neither_failed_nor_is_it_wrong():
    found = ended("the batch is none of 1 process", cause="config-error", choice={"processes": 1})
    assert isinstance(found, Text) and "the batch" in found and "the batch" in found.of("zh")


ASKS = "import argparse\nargparse.ArgumentParser().parse_args()\n"


def test_an_option_that_a_setting_has_added_says_nothing_of_the_command(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(ASKS)
    (tmp_path / "unhang.toml").write_text('[arguments]\nloader-workers = "--workers"\n')
    monkeypatch.chdir(tmp_path)
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = own_steps.runner("train.py --max-stepz 5", python=sys.executable, environ=environ, limit_s=60)({}, 1, 60.0)
    assert isinstance(found, Wrong) and "--max-stepz" in found.why
    added = own_steps.runner("train.py", python=sys.executable, environ=environ, limit_s=60)({"loader-workers": 0}, 1, 60.0)
    assert isinstance(added, Text) and "--workers" in added
    (tmp_path / "agent").write_text(f"#!{sys.executable}\n{ASKS}")
    (tmp_path / "agent").chmod(0o755)
    other = own_steps.runner("agent --max-stepz 5", python=sys.executable, environ=environ, limit_s=60)({"interface": "lo"}, 1, 60.0)
    assert isinstance(other, Wrong) and "--max-stepz" in other.why


def test_what_is_refused_has_not_failed(tmp_path):
    own = own_steps.runner("bash -c true", python=sys.executable, environ={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}, limit_s=30)
    found = own({"processes": 1}, 1, 30.0)
    assert isinstance(found, Text) and "processes" in found


def test_what_had_less_than_its_time_has_not_failed(monkeypatch):
    slow = own_steps._no_step(40)
    monkeypatch.setattr(own_steps, "_run", lambda *_, **__: slow)
    own = own_steps.runner("sh -c :", python="python", environ={}, limit_s=60)
    assert isinstance(own({}, 2, 1.0), Text) and isinstance(own({}, 2, 40.0), Text)
    assert own_steps.runner("sh -c :", python="python", environ={}, limit_s=40)({}, 2, 300.0) == slow


STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(300)
"""


@pytest.mark.parametrize("how", ["interrupted", pytest.param("killed", marks=pytest.mark.integration)])
def test_nothing_stays_of_steps_that_are_not_waited_for(tmp_path, how):
    """Ctrl-C, and SIGKILL of the process that tries: a training that ignores signals, as those do that save themselves before a preemption."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    pid_file, source = tmp_path / "pid", str(Path(own_steps.__file__).parents[2])
    tries = f"""
import os, sys
sys.path.insert(0, {source!r})
from unhang.cli import own_steps
own_steps.runner({f"{tmp_path}/stubborn.py {pid_file}"!r}, python=sys.executable, environ=os.environ, limit_s=200)({{}}, 1, 200.0)
"""
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": source}
    trying = subprocess.Popen([sys.executable, "-c", tries], env=environ, start_new_session=True, stderr=subprocess.DEVNULL)
    stubborn = None
    try:
        until = time.monotonic() + 300
        while not (pid_file.exists() and pid_file.read_text()):
            assert trying.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        stubborn = psutil.Process(int(pid_file.read_text()))
        trying.send_signal(signal.SIGINT if how == "interrupted" else signal.SIGKILL)
        trying.wait(60)
        # One that is killed leaves it to the inner run, which gives the training its time to end.
        stubborn.wait(5 if how == "interrupted" else OTHER_GRACE_S + 30)
    finally:
        trying.kill()
        trying.wait(10)
        if stubborn is not None and stubborn.is_running():
            stubborn.kill()
    if how == "interrupted":
        assert not list(tmp_path.glob("unhang-*"))


@pytest.mark.parametrize("command", ["", "train.py 'unclosed", "no-such-command --steps 5", "no-such-script.py"])
def test_what_is_no_command(command):
    with pytest.raises(UnhangError, match="--trial-command") as raised:
        own_steps.runner(command, python="python", environ=os.environ, limit_s=5)
    assert raised.value.hint
