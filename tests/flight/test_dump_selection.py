"""Dumps that are copies, of other jobs, or called as a rank that they are not of: real ones, as they are collected."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil

import pytest
from tests.cli.test_why_real_dumps import dumps as real_dumps
from tests.flight import jobs

from unhang.flight.dump_selection import moments_of
from unhang.flight.read_all import record_all, sum_up
from unhang.flight.wait_graph import judge


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Of three ranks on Gloo, the last of which never comes to a call; and of another job, which does not tell who belongs to it."""
    pytest.importorskip("torch")
    return tuple(real_dumps(tmp_path_factory.mktemp(mode), mode, 3) for mode in ("missing", "crossed"))


@pytest.fixture
def collected(real, tmp_path):
    """The dumps of the first job under the names that are given, and others beside them: name to file."""

    def collected(name="nccl_trace_rank_{}", **more):
        folder = tmp_path / "d"
        folder.mkdir()
        for rank, path in enumerate(real[0]):
            shutil.copy(path, folder / name.format(rank))
        for where, path in more.items():
            shutil.copy(path, folder / where.replace("_x_", " "))
        return sorted(folder.iterdir())

    return collected


def whole(found):
    outcome = judge(found.recordings)
    return not found.unsure and sorted(found.recordings) == [0, 1, 2] and (outcome.kind, outcome.ranks, outcome.waiting) == ("missing", (2,), (0, 1))


@pytest.mark.parametrize("name", ["nccl_trace_rank_{}", "job17_{}", "{}.trace"])
def test_a_copy_is_no_rank_of_its_own(collected, real, name):
    """However the files are called, and though the copy breaks the pattern of their names."""
    copy = name.format(0) + " (1)"
    found = record_all(collected(name, **{copy: real[0][0]}))
    assert whole(found)
    (left,) = found.not_examined
    assert left.what.endswith(copy) and name.format(0) in left.why


def test_a_copy_that_is_called_as_another_rank_is_put_right_by_that_ranks_own(collected, real, tmp_path):
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(real[0][0].read_bytes()))
    found = record_all(collected(**{"nccl_trace_rank_1.old.gz": packed}))
    assert whole(found)
    assert ["the dump of rank 0, equal to the nanosecond" in n.why for n in found.not_examined] == [True]


def test_a_copy_that_is_called_as_a_rank_that_the_job_has_not(collected, real):
    found = record_all(collected(nccl_trace_rank_7=real[0][0]))
    assert whole(found) and found.without == frozenset()
    assert ["the dump of rank 0, equal to the nanosecond" in n.why for n in found.not_examined] == [True]


def test_a_copy_of_a_whole_hosts_file_is_no_further_host(tmp_path):
    """Lists of dumps that tell no rank."""
    raw = [jobs.dump([jobs.entry(n, ("0", ""), n, "all_reduce", 4, 20, "completed", t=1001 * n + r) for n in (1, 2, 3)]) for r in range(4)]
    for name, dumps in (("a", raw[:2]), ("b", raw[2:]), ("b (1)", raw[2:])):
        (tmp_path / f"{name}.json").write_text(json.dumps(dumps))
    found = record_all(sorted(tmp_path.iterdir()))
    assert sorted(found.recordings) == [0, 1, 2, 3] and found.copied == {}
    (left,) = found.not_examined
    assert left.what.startswith(f"{tmp_path}/b") and f"it is a copy of {tmp_path}/b" in left.why


@pytest.mark.parametrize("summed", [False, True])
def test_one_dump_for_two_ranks_is_believed_of_neither(collected, real, tmp_path, summed):
    paths = collected()
    shutil.copy(paths[0], paths[1])
    if summed:
        paths = [sum_up([path], tmp_path / "digests", f"node{n}", clean=str).path for n, path in enumerate(paths)]
    found = record_all(paths)
    assert list(found.recordings) == [2] and found.copied == {0: str(paths[0]), 1: str(paths[1])} and found.without == {0, 1}
    (left,) = found.not_examined
    assert left.unread and left.what == "the dumps of ranks 0 and 1"
    assert left.why.startswith("they are copies of one dump, equal to the nanosecond; its rank is unknown, so they are ignored: ")
    outcome = judge(found.recordings, others=found.without)
    assert outcome.kind == "cannot-tell" and set(outcome.unseen) == {0, 1}


def test_where_all_are_one_dump_its_rank_is_not_known(collected, real):
    paths = collected()
    for path in paths[1:]:
        shutil.copy(paths[0], path)
    found = record_all(paths)
    assert found.unnumbered and found.all_copies and found.copied == {}
    (left,) = found.not_examined
    assert (
        left.unread and left.what == "the dumps of ranks 0 to 2" and "copies of one dump, equal to the nanosecond; its rank is unknown: " in left.why
    )


def test_a_message_tells_whose_dump_it_is(tmp_path):
    """Rank 1 waits for a message; its dump was copied over that of rank 0."""
    group = ("0", "default_pg")
    calls = [jobs.entry(n, group, n, "all_reduce", 4, 20, "completed", t=1001 * n) for n in (1, 2, 3)]
    posted = jobs.entry(4, group, 3, "recv 1<-2", 4, 30, "started", t=9001) | {"is_p2p": True, "p2p_seq_id": 1}
    for rank, raw in enumerate((posted, posted, None)):
        entries = [*calls, raw] if raw else [e | {"time_created_ns": e["time_created_ns"] + 7} for e in calls]
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(jobs.dump(entries, {"0": ("default_pg", [0, 1, 2])})))
    found = record_all(sorted(tmp_path.iterdir()))
    assert sorted(found.recordings) == [1, 2] and found.copied == {0: str(tmp_path / "rank_0")}


def test_a_dump_of_another_job_invents_no_rank(collected, real):
    """One says a rank that the others' configuration has not; the name of the other tells none."""
    found = record_all(collected(**{"nccl_trace_rank_7": real[1][0], "stray.pkl": real[1][1]}))
    assert whole(found)
    assert {n.what.rpartition("/")[2]: n.why for n in found.not_examined} == {
        "nccl_trace_rank_7": "its name says rank 7, and the configuration of the others has ranks 0 to 2: it was left out",
        "stray.pkl": "its name tells no rank, as those of the others do, and every rank has a dump: it was left out",
    }


def test_a_dump_without_a_number_may_be_that_of_the_rank_that_has_none(collected):
    paths = collected()
    paths[1].rename(paths[1].with_name("worker.pkl"))
    found = record_all(sorted(paths[0].parent.iterdir()))
    assert sorted(found.recordings) == [0, 1, 2] and found.unsure and found.not_examined == ()


def test_where_nothing_tells_of_a_further_rank_a_file_is_left_out_and_not_called_looked_at(collected, real):
    paths = collected(**{"nccl_trace_rank_0": real[1][0], "nccl_trace_rank_1": real[1][1], "nccl_trace_rank_2": real[1][2], "stray.pkl": real[0][0]})
    found = record_all(paths)
    assert sorted(found.recordings) == [0, 1, 2] and not found.unsure
    assert [(n.what.rpartition("/")[2], "nothing tells whether it is of this job" in n.why, n.unread) for n in found.not_examined] == [
        ("stray.pkl", True, True)
    ]


def test_what_is_no_proof_of_a_copy(tmp_path):
    """A call or two of one nanosecond, times that were rounded, and recorders that were off."""
    group = ("0", "default_pg")

    def of(*times):
        (tmp_path / "rank_0").write_bytes(
            pickle.dumps(jobs.dump([jobs.entry(n, group, n, "all_reduce", 4, 20, "started", t=t) for n, t in enumerate(times, 1)]))
        )
        return moments_of(record_all([tmp_path / "rank_0"]).recordings[0])

    assert of() is None and of(1001, 2003) is None and of(1000, 2000, 3000) is None and of(1001, 2000, 3000) is not None
