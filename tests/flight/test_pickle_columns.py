"""Dumps without the entries that repeat others: the same in every number, and left alone where they are not as torch writes them."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flight import jobs
from tests.tables import for_each

from unhang.errors import RecordError
from unhang.flight.dump_file import opened
from unhang.flight.pickle_columns import repeats
from unhang.flight.recording import columns_of, recording_of
from unhang.testing.dumps import pickled

DEFAULT = ("0", "default_pg")
FRAMES = [{"name": f"f{n}", "filename": "/home/user/train.py", "line": n} for n in range(300)]
STATES = (("completed", True), ("started", False), ("scheduled", False), ("scheduled", True))


def entry(n, group=DEFAULT, *, size=4, site=3, state=("completed", True), t=None, **more):
    begun = state[0] != "scheduled"
    return {
        "frames": FRAMES[site : site + 1 + site % 5],
        "record_id": n,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": n,
        "p2p_seq_id": 0,
        "op_id": n,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": jobs.T0 + 1000 * n if t is None else t,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": state[0],
        "time_discovered_started_ns": jobs.T0 + 1000 * n + 7 if begun else None,
        "time_discovered_completed_ns": jobs.T0 + 1000 * n + 9 if state[0] == "completed" else None,
        "retired": state[1],
        "timeout_ms": 600_000,
        "is_p2p": False,
        **more,
    }


def dump(entries, **more):
    return {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}, "entries": list(entries), **more}


def shortened(raw):
    """`repeats` of a dump, after seeing that it tells of the same entries."""
    data = pickled(raw)
    assert pickle.loads(data) == raw
    found = repeats(data)
    assert found is not None
    packed, forms, found = found
    short = pickle.loads(packed)
    assert found.expanded(short["entries"]) == raw["entries"]
    assert {k: v for k, v in short.items() if k != "entries"} == {k: v for k, v in raw.items() if k != "entries"}
    assert len(short["entries"]) == forms and len(packed) < len(data)
    return found, forms


def columns_and_frames(dump):
    columns, entries = columns_of(dump)
    return columns, [entry.get("frames") or () for entry in entries]


def read(tmp_path, data):
    """A dump both ways: whether it was shortened, and both recordings or errors."""
    path = tmp_path / "rank_0"
    path.write_bytes(data)
    told = []
    for shorter in (True, False):
        try:
            (each,) = opened(path, shorter=shorter)
            told.append((each.repeats is not None, recording_of(each, rank=0, source="x"), columns_and_frames(each)))
        except RecordError as e:
            told.append((False, str(e), None))
    (short, *one), (_, *other) = told
    assert one == other
    return short, one[0]


def test_numbers_of_every_width():
    numbers = [0, 1, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, 1 << 40, -1, -(1 << 31), -(1 << 33)] * 3
    found, _ = shortened(dump(entry(n) for n in numbers))
    assert list(found.numbers("collective_seq_id")) == numbers
    assert list(found.numbers("p2p_seq_id")) == [0] * len(numbers)
    assert list(found.numbers("no_such_field")) == [0] * len(numbers)


def test_a_long_dump_becomes_a_short_one():
    found, forms = shortened(
        dump(entry(n, size=4 + n % 3, site=n % 12, state=("completed", True) if n < 1999 else ("started", False)) for n in range(2000))
    )
    # Twelve lines, numbers of one and of two bytes, the first entry, and the last one.
    assert forms < 12 * 3 * 2
    assert list(found.numbers("record_id")) == list(range(2000))


def test_what_is_first_written_late_stands_before_what_refers_to_it():
    # The new line, name and type go into the memo behind the numbers of one byte.
    late = [entry(n, site=200, profiling_name="nccl:broadcast", input_dtypes=["Half"]) for n in range(300, 320)]
    _, forms = shortened(dump([*(entry(n) for n in range(300)), *late, *(entry(n) for n in range(320, 330))]))
    assert forms < 10


def test_keys_beyond_the_short_places_of_the_memo():
    config = {str(n): {"name": f"group {n}", "desc": f"of {n}", "ranks": f"[{n}]"} for n in range(300)}
    shortened(dump((entry(n) for n in range(50)), pg_config=config))


@given(
    st.lists(
        st.builds(
            entry,
            st.integers(-(1 << 40), 1 << 40),
            size=st.sampled_from([1, 300, 70_000]),
            site=st.sampled_from([0, 3, 4]),
            state=st.sampled_from(STATES),
            group=st.sampled_from([DEFAULT, ("tp", "tensor"), ("record_id", "op_id")]),
            pg_id=st.sampled_from([0, 3, 300]),
            p2p_seq_id=st.integers(0, 300),
            is_p2p=st.booleans(),
            profiling_name=st.sampled_from(["nccl:all_reduce", "nccl:send 0->1", "nccl:coalesced", "record_id", "é"]),
        ),
        min_size=2,
        max_size=60,
    )
)
@settings(deadline=None, max_examples=150)
def test_nothing_is_lost(entries):
    raw = dump(entries, pg_status={"0": {"last_enqueued_collective": 3}})
    data = pickled(raw)
    found = repeats(data)
    assert found is not None
    packed, _, of_all = found
    assert of_all.expanded(pickle.loads(packed)["entries"]) == raw["entries"]


@pytest.mark.parametrize("seed", range(8))
def test_recordings_are_the_same(tmp_path: Path, seed: int):
    chance = random.Random(seed)
    entries, counts = [], {DEFAULT: 0, ("tp", "tensor"): 0}
    for n in range(chance.choice([40, 700])):
        group = chance.choice([DEFAULT, DEFAULT, ("tp", "tensor")])
        p2p = chance.random() < 0.1
        counts[group] += not p2p
        name = f"nccl:{'send 0->1' if p2p else chance.choice(['all_reduce', 'broadcast', 'all_to_all'])}"
        made = entry(n + 5 * seed, group, site=n % 7, pg_id=int(group != DEFAULT), profiling_name=name, is_p2p=p2p)
        entries.append(made | {"collective_seq_id": counts[group], "p2p_seq_id": n, "state": chance.choice(["completed"] * 9 + ["started"])})
    status = {str(n): {"last_enqueued_collective": m, "last_completed_collective": m - 1} for n, m in enumerate(counts.values())}
    short, recording = read(tmp_path, pickled(dump(entries, pg_status=status)))
    assert short and recording.entries == len(entries) and recording.lost == (seed > 0)


def test_a_group_that_was_made_again_is_read_whole(tmp_path):
    old = [entry(n, pg_id=0) for n in range(40)]
    new = [entry(n, pg_id=1) | {"record_id": n + 40} for n in range(30)]
    short, recording = read(tmp_path, pickled(dump([*old, *new])))
    assert short and recording.worlds == 1 and recording.entries == 30


def test_fields_that_are_none_are_read_whole(tmp_path):
    short, recording = read(tmp_path, pickled(dump([*(entry(n) for n in range(20)), entry(20, input_sizes=3), entry(21)])))
    assert short and recording.skipped == 1


def test_members_behind_the_pickle_are_kept(tmp_path):
    data = pickled(dump((entry(n) for n in range(20)), pg_config={})) + b'{"members": {"0": [0, 1, 2]}}'
    short, recording = read(tmp_path, data)
    assert short and recording.tracks[0].group.members == (0, 1, 2)


def whole(n):
    return pickled(dump(entry(i) for i in range(n)))


@for_each(
    "data",
    {
        "Python's": pickle.dumps(dump(entry(n) for n in range(40)), protocol=2),
        "one entry": whole(1),
        "none": whole(0),
        "cut off": whole(40)[:-400],
        "cut off in the first entry": whole(40)[:300],
        "too many forms": pickled(dump(entry(n, size=n) for n in range(600))),
        "no dict among the entries": whole(40).replace(b"K\x07h", b"K\x07R", 1),
        "the mark in a text": pickled(dump([*(entry(n) for n in range(20)), entry(20, profiling_name="nccl:}(h\x0e")])),
        "a class": whole(40)[:-2] + b"cos\nsystem\n.",
    }.items(),
    ids=lambda item: item[0],
)
def test_others_are_read_as_they_are(tmp_path, data):
    read(tmp_path, data[1])


@given(st.integers(0, 3000), st.binary(min_size=1, max_size=3))
@settings(deadline=None, max_examples=300)
@pytest.mark.integration
def test_damage_is_no_other_error(at, bad):
    data = bytearray(whole(30))
    at %= len(data)
    data[at : at + len(bad)] = bad
    found = repeats(bytes(data))
    try:
        # Python's own takes no memory for a place that is far away: C's ended the process once.
        value = pickle._loads(bytes(data))
        entries = value["entries"]
        assert isinstance(entries, list)
    except Exception:
        return
    if found is not None:
        packed, _, of_all = found
        short = pickle.loads(packed)["entries"]
        if all(isinstance(e, dict) for e in short):
            assert of_all.expanded(short) == entries
