"""What an incident's records name is read only where it is a file of the run directory."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from dataclasses import replace

import pytest

from unhang.diagnosis import run_history
from unhang.encoding import encode
from unhang.errors import RunDirError
from unhang.records import incident_view
from unhang.records.incident import Incident, LogRef, Missed, RankRecord
from unhang.records.rundir import MEMBER, RunDir, started


@pytest.fixture
def rundir(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    rundir.write(rundir.run, {"schema": "unhang/run/1"})
    (tmp_path / "secret.txt").write_text("password\n")
    return rundir


def load(rundir, *, log=None, **files):
    logs = () if log is None else (LogRef(path=log, bytes=100),)
    ranks = (RankRecord(rank=0, pid=1, host="h", **files),)
    incident = Incident(number=1, attempt=0, kind="hang", at_s=1.0, at="", cwd="/", command=("x",), ranks=ranks, logs=logs)
    rundir.write(rundir.incident(1), incident)
    return incident_view.load(rundir, 1, signatures={})


def missed(found):
    return {m.what: m.why for m in found.not_examined}


@pytest.mark.parametrize("name", ["../secret.txt", "{parent}/secret.txt", "logs/link", "logs/pipe", "logs"])
def test_logs_of_elsewhere_are_refused(rundir, name):
    (rundir.path / "logs").mkdir()
    (rundir.path / "logs" / "link").symlink_to(rundir.path.parent / "secret.txt")
    os.mkfifo(rundir.path / "logs" / "pipe")
    name = name.format(parent=rundir.path.parent)
    found = load(rundir, log=name)
    assert "is no file of this run directory" in missed(found)[f"the log {name}"]
    assert not any(found.last_lines.values())


def test_dumps_and_stacks_of_elsewhere_are_refused(rundir):
    found = missed(load(rundir, flight="/dev/zero", stacks="../secret.txt"))
    assert "is no file of this run directory" in found["the flight recorder of rank 0"]
    assert "is no file of this run directory" in found["the stacks of rank 0"]


def test_a_run_directory_that_goes_on_elsewhere_has_the_files_of_the_first(rundir, monkeypatch):
    """As it is made where the disk is full."""
    (rundir.path / "logs").mkdir()
    (rundir.path / "logs" / "rank0.err").write_text("the end\n")
    spare = RunDir.create(rundir.path.parent / "spare")
    monkeypatch.setattr(RunDir, "elsewhere", property(lambda _: spare.path))
    for name in ("run.json", "logs"):
        (spare.path / name).symlink_to(rundir.path / name)
    found = load(spare, log="logs/rank0.err")
    assert [line.text for line in found.last_lines["logs/rank0.err"]] == ["the end"]
    (spare.path / "out").symlink_to(rundir.path.parent / "secret.txt")
    assert "is no file of this run directory" in missed(load(spare, log="out"))["the log out"]


def dump(backend, group="0", done=True, seq=3):
    entry = {
        "record_id": 0,
        "pg_id": 0,
        "process_group": (group, ""),
        "collective_seq_id": seq,
        "profiling_name": f"{backend}:all_reduce",
        "state": "completed" if done else "scheduled",
        "retired": done,
        "time_created_ns": seq,
    }
    return pickle.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": [entry]})


def test_the_dump_that_torch_wrote_by_itself(rundir):
    rundir.flight_of_torch(0).mkdir(parents=True)
    (rundir.flight_of_torch(0) / "rank_0").write_bytes(dump("nccl"))
    found = load(rundir)
    assert found.ranks[0].flight is not None and "the flight recorder of rank 0" not in missed(found)
    assert found.ranks[0].record.flight == "flight/attempt-0/rank_0"
    # What was asked for is newer.
    rundir.write_bytes(rundir.flight(1, 0), dump("nccl", seq=9))
    assert load(rundir, flight="incidents/1/flight/rank_0").ranks[0].flight.calls["0"][0].seq == 9


def test_two_recorders_of_one_rank(rundir):
    path = rundir.flight(1, 0)
    rundir.write_bytes(path, dump("nccl"))
    rundir.write_bytes(path.parent / "cpu" / path.name, dump("gloo", done=False))
    found = load(rundir, flight=rundir.relative(path))
    assert {name: calls[0].backend for name, calls in found.ranks[0].flight.calls.items()} == {"0": "nccl", "cpu:0": "gloo"}
    assert (found.waits[0].group, found.waits[0].seq) == ("cpu:0", 3)
    assert MEMBER.fullmatch("run/incidents/1/flight/cpu/rank_0")


def test_a_file_that_many_ranks_name_is_read_once(rundir):
    """A record of a few bytes may name a file of any size."""
    (rundir.path / "stacks.json").write_text('{"source": "py-spy", "threads": []}')
    (rundir.path / "dump").write_bytes(pickle.dumps({"entries": []}))
    ranks = tuple(RankRecord(rank=n, pid=n, host="h", flight="dump", stacks="logs/../stacks.json") for n in range(3))
    (rundir.path / "logs").mkdir()
    incident = Incident(number=1, attempt=0, kind="hang", at_s=1.0, at="", cwd="/", command=("x",), ranks=ranks, logs=())
    rundir.write(rundir.incident(1), incident)
    found = incident_view.load(rundir, 1, signatures={})
    assert [(r.dump is None, r.stacks is None) for r in found.ranks] == [(False, False), (True, True), (True, True)]
    assert all("several ranks name" in missed(found)[f"the {what} of rank 2"] for what in ("stacks", "flight recorder"))


@pytest.mark.parametrize("name", ["run.json", "incident"])
@pytest.mark.parametrize("data", [b'{"a": ' + b"[" * 100_000, b'{"schema": "\xff"}'])
def test_what_is_nested_deep_or_no_text_is_damaged(rundir, name, data):
    path = rundir.run if name == "run.json" else rundir.incident(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    with pytest.raises(RunDirError):
        rundir.read(path, Incident)


def test_of_what_was_made_large_little_is_read(rundir, tmp_path):
    """A few kilobytes in an archive may be gigabytes of it."""
    incident = Incident(number=1, attempt=0, kind="hang", at_s=1.0, at="", cwd="/", command=("x",), ranks=(RankRecord(rank=0, pid=1, host="h"),))
    rundir.write(rundir.incident(1), incident)
    for path, begin in (
        (rundir.run, b'{"schema": "unhang/run/1", "x": "'),
        (rundir.fatal_of(0, 0), b"Fatal Python error: x\n"),
        (rundir.events, b"{"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as f:
            f.write(begin)
            f.truncate(1 << 29)
    tracemalloc.start()
    with pytest.raises(RunDirError, match="larger than"):
        rundir.read(rundir.run, Incident)
    started(rundir.path)
    incident_view.load(rundir, 1, signatures={})
    run_history.read(rundir.events, source="")
    assert tracemalloc.get_traced_memory()[1] < 200_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    "fields",
    [
        {"ranks": [{"rank": n, "pid": 1, "host": ""} for n in range(20_000)]},
        {"ranks": [{"rank": 10**9, "pid": 1, "host": ""}]},
        {"ranks": [{"rank": 0, "pid": 1, "host": "", "groups": {str(n): {"enqueued": 1, "completed": 0} for n in range(20_000)}}]},
        {"ranks": [{"rank": 0, "pid": 1, "host": "", "children": [{"pid": n, "state": "S"} for n in range(9_000)]}]},
        {"missed": [{"what": "", "why": ""}] * 20_000},
        {"kernel": "kernel\0.txt"},
        {"logs": [{"path": "run.json", "bytes": 1}] * 20_000},
    ],
)
def test_an_incident_cannot_list_more_than_its_size_describes(rundir, fields):
    incident = Incident(number=1, attempt=0, kind="hang", at_s=1.0, at="", cwd="/", command=("x",))
    rundir.incident(1).parent.mkdir(parents=True)
    rundir.incident(1).write_bytes(json.dumps(json.loads(encode(incident)) | fields, separators=(",", ":")).encode())
    with pytest.raises(RunDirError, match=r"more ranks or logs than|no file can have"):
        incident_view.load(rundir, 1, signatures={})


def test_evidence_missing_of_one_rank_says_nothing_of_another(rundir):
    """Also not of one whose number its number begins with."""
    ranks = tuple(RankRecord(rank=n, pid=1, host="h") for n in range(200))
    incident = Incident(number=1, attempt=0, kind="hang", at_s=1.0, at="", cwd="/", command=("x",), ranks=ranks)
    rundir.write(rundir.incident(1), replace(incident, missed=(Missed(what="stacks of rank 12", why="py-spy is not installed"),)))
    found = incident_view.load(rundir, 1, signatures={})
    told = missed(found)
    assert told["stacks of rank 12"] == "py-spy is not installed" and "the stacks of rank 12" not in told
    assert all(told[f"the stacks of rank {n}"] == "none was taken" for n in range(200) if n != 12)
    assert found.rank(199).number == 199
