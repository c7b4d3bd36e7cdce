"""All dumps of a job at once, some of them damaged."""

from __future__ import annotations

import gzip
import json
import pickle
import random

import pytest
from tests.flight import jobs

from unhang.flight import read_all
from unhang.flight.read_all import flight, record_all
from unhang.flight.wait_graph import judge


def dumps(world=4):
    plan = jobs.Plan(world=world, steps=30)
    calls = plan.calls(1)
    return jobs.run(plan, {1: [*calls[:40], None]})


@pytest.mark.parametrize("few_bytes", [0, 1 << 30])
def test_processes_and_none_read_the_same(tmp_path, monkeypatch, few_bytes):
    monkeypatch.setattr(read_all, "_FEW_BYTES", few_bytes)
    for rank, raw in dumps().items():
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(raw, protocol=2))
    (tmp_path / "trace_rank_9").write_bytes(b"\x80\x02}q\x00(X\x07\x00\x00\x00version")
    (tmp_path / "trace_rank_8").write_bytes(b"\x80\x04Nr\xff\xff\xff\x0f.")
    paths = list(tmp_path.iterdir())
    random.Random(few_bytes).shuffle(paths)
    found = record_all(paths)
    assert sorted(found.recordings) == [0, 1, 2, 3] and not found.unsure
    assert sorted(n.what.rpartition("_")[2] for n in found.not_examined) == ["8", "9"] and all(n.unread for n in found.not_examined)
    assert (judge(found.recordings).kind, judge(found.recordings).ranks) == ("missing", (1,))
    again = flight(found.recordings[2])
    assert again is not None and sum(map(len, again.calls.values())) == found.recordings[2].entries


def test_two_dumps_of_one_rank(tmp_path):
    raw = dumps()[0]
    (tmp_path / "rank_0").write_bytes(pickle.dumps(raw))
    (tmp_path / "rank_0.gz").write_bytes(gzip.compress(pickle.dumps(raw | {"entries": raw["entries"][:3]})))
    (tmp_path / "host.txt").write_text(json.dumps({"0": raw | {"entries": raw["entries"][:2]}, "1": raw}))
    found = record_all([tmp_path / "rank_0", tmp_path / "host.txt"])
    assert found.recordings[0].entries == len(raw["entries"]) and found.recordings[1].place == 1
    assert any("another dump of rank 0" in n.why for n in found.not_examined)
    assert flight(found.recordings[1]) is not None


def test_a_file_that_has_gone(tmp_path):
    (tmp_path / "rank_0").write_bytes(pickle.dumps(dumps()[0]))
    found = record_all([tmp_path / "rank_0", tmp_path / "rank_1"])
    assert list(found.recordings) == [0] and "No such file" in found.not_examined[0].why
    (tmp_path / "rank_0").unlink()
    assert flight(found.recordings[0]) is None


def test_two_recorders_of_each_rank(tmp_path):
    """NCCL's dumps, and beside them Gloo's, in which rank 1 never came to the third."""
    (tmp_path / "cpu").mkdir()
    world = {"0": ("default_pg", [0, 1, 2])}
    for rank in range(3):
        nccl = [jobs.entry(n, ("0", "default_pg"), n, "all_reduce", 4, 20, "completed", t=1000 * n) for n in (1, 2, 3, 4)]
        gloo = [
            jobs.entry(n, ("0", "default_pg"), n, "barrier", 1, 30, "completed" if n < 3 else "scheduled", t=10_000 * n, backend="gloo")
            for n in (1, 2, 3)
        ]
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(jobs.dump(nccl, world)))
        (tmp_path / "cpu" / f"rank_{rank}").write_bytes(pickle.dumps(jobs.dump(gloo[: 2 if rank == 1 else 3], pg_config={})))
    found = record_all(sorted(tmp_path.rglob("rank_*")))
    outcome = judge(found.recordings)
    assert (outcome.kind, outcome.ranks, outcome.group_name, outcome.number) == ("missing", (1,), "cpu:0", 3)
    assert outcome.call == "barrier" and not found.unsure
    assert {name: len(calls) for name, calls in flight(found.recordings[0]).calls.items()} == {"0": 4, "cpu:0": 3}


def test_of_two_attempts_the_newer_one_is_taken(tmp_path):
    """The older one has more entries, and a rank that the newer one lacks."""
    first = dumps()
    second = {
        r: raw | {"entries": [e | {"time_created_ns": e["time_created_ns"] + 10**12} for e in raw["entries"][:9]]}
        for r, raw in first.items()
        if r != 2
    }
    for attempt, found in enumerate((first, second)):
        (tmp_path / f"attempt_{attempt}").mkdir()
        for rank, raw in found.items():
            (tmp_path / f"attempt_{attempt}" / f"rank_{rank}").write_bytes(pickle.dumps(raw))
    found = record_all(sorted(tmp_path.rglob("rank_*")))
    assert {r: recording.entries for r, recording in found.recordings.items()} == dict.fromkeys((0, 1, 3), 9) and not found.unsure
    assert [(n.what, "ranks 0, 1, 3" in n.why) for n in found.not_examined] == [(str(tmp_path / "attempt_0"), True)]


def test_copies_in_another_folder_or_format_are_the_same_dumps(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    for rank, raw in dumps().items():
        (tmp_path / "a" / f"rank_{rank}").write_bytes(pickle.dumps(raw))
        (tmp_path / "a" / f"rank_{rank}.json").write_text(json.dumps(raw))
    (tmp_path / "b" / "rank_1.bak").write_bytes(pickle.dumps(dumps()[1]))
    found = record_all([p for p in sorted(tmp_path.rglob("*")) if p.is_file()])
    assert sorted(found.recordings) == [0, 1, 2, 3] and not found.unsure and judge(found.recordings).ranks == (1,)
    assert len(found.not_examined) == 5 and all("too" in n.why for n in found.not_examined)


def test_one_list_for_each_host(tmp_path):
    raw = dumps()
    for host in range(2):
        (tmp_path / f"node{host}.json").write_text(json.dumps([raw[2 * host], raw[2 * host + 1]]))
    found = record_all(sorted(tmp_path.iterdir()))
    assert sorted(found.recordings) == [0, 1, 2, 3] and found.unsure and judge(found.recordings).ranks == (1,)
    again = flight(found.recordings[3])
    assert again is not None and sum(map(len, again.calls.values())) == len(raw[3]["entries"])


def test_numbers_that_no_job_has(tmp_path):
    raw = dumps()
    for rank in range(4):
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(raw[rank] | {"rank": (-5, 10**15, None, True)[rank]}))
    (tmp_path / "rank_999999999").write_bytes(pickle.dumps(raw[0]))
    found = record_all(sorted(tmp_path.iterdir()))
    assert sorted(found.recordings) == [0, 1, 2, 3] and "no job has that many" in found.not_examined[0].why
    far = {r: raw[r] | {"pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1, 40000000000]"}}} for r in raw}
    for rank in range(4):
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(far[rank]))
    assert judge(record_all([tmp_path / f"rank_{r}" for r in range(4)]).recordings).members == (0, 1, 2, 3)


@pytest.mark.parametrize("few_bytes", [0, 1 << 30])
def test_what_is_drawn_is_made_where_the_dump_is_read(tmp_path, monkeypatch, few_bytes):
    """Each file is read once, in whichever process."""
    monkeypatch.setattr(read_all, "_FEW_BYTES", few_bytes)
    for rank, raw in dumps().items():
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(raw, protocol=2))
    read = []
    opened = read_all.opened
    monkeypatch.setattr(read_all, "opened", lambda path, **more: read.append(path) or opened(path, **more))
    found = record_all(sorted(tmp_path.iterdir()), drawn=True)
    # In processes of their own; one with threads is not forked.
    assert len(read) in (0, 4)
    assert {rank: sum(len(lane.ends) for of in lanes for lane in of.lanes) for rank, lanes in found.lanes.items()} == {
        rank: r.entries for rank, r in found.recordings.items()
    }
    # What ranks have in common is held once.
    one, other = (found.lanes[rank][0].lanes[0] for rank in (0, 2))
    assert one.ops is other.ops and one.sites is other.sites and one.group is other.group
    assert record_all(sorted(tmp_path.iterdir())).lanes == {}


def test_a_dump_that_cannot_be_drawn_is_read_all_the_same(tmp_path, monkeypatch):
    def fails(*args, **more):
        raise ValueError

    monkeypatch.setattr(read_all, "lanes_of", fails)
    for rank, raw in dumps().items():
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(raw))
    (tmp_path / "rank_9").write_bytes(pickle.dumps({"entries": [7]}))
    paths = sorted(tmp_path.iterdir())
    found, without = record_all(paths, drawn=True), record_all(paths)
    assert sorted(found.recordings) == [0, 1, 2, 3] and found.lanes == {} and found.not_examined == without.not_examined


def test_what_is_drawn_of_a_second_recorder(tmp_path):
    test_two_recorders_of_each_rank(tmp_path)
    found = record_all(sorted(tmp_path.rglob("rank_*")), drawn=True)
    assert [(lane.group.name, lane.gloo, len(lane.ends)) for of in found.lanes[0] for lane in of.lanes] == [("0", False, 4), ("cpu:0", True, 3)]


def test_so_much_is_drawn_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(read_all, "_MOST_DRAWN", 160)
    monkeypatch.setattr(read_all, "_LEAST_DRAWN", 10)
    for rank, raw in dumps(8).items():
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(raw))
    found = record_all(sorted(tmp_path.iterdir()), drawn=True)
    assert all(r.entries > 20 for r in found.recordings.values() if r.rank != 1)
    for rank, (of,) in found.lanes.items():
        assert sum(len(lane.ends) for lane in of.lanes) <= 20 and of.left_out == max(0, found.recordings[rank].entries - 20)


@pytest.mark.parametrize("summed", [False, True])
def test_a_newer_run_is_taken_although_an_older_one_in_the_folder_has_more_entries(tmp_path, summed):
    today = {
        r: raw | {"entries": [e | {"time_created_ns": e["time_created_ns"] + 10**14, "state": "scheduled"} for e in raw["entries"][:9]]}
        for r, raw in dumps().items()
    }
    for prefix, found in (("nccl_trace_rank_", dumps()), ("comm_lib_trace_rank_", today)):
        for rank, raw in found.items():
            (tmp_path / f"{prefix}{rank}").write_bytes(pickle.dumps(raw))
    # Of today's run a second look, taken while it went on, with less in it.
    (tmp_path / "early_rank_0").write_bytes(pickle.dumps(today[0] | {"entries": today[0]["entries"][:5]}))
    # One without a call may be of any time.
    (tmp_path / "off_rank_0").write_bytes(pickle.dumps(today[0] | {"entries": []}))
    paths = sorted(tmp_path.iterdir())
    if summed:
        paths = [read_all.sum_up(paths[n::2], tmp_path / "d", f"node{n}", clean=str).path for n in range(2)]
    found = record_all(paths)
    assert {r: recording.entries for r, recording in found.recordings.items()} == dict.fromkeys(range(4), 9)
    told = [n.why for n in found.not_examined]
    assert any("a newer dump of rank 0" in why or "a newer dump of ranks 0" in why for why in told)
    assert any("another dump of rank 0 was taken, of the same time and with more or newer entries" in why for why in told)


def named_by(tmp_path, number, world=4):
    """The dumps of a job in which rank 1 is missing, by another number."""
    for rank, raw in dumps(world).items():
        (tmp_path / f"trace_rank_{number(rank)}").write_bytes(pickle.dumps(raw))
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize("summed", [False, True])
def test_a_dump_whose_name_says_a_rank_outside_its_own_groups_is_left_out(tmp_path, summed):
    raw = dumps()[3]
    raw["entries"][-1]["input_sizes"] = [[99]]
    named_by(tmp_path, int)
    for number in (9, 1_000_000):
        (tmp_path / f"trace_rank_{number}").write_bytes(pickle.dumps(raw))
    paths = sorted(tmp_path.iterdir())
    if summed:
        paths = [read_all.sum_up(paths, tmp_path / "d", "node0", clean=str).path]
    found = record_all(paths)
    assert sorted(found.recordings) == [0, 1, 2, 3] and not found.unsure
    assert [n.why.split(":")[0] for n in found.not_examined] == [
        f"its name says rank {number}, and its own configuration has ranks 0 to 3" for number in (9, 1_000_000)
    ]
    assert (judge(found.recordings).kind, judge(found.recordings).ranks) == ("missing", (1,))


@pytest.mark.parametrize("first", [1, 8])
def test_names_that_count_from_another_number_on_tell_no_rank(tmp_path, first):
    found = record_all(named_by(tmp_path, lambda rank: rank + first))
    assert sorted(found.recordings) == [0, 1, 2, 3] and found.unsure
    assert (judge(found.recordings).kind, judge(found.recordings).ranks) == ("missing", (1,))
    assert found.recordings[1].source.endswith(f"trace_rank_{1 + first}") and flight(found.recordings[1]) is not None
