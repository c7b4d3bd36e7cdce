import datetime
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import psutil
import pytest

from unhang.launch import events
from unhang.launch.attempt import Options, Result
from unhang.launch.command import Command, resolve
from unhang.launch.supervise import Changed, Policy, Supervisor, fails_always, no_progress, run_path
from unhang.model import Evidence, Finding, Standing, Verdict
from unhang.records.incident import Ended, Incident, RankRecord
from unhang.records.rundir import RunDir


def failed(
    steps: int,
    *,
    cause: str = "rank-exception",
    ranks: tuple[int, ...] = (1,),
    pace: float = 1.0,
    exitcode: int = 1,
    standing: Standing = "established",
    text: str = "",
    where: str | None = None,
    ended: int | None = None,
) -> Result:
    """`ended`: the exit code of the blamed ranks themselves."""
    told = (Evidence(source="err", text=text),)
    verdict = Verdict(primary=Finding(cause=cause, standing=standing, says="", ranks=ranks, where=where, evidence=told))
    incident = None
    if ended is not None:
        records = tuple(RankRecord(rank=r, pid=r + 10, host="h", ended=Ended(at_s=9.0, exitcode=ended)) for r in ranks)
        incident = Incident(number=1, attempt=0, kind="failure", at_s=9.0, at="", cwd="", command=(), ranks=records)
    return Result(exitcode=exitcode, ended_by_us=False, interrupted=False, steps=steps, pace=pace, incident=incident, verdict=verdict)


def fell(ended: int, *, where: str | None = "train.py:9 in step", steps: int = 12) -> Result:
    return failed(steps, cause="unknown", ended=ended, where=where)


@pytest.mark.parametrize(
    ("failures", "stop"),
    [
        ([failed(12)], False),
        ([failed(12), failed(12)], True),
        ([failed(12), failed(13)], True),
        ([failed(0), failed(0)], True),
        ([failed(12), failed(6)], False),
        ([failed(6), failed(12)], False),
        ([failed(12), failed(6), failed(6)], True),
        ([failed(12), failed(12, cause="collective-mismatch")], False),
        ([failed(12), failed(12, ranks=(0,))], False),
        # Of two ranks that raise at one line the launcher may have ended either before it could.
        ([failed(12, where="train.py:9 in step"), failed(12, ranks=(0,), where="train.py:9 in step")], True),
        ([failed(12, where="train.py:9 in step"), failed(12, ranks=(0,), where="train.py:8 in step")], False),
        ([failed(12, cause="straggler-timeout", where="a.py:9 in f", ranks=(n,)) for n in range(3)], False),
        ([failed(12), failed(12, exitcode=3)], False),
        # Ten steps a second: a heartbeat every quarter of a second may miss a few.
        ([failed(100, pace=10.0), failed(105, pace=10.0)], True),
        ([failed(100, pace=10.0), failed(107, pace=10.0)], False),
        # No second start brings NCCL into a torch without it.
        ([failed(0, cause="backend-unavailable")] * 2, True),
        ([failed(0, cause="wrong-backend-for-tensor")] * 2, True),
        ([failed(0, cause="arch-not-in-build")] * 2, True),
        # Killed for its memory every 500 steps: with checkpoints that is progress, at first.
        ([failed(500, cause="host-oom-or-killed")] * 2, False),
        ([failed(500, cause="host-oom-or-killed")] * 3, True),
        # A deliberate exit and a crash of its own, at the same line: that is not chance.
        ([fell(3)] * 2, True),
        ([fell(-11)] * 2, True),
        ([fell(-6, steps=0)] * 2, True),
        ([fell(3), fell(4)], False),
        ([fell(3), fell(3, where="train.py:10 in step")], False),
        ([fell(3, where=None)] * 2, False),
        ([fell(3), fell(3, steps=40)], False),
        # Somebody else's signal may not come again.
        ([fell(-9)] * 2, False),
        ([fell(-15)] * 2, False),
    ],
)
def test_no_progress(failures, stop):
    assert no_progress(failures) is stop


PLAIN = Command(argv=("/env/bin/python", "train.py"), python="/env/bin/python", name="train", world_size=None, port=None)
TORCHRUN = replace(PLAIN, argv=("/env/bin/torchrun", "train.py"))
BATCH = replace(PLAIN, argv=("/bin/bash", "job.sh"), python_from="guess")
UNKNOWN = "train.py: error: unrecognized arguments: --bogus"


@pytest.mark.parametrize(
    ("failure", "stop"),
    [
        (failed(0, cause="launcher-wrong-env"), True),
        (failed(0, cause="config-error"), True),
        (failed(0, cause="arch-not-in-build"), True),
        (failed(0, cause="config-error", exitcode=2, text=UNKNOWN), True),
        (failed(0, cause="config-error", exitcode=2, text="python: can't open file '/nfs/train.py': [Errno 2] No such file or directory"), True),
        (failed(0, cause="config-error", exitcode=2, text="python: can't open file '/nfs/train.py': [Errno 13] Permission denied"), True),
        # A file server that does not answer comes back.
        (failed(0, cause="config-error", exitcode=2, text="python: can't open file '/nfs/train.py': [Errno 116] Stale file handle"), False),
        (failed(0, cause="config-error", exitcode=2, text="python: can't open file '/nfs/train.py': [Errno 5] Input/output error"), False),
        # What was refused was passed over: the command ended by something else.
        (failed(0, cause="config-error", exitcode=7, text=UNKNOWN), False),
        (failed(0, cause="config-error", exitcode=1, text=UNKNOWN), False),
        (failed(0, cause="config-error", exitcode=2), False),
        (failed(0, cause="launcher-wrong-env", exitcode=-9), False),
        (failed(0, cause="launcher-wrong-env", standing="likely", text="ModuleNotFoundError: No module named 'torch'"), False),
        # Gloo answers a missing NCCL.
        (failed(0, cause="backend-unavailable"), False),
        # It has worked for a while: something else has changed.
        (failed(3, cause="config-error"), False),
        # A download that fails, a port that the last run still holds, a race.
        (failed(0), False),
        (failed(0, cause="port-in-use"), False),
        (failed(0, cause="collective-mismatch"), False),
    ],
)
def test_one_failure_is_enough(failure, stop):
    assert fails_always(failure, PLAIN) is stop
    assert not fails_always(failure, BATCH)
    assert not fails_always(failure, replace(BATCH, python_from="option"))


def ended(*codes, by_launcher=False):
    ranks = tuple(RankRecord(rank=i, pid=i, host="a", ended=Ended(at_s=1.0, exitcode=code, by_launcher=by_launcher)) for i, code in enumerate(codes))
    return Incident(number=1, attempt=0, kind="failure", at_s=1.0, at="", cwd="/", command=(), expected_world=2, ranks=ranks)


@pytest.mark.parametrize(("codes", "stop"), [((2, 2), True), ((2, None), True), ((7, 7), False), ((2, 7), False), ((), False)])
def test_a_launcher_has_an_exit_code_of_its_own_and_its_ranks_tell(codes, stop):
    assert fails_always(replace(failed(0, cause="config-error", exitcode=1, text=UNKNOWN), incident=ended(*codes)), TORCHRUN) is stop


REFUSES = "import argparse, sys\nopen(sys.argv.pop(1), 'a').write('.')\nargparse.ArgumentParser().parse_args()"


class TakesBack:
    """A remembered change with which the training refuses an option."""

    def __init__(self, without, environ):
        self.without, self.environ = without, environ

    def at_start(self, tell):
        return Changed(environ=self.environ, command=replace(self.without, argv=(*self.without.argv, "--nosuch", "1")))

    def after(self, result, tell, cancelled):
        return Changed(environ=self.environ, command=self.without)


@pytest.mark.parametrize(("ours", "starts", "exitcode"), [(False, 1, 2), (True, 2, 0)])
def test_an_unknown_option_is_not_tried_again_unless_it_is_ours(tmp_path, ours, starts, exitcode):
    script, count, told = tmp_path / "train.py", tmp_path / "count", []
    script.write_text(REFUSES)
    plain = Command(argv=(sys.executable, str(script), str(count)), python=sys.executable, name="train", world_size=None, port=None)
    supervisor = Supervisor(
        plain if ours else replace(plain, argv=(*plain.argv, "--nosuch", "1")),
        rundir=RunDir.create(tmp_path / "run"),
        options=Options(),
        policy=Policy(),
        tell=told.append,
        sink=lambda *said: None,
        remedying=TakesBack(plain, os.environ) if ours else None,
    )
    assert supervisor.run().exitcode == exitcode
    assert count.read_text() == "." * starts
    drawn = [e.verdict.primary for e in told if isinstance(e, events.Drawn)]
    assert [(p.cause, p.standing) for p in drawn] == [("config-error", "established")]
    assert [e.why for e in told if isinstance(e, events.GaveUp)] == (
        [] if ours else ["what was refused before the first step ended it: the same start would most likely be refused again"]
    )


FIRST = "test -e first && exit 0; touch first; exit 7"
HELPERS = {
    "helper.py": "import argparse\nargparse.ArgumentParser().parse_args()",
    "train.py": "import subprocess, sys\nsubprocess.run([sys.executable, 'helper.py', '--bogus'])\n"
    f"sys.exit(subprocess.run({FIRST!r}, shell=True).returncode)",
    "passed_over.sh": f"{sys.executable} helper.py --bogus || true\n{FIRST}\n",
    "no_launcher.sh": f"echo 'no_launcher.sh: line 1: torchrun: command not found' >&2\n{FIRST}\n",
}


@pytest.mark.parametrize(
    ("argv", "starts"),
    [
        # What is missed or refused is passed over, and the first time only something else ends the command.
        (("bash", "passed_over.sh"), 2),
        (("bash", "no_launcher.sh"), 2),
        ((sys.executable, "train.py"), 2),
        ((sys.executable, "missing.py"), 1),
        ((sys.executable, "helper.py", "--bogus"), 1),
    ],
)
def test_only_what_ended_the_command_ends_the_run(tmp_path, monkeypatch, argv, starts):
    monkeypatch.chdir(tmp_path)
    for name, text in HELPERS.items():
        (tmp_path / name).write_text(text)
    told = []
    supervisor = Supervisor(
        resolve(argv), rundir=RunDir.create(tmp_path / "run"), options=Options(), policy=Policy(), tell=told.append, sink=lambda *said: None
    )
    outcome = supervisor.run()
    assert (outcome.attempts, outcome.exitcode) == (starts, 0 if starts == 2 else 2)
    drawn = [e.verdict.primary for e in told if isinstance(e, events.Drawn)]
    assert [(p.cause in ("config-error", "launcher-wrong-env"), p.standing) for p in drawn] == [(True, "established")]


def test_run_paths_are_new_and_safe(tmp_path):
    now = datetime.datetime(2026, 1, 2, 3, 4, 5)
    first = run_path(tmp_path, "../my run", now=now)
    assert first == tmp_path / "my-run-20260102-030405"
    first.mkdir()
    assert run_path(tmp_path, "../my run", now=now) == tmp_path / "my-run-20260102-030405-2"
    assert run_path(tmp_path, "..", now=now).name == "run-20260102-030405"


class Remembers:
    def __init__(self, command, environ):
        self.changed = Changed(environ={**environ, "NCCL_P2P_DISABLE": "1"}, command=command)

    def at_start(self, tell):
        return self.changed

    def after(self, result, tell, cancelled):
        return None


def test_the_record_is_of_what_was_really_started(tmp_path):
    """An exported variable that what is remembered overrules, and another command."""
    typed, used = (Command(argv=("sh", "-c", word), python=sys.executable, name="t", world_size=None, port=None) for word in ("exit 3", "exit 0"))
    environ = {**os.environ, "NCCL_P2P_DISABLE": "0"}
    rundir = RunDir.create(tmp_path / "run")
    supervisor = Supervisor(
        typed,
        rundir=rundir,
        options=Options(),
        policy=Policy(),
        tell=lambda event: None,
        sink=lambda *said: None,
        environ=environ,
        remedying=Remembers(used, environ),
    )
    assert supervisor.run().exitcode == 0
    record = json.loads(rundir.run.read_bytes())
    assert record["environment"]["NCCL_P2P_DISABLE"] == "1" and record["command"] == ["sh", "-c", "exit 0"]


class Broken:
    """What is there to help, in a machine that has nothing left."""

    def at_start(self, tell):
        raise OSError(28, "No space left on device")

    def after(self, result, tell, cancelled):
        raise RuntimeError("can't start new thread")


def test_help_that_fails_ends_nothing(tmp_path):
    """Twice it fails for another reason, and the third attempt goes well."""
    script = tmp_path / "train.py"
    script.write_text("import sys; p = sys.argv[1]; n = len(open(p).read()); open(p, 'a').write('.'); sys.exit(0 if n == 2 else n + 3)")
    count = tmp_path / "count"
    count.write_text("")
    told = []
    command = Command(argv=(sys.executable, str(script), str(count)), python=sys.executable, name="train", world_size=None, port=None)
    supervisor = Supervisor(
        command,
        rundir=RunDir.create(tmp_path / "run"),
        options=Options(),
        policy=Policy(),
        tell=told.append,
        sink=lambda *said: None,
        remedying=Broken(),
    )
    assert supervisor.run().exitcode == 0
    said = [e.text for e in told if isinstance(e, events.Note)]
    assert sum("the training goes on as it was" in text for text in said) == 3


class Hangs:
    """A trial whose command takes no interrupt, with one below it that does not even share its session; and help that does not come back itself."""

    def __init__(self, pids):
        self.pids = pids

    def at_start(self, tell):
        return None

    def after(self, result, tell, cancelled):
        inner = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
        start = f"subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True)"
        outer = f"import subprocess, sys; p = {start}; print(p.pid, flush=True)\n{inner}"
        process = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, start_new_session=True, text=True)
        with process:
            self.pids += [process.pid, int(process.stdout.readline())]
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(0.3)
            process.wait()
        threading.Event().wait(60)


def interrupted_twice(path, told):
    pids = []
    command = Command(argv=("false",), python=sys.executable, name="t", world_size=None, port=None)
    supervisor = Supervisor(
        command,
        rundir=RunDir.create(path),
        options=Options(),
        policy=Policy(),
        tell=lambda event: None,
        sink=lambda *said: None,
        remedying=Hangs(pids),
    )
    told.send((supervisor.run().exitcode, pids))


def test_a_second_interrupt_ends_a_trial_at_once(tmp_path):
    # In a process of its own: all that it has started is ended.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=interrupted_twice, args=(tmp_path / "run", theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(300)
        exitcode, pids = ours.recv()
    finally:
        process.kill()
        process.join()
    assert exitcode == 130
    assert len(pids) == 2
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
