"""Digests: the same answer as the dumps themselves, a few kilobytes a rank, and no trust in what a file says."""

from __future__ import annotations

import json
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.match import jobs
from tests.records.match.test_outcome import injected

from unhang.errors import RecordError, UnhangError
from unhang.records.flight import digest
from unhang.records.flight.recordings import flight, record_all, sum_up
from unhang.records.match.outcome import judge


def write(folder, dumps, *, as_json=()):
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, raw in dumps.items():
        path = folder / f"rank_{rank}"
        if rank in as_json:
            path.write_text(json.dumps(raw))
        else:
            path.write_bytes(pickle.dumps(raw, protocol=2))
        paths.append(path)
    return paths


def both(tmp_path, dumps, *, hosts=2, as_json=()):
    """The recordings of dumps, and those of the digests of so many hosts."""
    paths = write(tmp_path / "dumps", dumps, as_json=as_json)
    whole = record_all(paths)
    digests = [sum_up(paths[n::hosts], tmp_path / "digests", f"node{n}").path for n in range(hosts)]
    return whole, record_all(digests)


def told(recording):
    """All but where it stands."""
    return [getattr(recording, name) for name in recording.__dataclass_fields__ if name not in ("source", "second", "place", "second_place", "bytes")]


@pytest.mark.parametrize("kind", ["missing", "op", "shape", "dtype", "order", "extra", "lacking"])
@pytest.mark.parametrize("seed", range(3))
def test_the_answer_is_that_of_the_dumps(tmp_path, kind, seed):
    rng = random.Random(seed)
    plan = jobs.Plan(world=8, tp=2, seed=seed, steps=20)
    dumps, *_ = injected(plan, kind, rng)
    whole, merged = both(tmp_path, dumps, as_json=(1, 5) if seed == 2 else ())
    assert whole.recordings.keys() == merged.recordings.keys() and not merged.unsure
    for rank in whole.recordings:
        assert told(whole.recordings[rank]) == told(merged.recordings[rank])
    assert judge(whole.recordings) == judge(merged.recordings)


def test_the_lines_of_all_calls_are_there(tmp_path):
    dumps = jobs.run(jobs.Plan(world=4, steps=30))
    whole, merged = both(tmp_path, dumps)
    for rank in whole.recordings:
        theirs, ours = flight(whole.recordings[rank]), flight(merged.recordings[rank])
        for group, calls in theirs.calls.items():
            for one, other in zip(sorted(calls, key=lambda c: c.seq), sorted(ours.calls[group], key=lambda c: c.seq), strict=True):
                assert (one.seq, one.op, one.input_sizes, one.output_sizes, one.dtypes, one.done) == (
                    other.seq,
                    other.op,
                    other.input_sizes,
                    other.output_sizes,
                    other.dtypes,
                    other.done,
                )
                assert other.frames == one.frames[:1] or other.frames == tuple(f for f in one.frames if f.file == jobs.TRAIN)


def test_a_rank_takes_a_few_kilobytes(tmp_path):
    plan = jobs.Plan(world=2, steps=700)
    paths = write(tmp_path / "dumps", jobs.run(plan))
    done = sum_up(paths, tmp_path / "digests", "node0")
    assert done.ranks == (0, 1) and done.dumps == 2
    assert done.path.stat().st_size < 4096 * 2 < sum(p.stat().st_size for p in paths) / 50


def test_members_are_held_as_runs():
    for members in [(), (3,), (0, 1, 2, 3), tuple(range(0, 4096, 8)), (5, 3, 9, 10, 11, 2), (0, 0, 0), (1, 2, 4, 8, 16)]:
        assert digest._members(digest._runs(members)) == members
    assert len(digest._runs(tuple(range(7, 16384, 8)))) == 1


def test_messages_and_second_recorders(tmp_path):
    default = ("0", "default_pg")
    history = [jobs.entry(i, default, i + 1, "all_reduce", 4, 20, "completed", t=i * 1000) for i in range(3)]
    send = jobs.entry(3, default, 3, "send 0->1", 8, 30, "started", t=9000) | {"is_p2p": True, "p2p_seq_id": 1}
    dumps = {0: jobs.dump([*history, send], {"0": ("default_pg", [0, 1])}), 1: jobs.dump(history, {"0": ("default_pg", [0, 1])})}
    paths = write(tmp_path / "dumps", dumps)
    gloo = [jobs.entry(i, default, i + 1, "barrier", 0, 40, "scheduled", t=i * 1000, backend="gloo") for i in range(2)]
    paths += write(tmp_path / "dumps" / "cpu", {0: jobs.dump(gloo)})
    whole = record_all(paths)
    merged = record_all([sum_up(paths, tmp_path / "digests", "node0").path])
    assert [told(r) for r in whole.recordings.values()] == [told(r) for r in merged.recordings.values()]
    assert merged.recordings[0].messages and any(t.group.name == "cpu:0" for t in merged.recordings[0].tracks)
    assert judge(whole.recordings) == judge(merged.recordings)
    assert any(c.op == "barrier" for calls in flight(merged.recordings[0]).calls.values() for c in calls)


def test_what_is_cut_and_lost_is_told(tmp_path):
    path = tmp_path / "rank_0"
    entries = [jobs.entry(i + 5, ("0", "default_pg"), i + 6, "all_reduce", 4, 20, "completed", t=i) for i in range(40)]
    data = pickle.dumps(jobs.dump(entries, {"0": ("default_pg", [0, 1])}), protocol=2)
    path.write_bytes(data[: len(data) // 2])
    merged = record_all([sum_up([path], tmp_path / "digests", "h").path])
    assert merged.recordings[0].cut and merged.recordings[0].lost
    assert any("cut off" in n.why for n in merged.not_examined)


def test_nothing_to_sum_up(tmp_path):
    bad = tmp_path / "rank_0"
    bad.write_bytes(b"\x80\x02}q\x00X\x09\x00\x00\x00pg_configq\x01")
    with pytest.raises(UnhangError, match="none of the flight-recorder dumps"):
        sum_up([bad], tmp_path / "digests", "h")
    assert not (tmp_path / "digests").exists()


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    paths = write(folder / "dumps", jobs.run(jobs.Plan(world=2, steps=5)))
    return sum_up(paths, folder / "digests", "h").path


@given(at=st.floats(0, 1), bits=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_one_is_refused_or_still_one(one, tmp_path_factory, at, bits, cut):
    data = one.read_bytes()
    place = min(int(at * len(data)), len(data) - 1)
    damaged = data[:place] if cut else data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]
    path = tmp_path_factory.mktemp("damaged") / "x.unhang-digest"
    path.write_bytes(damaged)
    try:
        found = digest.recordings(path)
    except RecordError as e:
        assert str(path) in str(e)
    else:
        assert all(len(t.ids) == len(t.ends) for r in found for t in r.tracks)


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    import zstandard

    monkeypatch.setattr(digest, "_MOST_BYTES", 1024**2)
    path = tmp_path / "bomb.unhang-digest"
    path.write_bytes(digest.MAGIC + zstandard.ZstdCompressor().compress(bytes(16 * 1024**2)))
    with pytest.raises(RecordError, match="more than any digest"):
        digest.recordings(path)


def test_the_name_of_a_host_leads_nowhere(tmp_path):
    paths = write(tmp_path / "dumps", jobs.run(jobs.Plan(world=2, steps=2)))
    path = sum_up(paths, tmp_path / "digests", "../../etc/node 1").path
    assert path.parent == tmp_path / "digests" and "/" not in path.name
