"""The title above a verdict holds for the line beneath it, and what happened after that line does not push it aside."""

from __future__ import annotations

import json

import typer
from tests.tables import for_each
from typer.testing import CliRunner

from unhang.cli import why

KILLED = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 5120) of binary: /usr/bin/python3"
RAISED = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/job/train.py", line 12, in main
[rank1]:     for batch in loader:
[rank1]: RuntimeError: {}
"""
SLURM = "slurmstepd: error: *** JOB 47 ON node7 CANCELLED AT 2026-11-03T10:00:01 DUE TO {} ***"
REDUCTION = "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has"


@for_each(
    ("log", "cause", "title", "remedy"),
    [
        (f"{SLURM.format('TIME LIMIT')}\n{KILLED}", "ended-by-scheduler", "time limit", "more-time"),
        (f"{KILLED}\n{SLURM.format('TIME LIMIT')}", "ended-by-scheduler", "时限", "more-time"),
        (f"{SLURM.format('PREEMPTION')}\n{KILLED}", "ended-by-scheduler", "preemption", "requeue"),
        ("=>> PBS: job killed: walltime 3628 exceeded limit 3600", "ended-by-scheduler", "The scheduler ended the job", "more-time"),
        (f"SignalException: Process 47 got signal: 1\n{KILLED}", "terminal-closed", "terminal or ssh session was closed", "detach"),
        (RAISED.format("DataLoader worker (pid(s) 372) exited unexpectedly"), "loader-worker-died", "A worker of a data loader died", "no-workers"),
        (RAISED.format("DataLoader worker (pid 8) is killed by signal: Aborted. "), "loader-worker-died", "worker 已死亡", "no-workers"),
        (RAISED.format("Pin memory thread exited unexpectedly"), "loader-worker-died", "data loader died", "no-pinning"),
        (RAISED.format("DataLoader timed out after 120 seconds"), "dataloader-deadlock", "A data loader is stuck", "start-method"),
        (RAISED.format(REDUCTION), "unused-parameters", "took no part in the loss", "use-all-parameters"),
        (RAISED.format("Rank 1 exhausted all inputs."), "collective-mismatch", "different numbers of them", "even-inputs"),
        (
            RAISED.format("DDP expects same model across all ranks, but Rank 1 has 338 params, while rank 0 has inconsistent 336 params."),
            "out-of-sync",
            "different models",
            "same-model",
        ),
        (KILLED, "host-oom-or-killed", "A process was killed", "find-the-killer"),
        ("RuntimeError: DataLoader worker (pid 991) is killed by signal: Killed. ", "host-oom-or-killed", "A process was killed", "find-the-killer"),
    ],
)
def test_the_title_is_true(tmp_path, log, cause, title, remedy):
    app = typer.Typer()
    app.callback()(lambda: None)
    why.register(app)
    path = tmp_path / "train.log"
    path.write_text(f"step 119 loss 2.31\n{log}\n")
    lang = "en" if title.isascii() else "zh"
    primary = json.loads(CliRunner().invoke(app, ["why", str(path), "--json"]).stdout)["primary"]
    assert (primary["cause"], primary["remedies"][0]["id"]) == (cause, remedy)
    assert title in " ".join(CliRunner().invoke(app, ["why", str(path), "--lang", lang], env={"COLUMNS": "200"}).stdout.split())
