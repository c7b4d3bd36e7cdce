"""`unhang why --all` shows where the ranks stand: of a run directory, and of stacks that logs hold."""

from __future__ import annotations

from tests.diagnosis.conftest import Builder, Entry, dump, in_collective, steps, user
from tests.records.test_stacks_in_logs import PY_SPY
from typer.testing import CliRunner

from unhang.cli.app import app


def shown(*arguments):
    done = CliRunner().invoke(app, ["why", "--lang", "en", *map(str, arguments)])
    assert done.exit_code == 1, done.output
    return done.stdout


def test_of_a_run_directory(tmp_path):
    b = Builder(tmp_path / "run")
    frames = in_collective("all_reduce", user(40, "main"), user(20, "step"))
    for number in (0, 1, 2):
        b.rank(number, frames=frames, entries=[*steps(5), Entry(seq=6, done=False, frames=frames)], world=4)
    here = user(61, "load", code="batch = next(it)  # api_key=hf_abcdefghijklmnopqrstuvwxyz0123456789")
    b.rank(3, frames=(user(40, "main"), here), entries=steps(5), world=4)
    rundir = b.write()
    rows = [row.rstrip() for row in shown("--all", rundir.path).split("where the main threads stand\n")[1].splitlines()]
    assert rows[:4] == ["  ranks 0-3 (4)", "    train.py:40 in main", "    rank 3", rows[3]]
    assert rows[3].startswith("      train.py:61 in load  batch = next(it)") and "hf_abcdef" not in rows[3]
    assert rows[4:6] == ["    ranks 0-2 (3)", "      train.py:20 in step"]
    assert rows[-1] == "      torch/distributed/distributed_c10d.py:3252 in all_reduce"
    assert "main threads" not in shown(rundir.path)


def test_of_stacks_in_logs(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.log").write_text(f"epoch 1\n{PY_SPY}RuntimeError: CUDA error: an illegal memory access was encountered\n")
    told = shown("--all", tmp_path)
    assert "stacks in the logs" in told and "ranks 0, 1 (2)" in told and "train.py:20 in step" in told


def test_a_stack_tells_why_a_rank_is_missing_in_flight_recorders(tmp_path):
    frames = in_collective("all_reduce", user(40, "main"), user(20, "step"))
    for number in (0, 1):
        (tmp_path / f"nccl_trace_rank_{number}").write_bytes(dump([*steps(5), Entry(seq=6, done=False, frames=frames)], world=3))
    (tmp_path / "nccl_trace_rank_2").write_bytes(dump(steps(5), world=3))
    alone = shown(tmp_path)
    assert "collective-timeout" in alone.splitlines()[0] and "why is not in evidence" in alone
    (tmp_path / "pyspy_rank2.txt").write_text('Thread 24851 (idle): "MainThread"\n    read (dataset.py:88)\n    <module> (fr.py:23)\n')
    told = shown(tmp_path)
    assert told.splitlines()[0].split() == ["✗", "process-stuck", "likely"]
    assert "rank 2 stands at dataset.py:88 in read" in told and "why is not in evidence" not in told and "collective-timeout" in told
    assert "nothing in it was recognised" not in told and "stacks, process states" not in told and "process states: only logs, stacks" in told


def test_of_several_missing_ranks_each_is_held_up_by_its_own(tmp_path):
    frames = in_collective("all_reduce", user(40, "main"), user(20, "step"))
    for number in (0, 1):
        (tmp_path / f"nccl_trace_rank_{number}").write_bytes(dump([*steps(5), Entry(seq=6, done=False, frames=frames)], world=4))
    loader = "    _try_get_data (torch/utils/data/dataloader.py:1251)\n    __next__ (torch/utils/data/dataloader.py:701)\n"
    for number, where in ((2, "    read (dataset.py:88)\n"), (3, loader)):
        (tmp_path / f"nccl_trace_rank_{number}").write_bytes(dump(steps(5), world=4))
        (tmp_path / f"pyspy_rank{number}.txt").write_text(f'Thread 24851 (idle): "MainThread"\n{where}    <module> (fr.py:23)\n')
    told = " ".join(shown("--all", tmp_path).split())
    assert told.startswith("✗ process-stuck likely") and "rank 2 stands at dataset.py:88 in read" in told
    assert "dataloader-deadlock" in told and "in its data loader" in told


def test_stacks_alone_are_never_called_healthy(tmp_path):
    (tmp_path / "pyspy_rank0.txt").write_text("Thread 24851 (idle)\n    read (dataset.py:88)\n    <module> (fr.py:23)\n")
    assert "rank 0 stands at dataset.py:88 in read" in shown(tmp_path)


def test_where_names_of_dumps_tell_no_rank_a_stack_explains_nothing(tmp_path):
    """The rank that is missing is in alpha.pkl, which is not known to be rank 2."""
    frames = in_collective("all_reduce", user(40, "main"), user(20, "step"))
    for name in ("beta", "gamma"):
        (tmp_path / f"{name}.pkl").write_bytes(dump([*steps(5), Entry(seq=6, done=False, frames=frames)], world=3))
    (tmp_path / "alpha.pkl").write_bytes(dump(steps(5), world=3))
    for rank in range(3):
        (tmp_path / f"pyspy_rank{rank}.txt").write_text('Thread 24851 (idle): "MainThread"\n    read (dataset.py:88)\n    <module> (fr.py:23)\n')
    told = shown(tmp_path)
    assert "collective-timeout" in told.splitlines()[0] and "process-stuck likely" not in " ".join(told.split())
    assert "rank 0 is alpha.pkl" in told and "which dump is of which rank is not known" in told


def test_a_stack_from_before_does_not_tell_why_a_rank_is_missing_in_flight_recorders(tmp_path):
    frames = in_collective("all_reduce", user(40, "main"), user(20, "step"))
    (tmp_path / "nccl_trace_rank_0").write_bytes(dump([*steps(5), Entry(seq=6, done=False, frames=frames)], world=2))
    (tmp_path / "nccl_trace_rank_1").write_bytes(dump(steps(5), world=2))
    stack = 'Thread 24851 (idle): "MainThread"\n    read (dataset.py:88)\n    <module> (fr.py:23)\n'
    log = tmp_path / "rank1.log"
    log.write_text(f"{stack}2026-11-20 09:10:01,000 INFO step=1 loss=2.1\n")
    told = shown(tmp_path)
    assert "collective-timeout" in told.splitlines()[0] and "why is not in evidence" in " ".join(told.split())
    assert ":1): taken earlier: training steps follow it" in " ".join(told.split())
    # Whether a line was printed in the wait, nothing tells here.
    log.write_text(f"{stack}2026-11-20 09:10:01,000 INFO loaded\n")
    assert shown(tmp_path).splitlines()[0].split() == ["✗", "process-stuck", "possible"]
