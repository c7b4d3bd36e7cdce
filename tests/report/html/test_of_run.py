"""A run directory as a scene: who is where, who is missing, what is not known; and nothing that stands outside the directory."""

from __future__ import annotations

import os
import pickle

import pytest

from unhang.diagnosis.why import judge
from unhang.frames import Frame
from unhang.model import Counters, Verdict
from unhang.records.incident import Activity, Ended, Incident, Raised, RankRecord, Stacks, ThreadStack
from unhang.records.rundir import RunDir
from unhang.report.html import render
from unhang.report.html.of_run import gather
from unhang.report.html.scene import State

CWD = "/home/u/p"
VERDICT = Verdict(primary=None)
IDLE = Activity(window_s=2.0, state="S", cpu_share=0.0, tree_cpu_share=0.0, switches_per_s=0.0)
STOPPED = Activity(window_s=2.0, state="T", cpu_share=0.0, tree_cpu_share=0.0, switches_per_s=0.0)
TORCH = Frame(file="/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line=2800, name="all_reduce")


def line(number: int, name: str = "step") -> Frame:
    return Frame(file=f"{CWD}/train.py", line=number, name=name)


def dump(upto: int, *, last: str = "all_reduce", world: int = 4) -> bytes:
    entries = [
        {
            "record_id": i,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": i,
            "profiling_name": f"nccl:{last if i == upto else 'all_reduce'}",
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "state": "completed" if i < 5 else "scheduled",
            "time_created_ns": 1_795_000_000_000_000_000 + i * 1_000_000,
            "frames": [{"filename": f"{CWD}/train.py", "line": 20, "name": "step"}],
        }
        for i in range(1, upto + 1)
    ]
    ranks = f"[{', '.join(map(str, range(world)))}]"
    return pickle.dumps({"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}, "entries": entries}, protocol=2)


@pytest.fixture
def run(tmp_path):
    """Four ranks: 0 and 1 wait in #5, 2 never came to it, 3 left nothing."""
    rundir = RunDir.create(tmp_path / "t5-20261122")
    rundir.write(
        rundir.run,
        {"schema": "unhang/run/1", "command": ["train.py", "--token", "hf_abcdefghijklmnopqrstuvwxyz"], "environment": {"WANDB_API_KEY": "0" * 40}},
    )
    rundir.write(rundir.host, {"host": "vm", "parts": {"memory": {"facts": {"total_bytes": 64 * 1024**3, "unread": []}}}})
    rundir.events.write_bytes(b"")

    def write(**changed):
        ranks, at = [], "2026-11-22T06:00:00.000+00:00"
        for rank in range(4):
            record = {"rank": rank, "pid": 10 + rank, "host": "vm", "world_size": 4, "step": 7, "activity": IDLE}
            if rank < 3:
                rundir.write_bytes(rundir.flight(1, rank), dump(4 if rank == 2 else 5))
                frames = (line(40, "main"), line(20), TORCH) if rank < 2 else (line(40, "main"), line(99, "save"))
                rundir.write(rundir.stacks(1, rank), Stacks(source="process", threads=(ThreadStack(name="MainThread", main=True, frames=frames),)))
                record |= {"flight": rundir.relative(rundir.flight(1, rank)), "stacks": rundir.relative(rundir.stacks(1, rank))}
            ranks.append(RankRecord(**(record | changed.get(f"rank{rank}", {}))))
        rundir.write(
            rundir.incident(1),
            Incident(number=1, attempt=0, kind="hang", at_s=9.0, at=at, cwd=CWD, command=("x",), ranks=tuple(ranks)),
        )
        return rundir

    return write


def concerns(scene):
    return {r.rank: r.concern for r in scene.ranks}


def test_who_waits_who_is_missing_and_of_whom_nothing_is_known(run):
    rundir = run()
    scene = gather(rundir)
    assert concerns(scene) == {0: "waiting", 1: "waiting", 2: "missing", 3: "unknown"}
    assert [r.unseen for r in scene.ranks] == [False, False, False, True]
    (parted,) = scene.divergences
    assert (parted.number, parted.missing, parted.odd) == (5, (2,), ())
    assert [(s.doing, s.ranks) for s in parted.sides] == [("missing", (2,)), ("waiting", (0, 1)), ("unknown", (3,))]
    missing = next(t for t in scene.tracks if t.rank == 2)
    assert State(missing.states[-1]) == State.MISSING and missing.first + len(missing.states) - 1 == 5
    assert [(g.ranks, g.shared, [x.name for x in g.lines]) for g in scene.stacks] == [
        ((2,), 1, ["main", "save"]),
        ((0, 1), 1, ["main", "step", "all_reduce"]),
    ]
    assert scene.title == "t5-20261122" and scene.taken == "2026-11-22 06:00:00 UTC"
    page = render(judge(rundir), scene)
    assert "never came" in page and "train.py:99" in page


def test_credentials_are_not_in_the_page(run):
    page = render(judge(run()), gather(run()))
    assert "hf_abc" not in page and "0" * 40 not in page and page.count("[redacted]") == 2 and "64 GiB" in page


def test_a_rank_that_issued_something_else(run):
    rundir = run()
    rundir.write_bytes(rundir.flight(1, 2), dump(5, last="broadcast"))
    scene = gather(rundir)
    assert scene.divergences[0].odd == (2,) and concerns(scene)[2] == "odd"
    assert scene.divergences[0].sides[0].operation == "broadcast" and scene.divergences[0].sides[0].doing == "odd"


def test_how_ranks_ended(run):
    raised = Raised(type="ValueError", text="bad batch\nmore", frames=(line(5, "load"),), at_s=3.0)
    scene = gather(
        run(
            rank0={"ended": Ended(at_s=4.0, exitcode=-9)},
            rank1={"ended": Ended(at_s=4.0, exitcode=-15, by_launcher=True)},
            rank2={"raised": raised, "ended": Ended(at_s=4.0, exitcode=1)},
            rank3={"activity": STOPPED},
        )
    )
    assert concerns(scene) == {0: "failed", 1: "ended", 2: "failed", 3: "stopped"}
    says = {r.rank: r.says for r in scene.ranks}
    assert says == {0: "ended by signal 9", 1: "ended by the launcher by signal 15", 2: "ValueError: bad batch", 3: "stopped (SIGSTOP)"}
    assert [r.exitcode for r in scene.ranks] == [-9, -15, 1, None] and scene.ranks[2].where == "train.py:5 in load"


def test_counters_alone_make_no_divergence_that_is_drawn(run):
    none = {"flight": None, "stacks": None}
    ahead, behind = {"groups": {"0": Counters(enqueued=5, completed=4)}}, {"groups": {"0": Counters(enqueued=4, completed=4)}}
    scene = gather(run(rank0=none | ahead, rank1=none | ahead, rank2=none | behind))
    assert scene.tracks == () and scene.divergences == () and scene.ranks[2].concern == "unknown"


@pytest.mark.parametrize("what", ["flight", "stacks", "incident", "run", "host"])
@pytest.mark.parametrize("how", ["garbage", "gone", "outside", "pipe"])
def test_what_cannot_be_read_is_left_out(run, what, how, tmp_path):
    rundir = run()
    path = {"flight": rundir.flight(1, 0), "stacks": rundir.stacks(1, 0), "incident": rundir.incident(1), "run": rundir.run, "host": rundir.host}[
        what
    ]
    kept = path.read_bytes()
    path.unlink()
    if how == "garbage":
        path.write_bytes(b"\x80\x02}garbage")
    elif how == "outside":
        (tmp_path / "elsewhere").write_bytes(kept)
        path.symlink_to(tmp_path / "elsewhere")
    elif how == "pipe":
        # Whoever reads it waits for ever.
        os.mkfifo(path)
    scene = gather(rundir)
    assert {t.rank for t in scene.tracks} == {"flight": {1, 2}, "incident": set()}.get(what, {0, 1, 2})
    assert {g.ranks for g in scene.stacks} == {"stacks": {(1,), (2,)}, "incident": set()}.get(what, {(0, 1), (2,)})
    if (what, how) == ("run", "outside"):
        # That is how a run goes on whose disk was full.
        return
    assert [bool(f.facts) for f in scene.facts] == {"run": [False, True], "host": [True, True, False]}.get(what, [True, True, True])
    assert "Timeline" in render(VERDICT, scene)


def test_a_run_without_an_incident(tmp_path):
    rundir = RunDir.create(tmp_path / "r")
    rundir.write(rundir.run, {"schema": "unhang/run/1", "torch": "2.13"})
    scene = gather(rundir)
    assert scene.tracks == () and scene.facts[0].facts[0].value == "2.13"
