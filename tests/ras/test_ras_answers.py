"""Answers of NCCL's RAS that were kept in files, and damaged ones: an answer or a RecordError, never anything else."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ras.nccl_ras import V24, V26, V29, V32, in_json, in_text, job
from tests.tables import for_each

from unhang import ras
from unhang.errors import RecordError
from unhang.ras import parse


def test_an_answer_that_was_kept(tmp_path):
    kept = tmp_path / "ras.txt"
    kept.write_bytes(b"SERVER PROTOCOL 2\nOK\n" + "".join(in_text(V26, job(), True)).encode())
    assert ras.load(kept).source == str(kept) and len(ras.load(kept).communicators) == 3
    kept.write_text("SERVER PROTOCOL 2\nOK\nOK\n" + json.dumps(in_json(V29, job())))
    assert ras.load(kept).format == "json"
    for wrong in (tmp_path, tmp_path / "missing", tmp_path / "\0"):
        with pytest.raises(RecordError):
            ras.load(wrong)


@for_each(
    "data",
    [
        b"",
        b"  \n",
        b"OK\n",
        b"NCCL version 2.27.7+cuda12.9\nErrors\nRank 1 -- GPU 0\n",
        b"{}",
        b'{"communicators": null}',
        b'{"communicators": [{"hash": 1, "size": 2}]}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"communicators": [], "x": ' + b"[" * 100_000,
        b"Communicators... (1.0s)\n 0 99999999999999 1 1 1 1 RUNNING OK\n",
        b"Communicators... (1.0s)\n 0 1 1 1 99999999999999 1 RUNNING OK\n",
        b"Communicators... (1.0s)\nErrors\n#5-0 (ab) INCOMPLETE\n",
        b"Communicators... (1.0s)\n 0 1 1 1 4 4 RUNNING INCOMPLETE\nErrors\n#0-0 (ab) INCOMPLETE\nThe missing rank: 7\n",
    ],
)
def test_no_answer(data):
    with pytest.raises(RecordError):
        parse(data)


def about(*lines, size=4):
    table = f"Communicators... (1.00s)\n=============\n\n    0         1         1         4  {size:8}         4   RUNNING  MISMATCH\n"
    (communicator,) = parse((table + "\nWarnings\n========\n\n#0-0 (00000000000000ab) MISMATCH\n  " + "\n  ".join(lines)).encode()).communicators
    return communicator


def test_ranks_that_are_only_counted_are_not_filled_in_where_the_numbers_disagree():
    different = "Communicator ranks have different AllReduce operation counts"
    one = "Rank 3 has launched up to operation 4 -- GPU 3 managed by process 9 on node 10.0.0.1"
    assert about(different, "3 ranks have launched up to operation 5", one).launched[1].ranks == (0, 1, 2)
    assert about(different, "3 ranks have launched up to operation 5", one, size=8).launched[1].ranks == ()


def test_a_process_that_is_not_known_in_one_place_is_known_from_another():
    first = "Rank 3 has status FINALIZE -- GPU 3 (NVML 5) managed by process 9 on node 10.0.0.1"
    second = "Rank 3 has launched up to operation 4 -- [process information not found]"
    sections = ("Communicator ranks have different status", first, "Communicator ranks have different AllReduce operation counts", second)
    member = about(*sections).member(3)
    assert (member.pid, member.nvml_dev, member.state, member.counts) == (9, 5, "FINALIZE", {"AllReduce": 4})


def test_a_rank_that_is_named_with_the_status_of_its_group_is_one_of_it():
    one = "Rank 3 has status ABORT -- GPU 3 managed by process 9 on node 10.0.0.1"
    said = about("Communicator ranks have different status", "3 ranks have status RUNNING", "1 ranks have status ABORT", one)
    assert [(s.state, s.ranks_count, s.ranks) for s in said.states] == [("RUNNING", 3, (0, 1, 2)), ("ABORT", 1, (3,))]


def sick():
    return job(nodes=2, per_node=4).changed(1, missing="silent").changed(2, error=1).changed(3, counts=(9, 9, 9, 9, 9)).changed(5, finalize=True)


def damaged(draw, data):
    """Cut, overwritten, repeated or with a piece taken out."""
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        start = draw(st.integers(0, len(data) - 1))
        end = min(len(data), start + draw(st.integers(0, 60)))
        put = draw(
            st.one_of(st.binary(max_size=12), st.sampled_from([b"-1", b"99999999999999999999999", b"null", b"{", b'"', b"\n", b"#0-0", b"Rank 3"]))
        )
        data = draw(st.sampled_from([data[:start], data[:start] + put + data[end:], data[:end] + data[start:], data[:start] + data[end:]]))
    return data


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_is_an_answer_or_a_record_error(data):
    version = data.draw(st.sampled_from([V24, V26, V32]))
    whole = data.draw(st.sampled_from([json.dumps(in_json(V32, sick()), indent=1), "".join(in_text(version, sick(), True))])).encode()
    check(damaged(data.draw, whole))


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=400), st.binary(max_size=400).map(lambda b: b"Communicators... (0.1s)\n" + b)))
def test_noise_is_an_answer_or_a_record_error(data):
    check(data)


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["rank", "ranks", "hash", "size", "status"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["communicators", "ras", "nccl_version", "timestamp"]), _json, max_size=4))
def test_documents_of_another_shape(raw):
    check(json.dumps(raw).encode())


def check(data):
    try:
        report = parse(data)
    except RecordError:
        return
    for communicator in report.communicators:
        assert all(b.count < communicator.most(b.op).count for b in communicator.behind)
        assert all(m.rank < communicator.size for m in communicator.members)


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("size", [0, -3, 3])
def test_ranks_that_a_communicator_cannot_have_are_damage(form, size):
    if form == "json":
        raw = in_json(V32, job())
        raw["communicators"][0]["size"] = size
        data = json.dumps(raw)
    else:
        data = f"Communicators... (1.0s)\n 0 1 1 4 {size} 4 RUNNING MISMATCH\nWarnings\n#0-0 (ab) MISMATCH\n"
        data += "Communicator ranks have different AllReduce operation counts\n2 ranks have launched up to operation 5\n"
        data += "2 ranks have launched up to operation 4\nRank 7 has launched up to operation 3\n"
    with pytest.raises(RecordError):
        parse(data.encode())


def test_a_rank_that_is_told_of_twice_is_damage():
    raw = in_json(V32, job())
    raw["communicators"][0]["ranks"][1]["rank"] = 0
    with pytest.raises(RecordError, match="a rank twice"):
        parse(json.dumps(raw).encode())


@pytest.mark.parametrize(
    ("bound", "at", "says"),
    [("MAX_FIELDS", 100, "more fields than any"), ("MAX_RANKS", 17, "more than 17 ranks"), ("MAX_COMMUNICATORS", 2, "3 communicators")],
)
def test_more_than_any_job_has_is_refused(monkeypatch, bound, at, says):
    data = json.dumps(in_json(V32, job())).encode()
    monkeypatch.setattr(f"unhang.ras.json_answer.{bound}", at)
    with pytest.raises(RecordError, match=says):
        parse(data)


def test_empty_objects_take_memory_too(monkeypatch):
    monkeypatch.setattr("unhang.ras.json_answer.MAX_FIELDS", 100)
    with pytest.raises(RecordError, match="more fields than any"):
        parse(b'{"communicators": [' + b"{}," * 200 + b"{}]}")


def test_a_kind_of_operations_for_each_rank_is_damage():
    ranks = [{"rank": i, "collective_counts": {f"K{i}": 1}} for i in range(300)]
    with pytest.raises(RecordError, match="kinds of operations"):
        parse(json.dumps({"communicators": [{"hash": "0x1", "size": 300, "ranks": ranks}]}).encode())


def test_an_answer_takes_not_much_more_memory_than_its_size():
    """As RAS writes it, of ranks that all differ in host and process."""
    raw = in_json(V32, job(nodes=64, per_node=8))
    data = json.dumps(raw, indent=2).encode()
    parse(data)
    tracemalloc.start()
    try:
        report = parse(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(report.communicators[0].members) == 512
    assert peak < 3 * len(data)


def test_as_many_dead_as_missing_take_little_time(cpu_seconds):
    cpu_seconds(5)
    count = 8_000
    answer = [
        "NCCL version 2.27.3 compiled with CUDA 12.8",
        "Communicators... (0.00s)",
        f"0 1 1 1 {count} {count} RUNNING INCOMPLETE",
        "Errors",
        "DEAD",
        f"{count} job processes are considered dead",
        *(f"Process {n + 1} on node b managing GPU 0" for n in range(count)),
        "#0-0 (abcdef) INCOMPLETE",
        f"Missing communicator data from {count} ranks",
        *(f"Rank {n} -- GPU 0 managed by process {n + 1} on node b" for n in range(count)),
        "Warnings",
    ]
    (communicator,) = parse("\n".join(answer).encode(), source="ras").communicators
    assert communicator.missing_count == count and all(m.dead for m in communicator.missing)
