"""One rank's dump in columns: the same whatever version wrote it, and what of it is pending."""

from __future__ import annotations

import json
import pickle

import pytest
from tests.records.match import jobs

from unhang.errors import RecordError
from unhang.records.flight.columns import COMPLETED, ENDED, ISSUED, STARTED, recording_of
from unhang.records.flight.opening import Opened, decoded

DEFAULT = ("0", "default_pg")


def of(raw, **more):
    return recording_of(Opened(raw=raw, **more), rank=0, source="x")


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


@pytest.mark.parametrize("version", ["1.4", "2.1", "2.4", "2.9", "2.10"])
@pytest.mark.parametrize("write", [lambda raw: pickle.dumps(raw, protocol=2), pickle.dumps, lambda raw: json.dumps(raw).encode()])
def test_every_version(version, write):
    raw = jobs.dump([entry(1), entry(2), entry(3, "started")], {"0": ("default_pg", [0, 1])})
    (opened,) = decoded(write(old(version, raw)), "x")
    found = recording_of(opened, rank=0, source="x")
    (track,) = found.tracks
    assert (track.group.name, track.first, list(track.ends), found.version) == ("0", 1, [COMPLETED, COMPLETED, STARTED], version)
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


def test_what_cannot_be_understood_is_skipped():
    found = of(jobs.dump([entry(1), {"profiling_name": "nccl:x", "input_sizes": 3}, 7, entry(2)]))
    assert found.skipped == 2 and len(found.tracks[0].ids) == 2
    with pytest.raises(RecordError):
        of(jobs.dump([7]))


def test_numbers_that_are_none():
    with pytest.raises(RecordError, match="numbers from 1 to"):
        of(jobs.dump([entry(1), entry(2) | {"collective_seq_id": 1 << 40}]))
    with pytest.raises(RecordError):
        of(jobs.dump([entry(1) | {"collective_seq_id": 1 << 80}]))


def test_numbers_with_holes():
    """TORCH_INCLUDE_ONLY_ACTIVE: only what is pending is written."""
    track = of(jobs.dump([entry(3, "started"), entry(7, "scheduled")])).tracks[0]
    assert (track.first, [bool(i) for i in track.ids], sorted(track.pending_ns)) == (3, [True, False, False, False, True], [3, 7])
