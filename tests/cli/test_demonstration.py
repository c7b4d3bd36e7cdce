"""The closing table of the demo, and what becomes of its runs when it is interrupted."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unhang.cli import demonstration
from unhang.records.rundir import RunDir
from unhang.report.console import Console
from unhang.testing.scenarios import SCENARIOS

LINES = {"dataloader-deadlock": "evaluation.py:43", "collective-mismatch": "evaluation.py:62", "rank0-guarded-collective": "checkpoint.py:120"}


def row(**fields) -> demonstration.Row:
    given = {
        "name": "undisturbed",
        "says": "",
        "ok": True,
        "problems": (),
        "found_s": None,
        "cause": None,
        "ranks": (),
        "where": None,
        "steps_lost": 0,
        "final_loss": 5.123456,
        "exitcode": 0,
        "elapsed_s": 1.0,
        "run_dir": "/r",
    }
    return demonstration.Row(**{**given, **fields})


def rows() -> list[demonstration.Row]:
    faults = [
        row(
            name=s.name,
            found_s=15.04 if s.name == "slow" else 8.44,
            cause=s.cause,
            ranks=(s.rank,),
            where=f"/r/{LINES.get(s.cause, 'train.py:78')} in f",
            steps_lost=12,
        )
        for s in SCENARIOS
    ]
    return [row(), *faults]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits(width):
    file = io.StringIO()
    demonstration._show(Console(file, width=width), rows(), 200.0)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert "…" not in file.getvalue()
    for s in SCENARIOS:
        line = next(line for line in lines if line.lstrip().startswith(f"{s.name} "))
        words = line.split()
        assert words[1:] == [
            *(("15", "s") if s.name == "slow" else ("8.4", "s")),
            s.cause,
            str(s.rank),
            LINES.get(s.cause, "train.py:78"),
            "12",
            "5.123456" if width == 120 else "5.1235",
            "ok" if width == 120 else "✓",
        ]
    assert lines[-1] == "8 of 8 runs as they should be, in 200 s."


def test_what_was_not_as_it_should_be_is_said_below():
    file = io.StringIO()
    bad = row(name="killed", ok=False, problems=("cause None, not host-oom-or-killed", "0 restarts"))
    demonstration._show(Console(file, width=80), [row(), bad], 5.0)
    assert "killed: cause None, not host-oom-or-killed; 0 restarts\n1 of 2 runs" in file.getvalue()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_demo_ends_what_it_runs(tmp_path: Path, number: int):
    started, pids = tmp_path / "started", tmp_path / "pids"
    # Stands for `unhang run`: ends in order when it is asked to.
    run = f"import os, signal, sys, pathlib\nsignal.signal(15, lambda *_: sys.exit(130))\npathlib.Path({str(pids)!r}).write_text(str(os.getpid()))\n"
    run += f"pathlib.Path({str(started)!r}).touch()\nsignal.pause()\n"
    code = (
        f"import sys\nfrom unhang.cli import demonstration\ndemonstration._call([sys.executable, '-c', {run!r}], any_exit=True)\nprint('went on')\n"
    )
    demo = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while not started.exists():
            assert time.monotonic() < deadline and demo.poll() is None
            time.sleep(0.02)
        demo.send_signal(number)
        out, _ = demo.communicate(timeout=300)
        assert (demo.returncode, out) == (128 + number, b"")
        with pytest.raises(ProcessLookupError):
            os.kill(int(pids.read_text()), 0)
    finally:
        demo.kill()
        demo.wait()


@pytest.mark.parametrize("name", ["exception", "killed"])
def test_a_rank_without_a_dump_is_a_problem_unless_it_cannot_answer(tmp_path: Path, name: str):
    scenario = next(s for s in SCENARIOS if s.name == name)
    rundir = RunDir.create(tmp_path / "run")
    entry = {"profiling_name": "gloo:all_reduce", "collective_seq_id": 1, "process_group": ("0", "default_pg"), "state": "scheduled", "frames": []}
    rundir.write_bytes(rundir.flight(1, 0), pickle.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": [entry]}))
    rundir.write_bytes(rundir.flight(1, 1), b"cut off")
    problems = demonstration._problems(row(run_dir=str(rundir.path)), tmp_path, scenario, None, restarts=1)
    assert ("no flight-recorder dump of [1]" in problems) == (name == "exception")
    rundir.flight(1, 0).unlink()
    assert any(
        p.startswith("no flight-recorder dump of [0")
        for p in demonstration._problems(row(run_dir=str(rundir.path)), tmp_path, scenario, None, restarts=1)
    )
