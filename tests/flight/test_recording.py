"""One rank's dump in columns: the same whatever version wrote it, and what of it is pending."""

from __future__ import annotations

import json
import pickle

import pytest
from tests.flight import jobs
from tests.tables import for_each

from unhang.errors import RecordError
from unhang.flight.dump_file import DumpFile, decoded
from unhang.flight.recording import COMPLETED, ENDED, ISSUED, STARTED, recording_of

DEFAULT = ("0", "default_pg")


def of(raw, **more):
    return recording_of(DumpFile(raw=raw, **more), rank=0, source="x")


def entry(n, state="completed", **more):
    return jobs.entry(n, DEFAULT, n, "all_reduce", 4, 20, state, t=n * 1000, **more)


def test_numbers_calls_and_ends():
    found = of(
        jobs.dump(
            [entry(5), entry(6), entry(7, "started"), entry(8, "scheduled"), entry(9, "started") | {"retired": True}], {"0": ("default_pg", [0, 1])}
        )
    )
    (track,) = found.tracks
    assert (track.first, track.last, track.group.members) == (5, 9, (0, 1))
    assert [found.calls[i] for i in track.ids] == ["all_reduce 4 Float"] * 5
    assert list(track.ends) == [COMPLETED, COMPLETED, STARTED, ISSUED, ENDED]
    assert sorted(track.pending_ns) == [7, 8, 9] and track.pending_ns[7] == jobs.T0 + 7000
    assert found.lost and track.at(4) is None and track.end(10) is None


def test_gloo_ends_are_certain_only_behind_a_later_call():
    def states(*done):
        return list(of(jobs.dump([entry(n, "completed" if n in done else "scheduled", backend="gloo") for n in (1, 2, 3)])).tracks[0].ends)

    assert states(1, 2, 3) == [COMPLETED, COMPLETED, ENDED]
    assert states(1, 2) == [COMPLETED, COMPLETED, ISSUED]
    assert states() == [ISSUED, ISSUED, ISSUED]


def old(version, raw):
    """As earlier versions wrote it, and as JSON has it."""
    gone = {
        "1.4": ("process_group", "is_p2p", "p2p_seq_id", "op_id", "input_dtypes", "output_dtypes"),
        "2.1": ("is_p2p",),
        "2.4": (),
        "2.9": (),
        "2.10": (),
    }[version]
    entries = [{k: v for k, v in e.items() if k not in gone} for e in raw["entries"]]
    if version == "1.4":
        entries = [{k: v for k, v in e.items() if k != "collective_seq_id"} | {"seq_id": e["collective_seq_id"], "pg_id": 0} for e in entries]
    return raw | {"version": version, "entries": entries}


@for_each("version", ["1.4", "2.1", "2.4", "2.9", "2.10"])
@for_each("write", [lambda raw: pickle.dumps(raw, protocol=2), pickle.dumps, lambda raw: json.dumps(raw).encode()])
def test_every_version(version, write):
    raw = jobs.dump([entry(1), entry(2), entry(3, "started")], {"0": ("default_pg", [0, 1])})
    (opened,) = decoded(write(old(version, raw)), "x")
    found = recording_of(opened, rank=0, source="x")
    (track,) = found.tracks
    assert (track.group.name, track.first, list(track.ends)) == ("0", 1, [COMPLETED, COMPLETED, STARTED])
    assert [found.calls[i].split(" ")[:2] for i in track.ids] == [["all_reduce", "4"]] * 3


def test_two_groups_and_their_counters():
    tp = [jobs.entry(n, ("tp", "tensor"), n, "broadcast", 2, 5, "completed", t=n) | {"pg_id": 3} for n in (1, 2)]
    raw = jobs.dump(
        [entry(1) | {"pg_id": 0}, tp[0], entry(2) | {"pg_id": 0}, tp[1]],
        pg_status={"3": {"last_enqueued_collective": "2"}, "0": {"last_enqueued_collective": 2}},
    )
    found = of(raw)
    assert {t.group.name: (t.first, len(t.ids)) for t in found.tracks} == {"0": (1, 2), "tp": (1, 2)}
    assert found.counters == {"tp": 2, "0": 2}


def test_groups_without_a_call_are_known():
    assert [g.name for g in of(jobs.dump([entry(1)], {"0": ("default_pg", [0, 1]), "dp": ("dp", [0])})).groups] == ["dp"]


def test_the_first_version_tells_members_by_number():
    raw = old("1.4", jobs.dump([entry(1), entry(2)])) | {"pg_config": {0: [0, 1, 2]}}
    assert of(raw).tracks[0].group.members == (0, 1, 2)


def test_what_cannot_be_understood_is_skipped():
    found = of(jobs.dump([entry(1), {"profiling_name": "nccl:x", "input_sizes": 3}, 7, entry(2)]))
    assert found.skipped == 2 and len(found.tracks[0].ids) == 2
    with pytest.raises(RecordError):
        of(jobs.dump([7]))


@pytest.mark.parametrize("number", [1 << 40, 1 << 80, -(1 << 50)])
def test_numbers_that_are_none(number):
    found = of(jobs.dump([entry(1), entry(2), entry(3) | {"collective_seq_id": number}]))
    (track,) = found.tracks
    assert (track.first, track.last, found.skipped) == (1, 2, 1) and "1 of its entries" in found.cut
    with pytest.raises(RecordError):
        of(jobs.dump([entry(1) | {"collective_seq_id": 1 << 80}]))


@pytest.mark.parametrize(
    "bad", [{"input_sizes": [["x"]]}, {"p2p_seq_id": "x", "is_p2p": True}, {"profiling_name": 7, "input_sizes": 3}, {"time_created_ns": 1 << 70}]
)
def test_one_field_that_is_none_is_one_entry(bad):
    found = of(jobs.dump([entry(1), entry(2), entry(3) | bad]))
    assert found.skipped == 1 and found.tracks[0].last == 2 and found.cut


def test_counters_that_are_none_are_not_told():
    found = of(
        jobs.dump([entry(1) | {"pg_id": 0}], pg_status={"0": {"last_enqueued_collective": None}, "7": {"last_enqueued_collective": "3"}, "8": None})
    )
    assert found.counters == {"7": 3} and not found.skipped
    with pytest.raises(RecordError):
        of({"pg_status": {"0": None}})


def nested(depth=50_000):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_name_that_is_nested_is_none():
    found = of(jobs.dump([entry(1), entry(2) | {"process_group": (nested(), "x")}]))
    assert found.skipped == 1


def launch(n, state="completed", *, closed=True, record=None):
    """Two calls that were launched together, as NCCL writes them: only the last entry ever completes."""
    record = 10 * n if record is None else record
    parts = [
        jobs.entry(record + i, DEFAULT, n, "_all_gather_base", size, 20, "scheduled", t=n * 1000, outputs=4 * size) for i, size in enumerate((4, 8))
    ]
    return [*parts, *([jobs.entry(record + 2, DEFAULT, n, "coalesced", 0, 20, state, t=n * 1000)] if closed else [])]


def calls(found):
    (track,) = found.tracks
    return {track.first + i: found.calls[call].count("all_gather") if call else None for i, call in enumerate(track.ids)}


def test_of_a_launch_at_the_edge_of_the_ring_calls_may_be_lost():
    whole = [*launch(5, record=0), entry(6), entry(7)]
    assert calls(of(jobs.dump(whole))) == {5: 2, 6: 0, 7: 0}
    for lost in (1, 2):
        found = of(jobs.dump(whole[lost:]))
        assert found.lost and calls(found) == {5: None, 6: 0, 7: 0} and not found.tracks[0].pending_ns


def test_a_launch_that_has_not_ended_is_not_compared():
    found = of(jobs.dump([entry(1), *launch(2, closed=False)]))
    assert calls(found) == {1: 0, 2: None} and list(found.tracks[0].pending_ns) == [2]
    assert calls(of(jobs.dump([entry(1), *launch(2, "started")]))) == {1: 0, 2: 2}


def test_of_a_dump_that_is_cut_off_the_newest_number_is_not_whole():
    for entries in ([entry(1), entry(2), *launch(3, closed=False)], [entry(1), entry(2), launch(3)[0]], [entry(1), entry(2), entry(4)]):
        (track,) = of(jobs.dump(entries), cut="its end is lost").tracks
        assert (track.first, track.last) == (1, 2) and not track.pending_ns
    assert not of(jobs.dump([entry(1, "started")]), cut="its end is lost").tracks


def generation(pg, op, count, *, record=0, group=DEFAULT, state="completed"):
    return [
        jobs.entry(record + n - 1, group, n, op, 4, 20, "completed" if n < count else state, t=1000 * (record + n)) | {"pg_id": pg}
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize("status", [{"0": 9, "1": 3}, {"1": 3, "0": 9}])
def test_of_a_group_that_was_made_again_the_newest_counts(status):
    """destroy_process_group and init_process_group: the same name, and numbers from 1."""
    entries = [*generation(0, "all_reduce", 9), *generation(1, "broadcast", 3, record=9, state="started")]
    found = of(jobs.dump(entries, pg_status={pg: {"last_enqueued_collective": n} for pg, n in status.items()}))
    (track,) = found.tracks
    assert (track.first, track.last, list(track.pending_ns)) == (1, 3, [3]) and set(track.ids) == {1} and found.calls[1].startswith("broadcast")
    assert found.counters == {"0": 3} and not found.lost and found.entries == 3


def test_with_the_default_group_all_groups_have_ended():
    entries = [
        *generation(0, "all_reduce", 2),
        *generation(1, "broadcast", 2, record=2, group=("1", "tp")),
        *generation(2, "all_reduce", 3, record=4),
    ]
    assert [t.group.name for t in of(jobs.dump(entries)).tracks] == ["0"]
    # One group by itself may go and come while others live.
    entries = [
        *generation(0, "all_reduce", 2),
        *generation(1, "broadcast", 2, record=2, group=("1", "tp")),
        *generation(2, "broadcast", 3, record=4, group=("1", "tp")),
    ]
    assert {t.group.name: t.last for t in of(jobs.dump(entries)).tracks} == {"0": 2, "1": 3}


def test_numbers_with_holes():
    """TORCH_INCLUDE_ONLY_ACTIVE: only what is pending is written."""
    track = of(jobs.dump([entry(3, "started"), entry(7, "scheduled")])).tracks[0]
    assert (track.first, [bool(i) for i in track.ids], sorted(track.pending_ns)) == (3, [True, False, False, False, True], [3, 7])


def test_sums_are_of_their_own_group_and_of_the_newest():
    def of_group(group, n, sent):
        return jobs.entry(n, (group, "ep"), n, "all_to_all", sent, 20, "completed", t=n, outputs=4)

    entries = [of_group(g, n, n + 100 * (g == "b")) for n in range(1, 101) for g in "ab"]
    found = {t.group.name: t.sums for t in of(jobs.dump([*entries, entry(201)])).tracks}
    assert {name: dict(sums) for name, sums in found.items()} == {
        "a": {n: (n, 4) for n in range(37, 101)},
        "b": {n: (n + 100, 4) for n in range(37, 101)},
        "0": {},
    }


def test_as_many_groups_as_entries_are_read_in_as_many_passes_as_one(monkeypatch):
    """One pass over the entries for each group took 14 s for 8,000 of them."""
    passes = 0

    def counted(column):
        nonlocal passes
        passes += 1
        return column[::-1]

    monkeypatch.setattr("unhang.flight.recording.reversed", counted, raising=False)
    seen = []
    for groups in (1, 50):
        of(jobs.dump([jobs.entry(n, (f"g{n}", "x"), 1, "all_to_all", 4, 20, "completed", t=n) for n in range(groups)]))
        seen.append(passes)
        passes = 0
    assert seen[0] == seen[1] > 0
