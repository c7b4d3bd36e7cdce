"""Processes that die while they shut down: what had finished before is not trained again."""

from __future__ import annotations

import os
import sys

import pytest

from unhang.launch import events
from unhang.launch.attempt import Options
from unhang.launch.command import resolve
from unhang.launch.supervise import Policy, Supervisor
from unhang.records.rundir import RunDir

FINISHED = "the training script had run to its end on all ranks: nothing is left to train"
SAFE = "the training script had finished on all ranks; results are safe"
# Whatever is registered runs after the script, as loggers and native libraries do.
SCRIPT = """
import atexit, os, sys, threading, time
rank = int(os.environ["RANK"])
with open(f"starts{{rank}}", "a") as file:
    file.write(".")
{how}
"""
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
ABORT = "atexit.register(os.abort); "


def supervised(tmp_path, monkeypatch, how, argv=(sys.executable, "train.py"), **alone):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT.format(how=how))
    told = []
    supervisor = Supervisor(
        resolve(argv),
        rundir=RunDir.create(tmp_path / "run"),
        options=Options(),
        policy=Policy(max_restarts=1),
        tell=told.append,
        sink=lambda *said: None,
        environ={**os.environ, **alone},
    )
    outcome = supervisor.run()
    drawn = [e.verdict.primary for e in told if isinstance(e, events.Drawn)]
    return outcome, drawn, [e.why for e in told if isinstance(e, events.GaveUp)]


@pytest.mark.parametrize(
    ("how", "exitcode"),
    [
        (ABORT, 134),
        (ABORT + "sys.exit(0)", 134),
        (ABORT + "threading.Thread(target=time.sleep, args=(0.5,)).start()", 134),
        ("sys.stdout = open('/dev/full', 'w'); print('done')", 120),
    ],
)
def test_a_crash_at_exit_is_no_reason_to_train_again(tmp_path, monkeypatch, how, exitcode):
    outcome, drawn, gave_up = supervised(tmp_path, monkeypatch, how, **ALONE)
    assert [(p.cause, p.standing, p.ranks) for p in drawn] == [("crash-at-exit", "established", (0,))]
    assert drawn[0].says.endswith(SAFE)
    assert (outcome.exitcode, outcome.attempts, gave_up) == (exitcode, 1, [FINISHED])


@pytest.mark.parametrize(
    "how",
    [
        "os.abort()",
        # The main thread has come to its end, another trains on.
        "threading.Thread(target=lambda: (time.sleep(0.5), os.abort())).start()",
        "raise SystemExit(1)",
        ABORT + "sys.exit(3)",
        ABORT + "raise RuntimeError('of the script')",
        ABORT + "sys.excepthook = lambda *_: None; raise RuntimeError('of the script')",
    ],
)
def test_a_script_that_failed_did_not_finish(tmp_path, monkeypatch, how):
    outcome, drawn, gave_up = supervised(tmp_path, monkeypatch, how, **ALONE)
    assert "crash-at-exit" not in [p.cause for p in drawn]
    assert (outcome.attempts, FINISHED in gave_up) == (2, False)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("others", "starts", "says"),
    [
        # torchrun ends them, while they shut down.
        ("atexit.register(time.sleep, 60)", 1, SAFE),
        ("time.sleep(60)", 2, "the training script had not finished on rank 0"),
    ],
)
def test_all_ranks_have_to_have_finished(tmp_path, monkeypatch, others, starts, says):
    how = f"if rank == 1:\n    time.sleep(1); {ABORT}\nelse:\n    {others}\n"
    argv = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py")
    outcome, drawn, gave_up = supervised(tmp_path, monkeypatch, how, argv)
    assert [(p.cause, p.standing, p.ranks) for p in drawn] == [("crash-at-exit", "established", (1,))] * starts
    assert drawn[0].says == f"rank 1 crashed with SIGABRT while shutting down; {says}"
    assert [len((tmp_path / f"starts{rank}").read_text()) for rank in range(2)] == [starts] * 2
    assert (outcome.exitcode, gave_up == [FINISHED]) == (1, starts == 1)
