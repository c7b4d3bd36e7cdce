"""Flight-recorder dumps: every shape is brought into one, and nothing in a file can run."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from tests.flight.jobs import parse
from tests.tables import for_each

from unhang.errors import RecordError
from unhang.flight import dump_file, load, safe_unpickle
from unhang.flight.entries import names_of_all


def entry(**changes):
    return {
        "record_id": 0,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": 5,
        "input_sizes": [[4, 2]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 2]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
        "frames": [{"name": "all_reduce", "filename": "c10d.py", "line": 9}, {"name": "main", "filename": "train.py", "line": 3}],
    } | changes


def raw(*entries, **changes):
    return {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": 1, "last_started_collective": -1, "last_completed_collective": 0}},
        "entries": list(entries),
    } | changes


def test_gloo():
    flight = parse(pickle.dumps(raw(entry(collective_seq_id=2, time_created_ns=9), entry(retired=True))))
    first, second = flight.calls["0"]
    assert (first.op, first.backend, first.seq, first.done, second.done) == ("all_reduce", "gloo", 1, True, False)
    assert first.elements == (8,) and first.dtypes == ("Float",)
    assert [f.name for f in first.frames] == ["main", "all_reduce"]
    assert flight.groups["0"].members == (0, 1) and flight.groups["0"].desc == "default_pg"
    assert (flight.counters["0"].enqueued, flight.counters["0"].completed) == (1, 0)


def test_nccl_ends_by_its_state_and_retired_alone_is_a_timeout():
    name = {"profiling_name": "nccl:all_reduce"}
    flight = parse(
        pickle.dumps(
            raw(
                entry(**name, state="completed"),
                entry(**name, state="started", retired=True),
                pg_config={"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
            )
        )
    )
    assert [c.done for c in flight.calls["0"]] == [True, False]
    assert flight.groups["0"].members == (0, 1, 2)


def test_p2p_has_its_own_numbers():
    flight = parse(pickle.dumps(raw(entry(profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=7))))
    assert (flight.calls["0"][0].is_p2p, flight.calls["0"][0].seq) == (True, 7)


def test_counters_are_joined_to_group_names_through_an_entry():
    status = {"3": {"last_enqueued_collective": 5, "last_completed_collective": 4}}
    flight = parse(pickle.dumps(raw(entry(pg_id=3, process_group=("tp_group", "tensor")), pg_status=status)))
    assert list(flight.counters) == ["tp_group"]


def test_json_has_strings_for_numbers_and_may_have_no_entries():
    data = raw(pg_status={"0": {"last_enqueued_collective": "12", "last_completed_collective": "11"}})
    del data["entries"]
    flight = parse(json.dumps(data).encode())
    assert flight.counters["0"].enqueued == 12 and not flight.calls
    flight = parse(json.dumps(raw({k: v for k, v in entry().items() if k != "frames"})).encode())
    assert flight.calls["0"][0].frames == ()


def test_a_line_that_no_file_has_is_none():
    frames = [{"name": "main", "filename": "t.py", "line": line} for line in (10**5000, -1, 3)]
    assert [f.line for f in parse(pickle.dumps(raw(entry(frames=frames)))).calls["0"][0].frames] == [3, 0, 0]


def test_oldest_entries_have_no_group_name():
    old = {k: v for k, v in entry(seq_id=4).items() if k not in ("process_group", "collective_seq_id", "is_p2p")}
    assert parse(pickle.dumps(raw(old, version="1.4"))).calls["0"][0].seq == 4


class Evil:
    def __reduce__(self):
        return (os.system, ("touch /tmp/unhang-was-here",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_classes_are_refused(protocol):
    with pytest.raises(RecordError, match="refused: the dump asks for"):
        parse(pickle.dumps(raw(Evil()), protocol=protocol))
    assert not os.path.exists("/tmp/unhang-was-here")


def test_of_every_truncation_whole_entries_are_kept_or_it_is_a_clear_error():
    data = pickle.dumps(raw(entry(), entry(collective_seq_id=2), entry(collective_seq_id=3)), protocol=2)
    kept = []
    for cut in range(len(data) - 1):
        try:
            flight = parse(data[:cut])
        except RecordError as e:
            assert "damaged" in str(e) or "empty" in str(e)
            continue
        assert flight.cut is not None
        assert not flight.calls or flight.counters["0"].enqueued == 1
        kept.append([c.seq for c in flight.calls.get("0", ())])
    assert kept == sorted(kept, key=len) and kept[-1] == [1, 2, 3] and [1] in kept and [1, 2] in kept


def test_of_json_that_is_cut_off_whole_entries_are_kept():
    data = json.dumps({"comm_lib_version": "2", "entries": [entry(), entry(collective_seq_id=2)], "pg_status": {}}).encode()
    flight = parse(data[:-40])
    assert flight.cut is not None and [c.seq for c in flight.calls["0"]] == [1]


def test_an_entry_that_cannot_be_understood_is_skipped_and_counted():
    flight = parse(pickle.dumps(raw(entry(), {"profiling_name": "x", "input_sizes": 3}, 7, entry(collective_seq_id=2))))
    assert [c.seq for c in flight.calls["0"]] == [1, 2] and flight.skipped == 2


@pytest.mark.parametrize("ranks", ["[0, 1", "[0-3]", "0 to 3", "[a]"])
def test_members_that_cannot_be_understood_are_not_known(ranks):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    assert parse(pickle.dumps(raw(entry(), pg_config=config))).groups["0"].members == ()


@for_each(
    "data",
    [
        b"\x80\x05]",
        b"not a dump",
        b"{}",
        b"[]",
        pickle.dumps(3),
        pickle.dumps({"entries": 3}),
        pickle.dumps(raw({"input_sizes": 3})),
        pickle.dumps([raw(entry()), raw(entry())]),
        b"{" * 50_000,
        pickle.dumps({"pg_status": {"0": None}}),
    ],
)
def test_foreign_files_are_clear_errors(data):
    with pytest.raises(RecordError):
        parse(data)


def test_a_missing_file(tmp_path):
    with pytest.raises(RecordError, match="No such file"):
        load(tmp_path / "rank_0")


def test_members_stand_behind_the_pickle():
    """Gloo's own configuration names no members; what it does name is believed."""
    behind = json.dumps({"members": {"0": [0, 1, 2], "1": [0, 2], "2": [5]}}).encode()
    config = {"": {"name": "", "desc": "", "ranks": "[]"}, "2": {"name": "2", "desc": "dp", "ranks": "[1, 2]"}}
    data = pickle.dumps(raw(entry(), pg_config=config))
    groups = parse(data + behind).groups
    assert {name: g.members for name, g in groups.items()} == {"0": (0, 1, 2), "1": (0, 2), "2": (1, 2)}
    assert groups["0"].desc == "default_pg"
    flight = parse(data + behind[:-1])
    assert flight.cut is not None and flight.groups["0"].members == ()


@pytest.mark.parametrize("op", [b"r\xff\xff\xff\x0f", b"r\x00\x00\x01\x00", b"p268435455\n", b"\x96\0\0\0\0\1\0\0\0"])
def test_a_pickle_that_asks_for_more_memory_than_it_has_bytes(op):
    with pytest.raises(RecordError, match=r"more than its size can hold|expected 4294967296 bytes"):
        parse(b"\x80\x04N" + op + b".")


def test_a_pickle_that_never_ends(monkeypatch):
    monkeypatch.setattr(safe_unpickle, "MAX_OPCODES", 1000)
    with pytest.raises(RecordError, match="more than its size can hold"):
        parse(b"I1\n0" * 2000 + b"N.")


def test_only_files_are_read_and_no_more_of_them_than_a_dump_has(tmp_path, monkeypatch):
    with pytest.raises(RecordError, match="is no file"):
        load(Path("/dev/zero"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="is no file"):
        load(tmp_path / "pipe")
    monkeypatch.setattr(dump_file, "MAX_BYTES", 10)
    (tmp_path / "rank_0").write_bytes(b"x" * 11)
    with pytest.raises(RecordError, match="larger than any"):
        load(tmp_path / "rank_0")


def p2p(name, number, state, at):
    return entry(profiling_name=f"nccl:{name}", is_p2p=True, p2p_seq_id=number, collective_seq_id=0, state=state, time_created_ns=at)


def test_calls_that_were_launched_together_end_with_their_last_entry():
    entries = []
    for number, end in ((1, "completed"), (2, "started")):
        entries += [p2p(f"{what}", number, "scheduled", 10 * number + n) for n, what in enumerate(("send 0->1", "recv 0<-1"))]
        entries.append(p2p("coalesced", number, end, 10 * number + 5))
    entries.append(entry(profiling_name="nccl:all_reduce", collective_seq_id=1, state="scheduled", time_created_ns=99))
    calls = parse(pickle.dumps(raw(*entries))).calls["0"]
    assert [(c.op, c.done) for c in calls if c.is_p2p and c.seq == 1] == [("send 0->1", True), ("recv 0<-1", True), ("coalesced", True)]
    assert not any(c.done for c in calls if c.seq == 2) and not calls[-1].done


def test_of_a_group_that_was_made_again_the_newest_counts():
    old = [entry(record_id=n, collective_seq_id=n + 1, retired=True, time_created_ns=n) for n in range(4)]
    new = [entry(record_id=4 + n, pg_id=1, collective_seq_id=n + 1, profiling_name="gloo:broadcast", time_created_ns=9 + n) for n in range(2)]
    flight = parse(pickle.dumps(raw(*old, *new, pg_status={"1": {"last_enqueued_collective": 2}, "0": {"last_enqueued_collective": 4}})))
    assert [(c.op, c.seq) for c in flight.calls["0"]] == [("broadcast", 1), ("broadcast", 2)] and not flight.lost
    assert {name: c.enqueued for name, c in flight.counters.items()} == {"0": 2}


def test_names_that_several_groups_have_at_once_stay():
    mixed = [entry(pg_id=n % 2, collective_seq_id=1 + n // 2, time_created_ns=n) for n in range(4)]
    assert len(parse(pickle.dumps(raw(*mixed))).calls["0"]) == 4


def test_a_field_that_is_none_is_no_reason_to_drop_the_rest():
    flight = parse(pickle.dumps(raw(entry(), entry(input_sizes=[["x"]]), pg_status={"0": {"last_enqueued_collective": None}}, pg_config={"0": None})))
    assert len(flight.calls["0"]) == 1 and flight.skipped == 1 and flight.cut and not flight.counters


@pytest.mark.parametrize(
    ("ids", "known", "configured", "found"),
    [
        ("0 5", {"0": "0"}, "0 tp", {"0": "0", "5": "tp"}),
        # In the order in which they were made.
        ("0 2 7 9", {"0": "0", "7": "11"}, "0 3 11 12", {"0": "0", "2": "3", "7": "11", "9": "12"}),
        ("0 2 7 9", {"0": "0", "7": "1"}, "0 1 3 12", {"0": "0", "2": "#2", "7": "1", "9": "#9"}),
        ("0 2 7", {"0": "0"}, "0 tp dp", {"0": "0", "2": "#2", "7": "#7"}),
        ("0 2 7", {"0": "0"}, "0 1", {"0": "0", "2": "#2", "7": "#7"}),
        # Made before the default group that there is now.
        ("0 2 7 9", {"7": "0"}, "0 1", {"7": "0", "9": "1"}),
    ],
)
def test_names_of_groups_without_a_call(ids, known, configured, found):
    told = {"pg_status": {pg: {} for pg in ids.split()}, "pg_config": {name: {} for name in configured.split()}}
    assert names_of_all(told, known, {"0"}) == found
