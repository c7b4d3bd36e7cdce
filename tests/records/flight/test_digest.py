"""Digests: the same recordings as from the dumps, a few kilobytes a rank, and no trust in what a file says."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
from dataclasses import replace

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.records.match import jobs

from unhang.errors import RecordError, UnhangError
from unhang.records.flight import digest
from unhang.records.flight.recordings import flight, record_all, sum_up
from unhang.records.match.judge import judge

DEFAULT = ("0", "default_pg")


def write(folder, dumps, *, as_json=(), name="nccl_trace_rank_{}"):
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, raw in dumps.items():
        path = folder / name.format(rank)
        if rank in as_json:
            path.write_text(json.dumps(raw))
        else:
            path.write_bytes(pickle.dumps(raw, protocol=2))
        paths.append(path)
    return paths


def summed(paths, folder, host="node0"):
    return sum_up(paths, folder, host, clean=str)


def on_hosts(tmp_path, dumps, hosts=2, **more):
    """The dumps of all ranks, and the digests of so many hosts."""
    paths = write(tmp_path / "dumps", dumps, **more)
    return paths, [summed(paths[n::hosts], tmp_path / "digests", f"node{n}").path for n in range(hosts)]


def compared_of(recording):
    """All but where it stands."""
    places = ("source", "second", "place", "second_place", "bytes", "is_second")
    return [getattr(recording, name) for name in recording.__dataclass_fields__ if name not in places]


def same(one, other):
    return {r: compared_of(x) for r, x in one.recordings.items()} == {r: compared_of(x) for r, x in other.recordings.items()}


def one_missing(world=8, **more):
    plan = jobs.Plan(world=world, steps=20, **more)
    return jobs.run(plan, {1: [*plan.calls(1)[:30], None]}, ahead=5)


def history(n, backend="nccl"):
    return [jobs.entry(i, DEFAULT, i + 1, "all_reduce", 4, 20, "completed", t=i * 1000, backend=backend) for i in range(n)]


def test_digests_and_dumps_in_any_order_are_the_job(tmp_path):
    paths, digests = on_hosts(tmp_path, one_missing(tp=2), hosts=3, as_json=(2, 5))
    whole = record_all(paths)
    assert (judge(whole.recordings).kind, judge(whole.recordings).ranks) == ("missing", (1,))
    for seed in range(4):
        mixed = [*digests[:2], *paths[2::3]] if seed % 2 else list(digests)
        random.Random(seed).shuffle(mixed)
        merged = record_all(mixed)
        assert same(merged, whole) and not merged.unsure and merged.not_examined == ()
        assert judge(merged.recordings) == judge(whole.recordings)


def test_a_packed_digest_is_read_as_it_is(tmp_path):
    paths, digests = on_hosts(tmp_path, one_missing(4))
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(digests[0].read_bytes()))
    merged = record_all([packed, digests[1]])
    assert same(merged, record_all(paths)) and flight(merged.recordings[0]).calls
    packed.write_bytes(packed.read_bytes()[:-200])
    merged = record_all([packed, digests[1]])
    assert sorted(merged.recordings) == [1, 3] and "damaged" in merged.not_examined[0].why


def test_the_lines_of_all_calls_are_there(tmp_path):
    paths, digests = on_hosts(tmp_path, jobs.run(jobs.Plan(world=4, tp=2, steps=30)))
    whole, merged = record_all(paths), record_all(digests)
    names = ("group", "seq", "op", "backend", "input_sizes", "output_sizes", "dtypes", "done", "is_p2p")
    for rank in whole.recordings:
        theirs, ours = flight(whole.recordings[rank]), flight(merged.recordings[rank])
        assert theirs.calls.keys() == ours.calls.keys() and theirs.groups == ours.groups
        for group in theirs.calls:
            for one, other in zip(theirs.calls[group], ours.calls[group], strict=True):
                assert [getattr(one, n) for n in names] == [getattr(other, n) for n in names]
                assert other.frames == tuple(f for f in one.frames if f.file == jobs.TRAIN) != ()


def test_a_rank_takes_a_few_kilobytes(tmp_path):
    # Steps of uneven length, in four groups.
    dumps = jobs.run(jobs.Plan(world=4, tp=2, steps=220))
    for rank, raw in dumps.items():
        noise = random.Random(rank)
        for e in raw["entries"]:
            e["time_created_ns"] += noise.randrange(900)
    paths = write(tmp_path / "dumps", dumps)
    done = summed(paths, tmp_path / "digests")
    assert done.ranks == (0, 1, 2, 3) and done.dumps == 4
    assert done.path.stat().st_size < 4 * 3000 < sum(p.stat().st_size for p in paths) / 50


@pytest.mark.parametrize("members", [(), (3,), (0, 1, 2, 3), tuple(range(0, 4096, 8)), (5, 3, 9, 10, 11, 2), (0, 0, 0), (1, 2, 4, 8, 16)])
def test_members_are_held_as_runs(members):
    assert digest._members(digest._runs(members)) == members


def test_messages_and_second_recorders(tmp_path):
    send = jobs.entry(3, DEFAULT, 3, "send 0->1", 8, 30, "started", t=9000) | {"is_p2p": True, "p2p_seq_id": 1}
    world = {"0": ("default_pg", [0, 1])}
    paths = write(tmp_path / "dumps", {0: jobs.dump([*history(3), send], world), 1: jobs.dump(history(3), world)})
    gloo = [jobs.entry(i, DEFAULT, i + 1, "barrier", 0, 40, "completed", t=i * 1000, backend="gloo") for i in range(70)]
    gloo.append(jobs.entry(70, DEFAULT, 71, "barrier", 0, 41, "scheduled", t=80_000, backend="gloo"))
    paths += write(tmp_path / "dumps" / "cpu", {0: jobs.dump(gloo)})
    whole, merged = record_all(paths), record_all([summed(paths, tmp_path / "digests").path])
    assert same(whole, merged) and merged.recordings[0].messages and merged.recordings[0].tracks[-1].group.name == "cpu:0"
    assert judge(whole.recordings) == judge(merged.recordings)
    assert [c.frames[0].line for c in flight(merged.recordings[0]).calls["cpu:0"]][-2:] == [40, 41]


def test_calls_launched_in_parts_keep_the_time_of_the_first(tmp_path):
    """Of a call in parts only the last entry ends: here 100 of them, and the newest has not."""
    entries = []
    for n in range(1, 101):
        for part in range(3):
            state = "completed" if part == 2 and n < 100 else "scheduled"
            entries.append(jobs.entry(len(entries), DEFAULT, n, "all_reduce", 4 + part, 20, state, t=1000 * len(entries)))
    # Calls of another group behind it, so that it is not among the newest.
    entries += [jobs.entry(300 + n, ("1", "dp"), n + 1, "broadcast", 4, 30, "completed", t=400_000 + n) for n in range(200)]
    paths, digests = on_hosts(tmp_path, {r: jobs.dump(entries, {"0": ("default_pg", [0, 1]), "1": ("dp", [0, 1])}) for r in range(2)})
    whole, merged = record_all(paths), record_all(digests)
    assert whole.recordings[0].tracks[0].pending_ns == {100: jobs.T0 + 297_000} and same(whole, merged)


def test_what_is_cut_or_skipped_in_a_dump_is_told_behind_its_digest(tmp_path):
    paths = write(tmp_path / "dumps", {r: jobs.dump(history(40), {"0": ("default_pg", [0, 1])}) for r in range(2)})
    data = paths[1].read_bytes()
    paths[1].write_bytes(data[: len(data) // 2])
    merged = record_all([summed(paths, tmp_path / "digests").path])
    assert merged.recordings[1].cut and same(merged, record_all(paths))
    (told,) = merged.not_examined
    assert "the dump of rank 1 in it" in told.what and "cut off" in told.why and told.unread


def test_what_a_host_could_not_read_is_told_behind_its_digest(tmp_path):
    paths, _ = on_hosts(tmp_path, one_missing(4))
    paths[2].write_bytes(b"\x80\x02}q\x00X\x09\x00\x00\x00pg_configq\x01")
    done = summed(paths, tmp_path / "again")
    assert [n.what for n in done.not_examined] == [str(paths[2])] and done.not_examined[0].unread
    merged = record_all([done.path])
    assert list(merged.recordings) == [0, 1, 3]
    (told,) = merged.not_examined
    assert told.what == f"{paths[2]} on node0" and "damaged" in told.why and told.unread


def test_the_same_host_twice_counts_once(tmp_path):
    paths, digests = on_hosts(tmp_path, one_missing(4))
    again = summed(paths[0::2], tmp_path / "again", "node0").path
    assert again.read_bytes() == digests[0].read_bytes()
    merged = record_all([again, *digests])
    assert same(merged, record_all(paths)) and not merged.unsure
    (told,) = merged.not_examined
    assert told.why.startswith("the dump of ranks 0, 2 in it stands in ") and not told.unread
    # From the dumps themselves as well: those know all frames.
    merged = record_all([*digests, *paths])
    assert {r.source for r in merged.recordings.values()} == set(map(str, paths)) and len(merged.not_examined) == 2


def test_of_two_incidents_on_a_host_the_newer_one_is_taken(tmp_path):
    def at(t):
        return jobs.dump([e | {"time_created_ns": e["time_created_ns"] + t} for e in history(5)], {"0": ("default_pg", [0])})

    older = summed(write(tmp_path / "a", {0: at(0)}), tmp_path / "one").path
    newer = summed(write(tmp_path / "a", {0: at(9**9)}), tmp_path / "two").path
    for order in ([older, newer], [newer, older]):
        merged = record_all(order)
        assert merged.recordings[0].source == str(newer)
        assert [(n.what, "newer" in n.why) for n in merged.not_examined] == [(str(older), True)]


def test_ranks_are_numbered_by_all_names_together(tmp_path):
    """On its own each host would take another number of the name."""
    dumps = one_missing(4)
    names = {0: "job17_0_4711", 1: "job17_1_813", 2: "job17_2_4712", 3: "job17_3_99"}
    folder = tmp_path / "d"
    paths = []
    for rank, name in names.items():
        (path,) = write(folder, {rank: dumps[rank]}, name=name)
        paths.append(path)
    digests = [summed([path], tmp_path / "digests", f"host-{'abcd'[n]}").path for n, path in enumerate(paths)]
    whole, merged = record_all(paths), record_all(digests)
    assert sorted(merged.recordings) == [0, 1, 2, 3] and same(whole, merged) and not merged.unsure


def test_names_that_count_anew_on_each_host_are_not_taken_for_the_same_ranks(tmp_path):
    dumps = one_missing(4)
    digests = []
    for host in range(2):
        paths = write(tmp_path / str(host), {r: dumps[2 * host + r] for r in range(2)}, name="local_rank_{}")
        digests.append(summed(paths, tmp_path / "digests", f"host{host}"))
    # Both digests have rank 0 first; their hosts tell them apart.
    merged = record_all([d.path for d in digests])
    assert len(merged.recordings) == 4 and merged.unsure


def test_what_a_file_tells_of_its_rank_stays(tmp_path):
    dumps = one_missing(4)
    digests = []
    for n in range(2):
        (tmp_path / f"host{n}.json").write_text(json.dumps({str(r): dumps[r] for r in (2 * n, 2 * n + 1)}))
        digests.append(summed([tmp_path / f"host{n}.json"], tmp_path / "digests", f"h{n}").path)
    merged = record_all(digests)
    assert judge(merged.recordings).ranks == (1,) and list(merged.recordings) == [0, 1, 2, 3] and not merged.unsure
    assert flight(merged.recordings[3]).calls["0"][0].op


def test_digests_are_not_summed_up_again(tmp_path):
    paths, digests = on_hosts(tmp_path, one_missing(4))
    done = summed([*paths, *digests], tmp_path / "all")
    assert done.dumps == 4 and [n.what for n in done.not_examined] == list(map(str, digests)) and not any(n.unread for n in done.not_examined)
    with pytest.raises(UnhangError, match="none of the flight-recorder dumps"):
        summed(digests, tmp_path / "none")


def test_what_would_not_be_read_is_not_written(tmp_path):
    large = [e | {"input_sizes": [[1 << 70]]} for e in history(3)]
    paths = write(tmp_path / "dumps", {0: jobs.dump(large), 1: jobs.dump(history(3), groups=None)})
    done = summed(paths, tmp_path / "digests")
    assert done.ranks == (1,) and "none of its entries" in done.not_examined[0].why and done.not_examined[0].unread
    assert list(record_all([done.path]).recordings) == [1]


def test_what_a_dump_has_lost_is_said_where_it_can_be_fetched_again(tmp_path):
    paths = write(tmp_path / "dumps", jobs.run(jobs.Plan(world=2, steps=20)))
    paths[1].write_bytes(paths[1].read_bytes()[:-400])
    done = summed(paths, tmp_path / "digests")
    assert done.dumps == 2
    (left,) = done.not_examined
    assert left.what == str(paths[1]) and "cut off" in left.why and left.unread


def test_nothing_to_sum_up(tmp_path):
    bad = tmp_path / "rank_0"
    bad.write_bytes(b"\x80\x02}q\x00X\x09\x00\x00\x00pg_configq\x01")
    with pytest.raises(UnhangError, match="none of the flight-recorder dumps"):
        summed([bad], tmp_path / "digests")
    assert not (tmp_path / "digests").exists()


def test_a_digest_of_other_dumps_is_not_overwritten(tmp_path):
    first = summed(write(tmp_path / "a", one_missing(2)), tmp_path / "digests").path
    held = first.read_bytes()
    assert summed(write(tmp_path / "a", one_missing(2)), tmp_path / "digests").path == first
    with pytest.raises(RecordError, match="holds something else"):
        summed(write(tmp_path / "b", one_missing(3)), tmp_path / "digests")
    assert first.read_bytes() == held and list((tmp_path / "digests").iterdir()) == [first]


def test_without_hard_links_it_is_written_all_the_same(tmp_path, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    test_a_digest_of_other_dumps_is_not_overwritten(tmp_path)


def test_while_it_is_written_nobody_takes_it_for_a_digest(tmp_path, monkeypatch):
    seen = []
    link = os.link
    monkeypatch.setattr(digest, "_HEAD", type("Head", (), {"pack": lambda *a: seen.append(list((tmp_path / "digests").iterdir())) or b"12345678"}))
    monkeypatch.setattr(os, "link", lambda a, b: seen.append(digest.is_digest(a)) or link(a, b))
    path = summed(write(tmp_path / "a", one_missing(2)), tmp_path / "digests").path
    assert seen[-1] is True and all(len(found) == 1 and found[0].name.startswith(".") for found in seen[:-1])
    assert list((tmp_path / "digests").iterdir()) == [path]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def fill(file, blocks):
        file.write(b"x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(digest, "_fill", fill)
    with pytest.raises(OSError, match="No space left"):
        summed(write(tmp_path / "a", one_missing(2)), tmp_path / "digests")
    assert list((tmp_path / "digests").iterdir()) == []


def test_the_name_of_a_host_leads_nowhere(tmp_path):
    path = summed(write(tmp_path / "dumps", one_missing(2)), tmp_path / "digests", "../../etc/node 1").path
    assert path.parent == tmp_path / "digests" and path.name.startswith("_.._etc_node_1")


def test_no_credential_gets_into_it(tmp_path):
    secret = "hunter2hunter2"
    dumps = {}
    for rank in range(2):
        entries = [jobs.entry(i, (f"password={secret}{i % 2}", f"token={secret}"), i + 1, "all_reduce", 4, 20, "completed", t=i) for i in range(4)]
        for e in entries:
            e["frames"] = [{"name": f"api_key={secret}", "filename": f"/home/user/password={secret}", "line": 3}]
        dumps[rank] = jobs.dump(entries, {f"password={secret}{n}": (f"token={secret}", [0, 1]) for n in range(2)}, version=f"password={secret}")
    paths = write(tmp_path / "dumps" / f"password={secret}", dumps)
    from unhang.diagnosis.redact import redact

    path = sum_up(paths, tmp_path / "digests", f"password={secret}", clean=redact).path
    assert secret not in path.name
    (merged,) = [digest.read(path)]
    told = repr(merged) + repr(flight(merged.recordings[0])) + b"".join(digest._blocks(path)).decode("latin-1")
    assert secret not in told and "/home/user/password=[redacted]" in told
    # Two groups whose names differ in nothing else are still two.
    assert len(merged.recordings[0].tracks) == 2


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    return summed(write(folder / "dumps", jobs.run(jobs.Plan(world=8, steps=60))), folder / "digests").path


def test_a_cut_one_gives_the_dumps_before_the_cut(one, tmp_path):
    whole = digest.read(one)
    assert len(whole.recordings) == 8 and whole.damage is None
    counts = set()
    blocks = list(digest._blocks(one))
    path = tmp_path / "cut.unhang-digest"
    for left in range(1, len(blocks)):
        stream = b"".join(digest._HEAD.pack(len(b), digest.crc32(b)) + b for b in blocks[: left + 1])
        path.write_bytes(digest.MAGIC + zstandard.ZstdCompressor().compress(stream[:-5]))
        if left == 1:
            with pytest.raises(RecordError, match="none of its 8 dumps"):
                digest.read(path)
            continue
        found = digest.read(path)
        assert [compared_of(r) for r in found.recordings] == [compared_of(r) for r in whole.recordings[: left - 1]]
        assert found.damage == f"it is cut off or damaged: {8 - left + 1} of its 8 dumps cannot be read"
        counts.add(len(found.recordings))
    assert counts == set(range(1, 8))
    merged = record_all([path])
    assert len(merged.recordings) == 7 and [n.unread for n in merged.not_examined] == [True]


def test_a_small_one_that_was_cut_keeps_the_dumps_before_the_cut(one, tmp_path):
    """As it is written: what zstd packs together is lost together."""
    whole, data, kept = digest.read(one), one.read_bytes(), set()
    path = tmp_path / "cut.unhang-digest"
    for place in range(len(digest.MAGIC) + 20, len(data) - 8, 7):
        path.write_bytes(data[:place])
        try:
            found = digest.read(path)
        except RecordError:
            continue
        assert [compared_of(r) for r in found.recordings] == [compared_of(r) for r in whole.recordings[: len(found.recordings)]]
        assert found.damage or len(found.recordings) == 8
        kept.add(len(found.recordings))
    assert kept >= set(range(1, 8)) and found.host == "node0"


@given(at=st.floats(0, 1), bits=st.integers(1, 255), cut=st.booleans())
def test_no_damage_goes_unsaid(one, tmp_path_factory, at, bits, cut):
    data = one.read_bytes()
    place = min(int(at * len(data)), len(data) - 1)
    damaged = data[:place] if cut else data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]
    path = tmp_path_factory.mktemp("damaged") / "x.unhang-digest"
    path.write_bytes(damaged)
    try:
        found = digest.read(path)
    except RecordError as e:
        assert str(path) in str(e)
    else:
        expected = [compared_of(r) for r in digest.read(one).recordings]
        assert [compared_of(r) for r in found.recordings] == expected[: len(found.recordings)]
        # The last bytes are a checksum of the whole, and no dump is behind them.
        assert found.damage is not None or len(found.recordings) == 8


@given(data=st.data())
def test_blocks_that_lie_are_refused_or_still_columns(one, tmp_path_factory, data):
    """Checksums keep accidents out, nobody's intent."""
    head, first, *_ = digest._blocks(one)
    dump = msgspec.msgpack.decode(first)
    field = data.draw(st.integers(0, len(dump) - 1))
    values = (
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | st.text(max_size=5) | st.lists(st.integers(-5, 10**7), max_size=3)
    )
    dump[field] = data.draw(values | st.lists(st.tuples(st.integers(-5, 10**7), st.integers(-(2**63), 2**63 - 1)), max_size=3))
    folder = tmp_path_factory.mktemp("lying")
    path = folder / "x.unhang-digest"
    with path.open("wb") as f:
        digest._fill(f, [head, msgspec.msgpack.encode(dump)])
    try:
        found = digest.read(path)
    except RecordError:
        return
    for recording in found.recordings:
        assert all(len(t.ids) == len(t.ends) for t in recording.tracks)
        flight(recording)
        judge({recording.rank: recording})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((0, n) for n in (1 << 20, 10**9, -1)),
        (4, 2**40),
        *((16, [["0", "default_pg", [run]]]) for run in ([0, 2, 10**9], [0, 10**7, 1], [0, (1 << 20) + 1, 1])),
        # No group is too large, and they are too many.
        (16, [[f"g{n}", "x", [[n, 1_000_000, 1]]] for n in range(24)]),
    ],
)
def test_ranks_that_no_job_has_are_refused(one, tmp_path, field, value):
    """A list of all ranks is made of them."""
    head, first, *_ = digest._blocks(one)
    dump = msgspec.msgpack.decode(first)
    dump[field] = value
    with (tmp_path / "x").open("wb") as f:
        digest._fill(f, [head, msgspec.msgpack.encode(dump)])
    with pytest.raises(RecordError, match="none of its 8 dumps can be read"):
        digest.read(tmp_path / "x")


def test_all_dumps_of_a_digest_together_have_no_more_members_than_a_job(one, tmp_path):
    """24 groups of 5,000,000 in 275 bytes took 7 GB."""
    head, first, *_ = digest._blocks(one)
    dump = msgspec.msgpack.decode(first)
    blocks = []
    for n in range(8):
        # Those that ranks share are one.
        dump[16] = [["shared", "x", [[0, 1_000_000, 1]]], [f"g{n}", "x", [[n, 1_000_000, 1]]]]
        blocks.append(msgspec.msgpack.encode(dump))
    with (tmp_path / "x").open("wb") as f:
        digest._fill(f, [head, *blocks])
    found = digest.read(tmp_path / "x")
    assert len(found.recordings) == 3 and found.damage == "it is cut off or damaged: 5 of its 8 dumps cannot be read"


@pytest.mark.parametrize("blocks", [bytes(16 * 1024**2), b"\xff" * 16 * 1024**2])
def test_a_bomb_is_refused(tmp_path, blocks):
    path = tmp_path / "bomb.unhang-digest"
    path.write_bytes(digest.MAGIC + zstandard.ZstdCompressor().compress(blocks))
    with pytest.raises(RecordError, match="nothing in it can be read"):
        digest.read(path)


def test_no_more_is_unpacked_than_the_bound(one, tmp_path, monkeypatch):
    blocks = list(digest._blocks(one))
    monkeypatch.setattr(digest, "_MOST_BYTES", sum(len(b) + 8 for b in blocks[:4]))
    assert len(list(digest._blocks(one))) == 4
    monkeypatch.setattr(digest, "_MOST_BLOCK_BYTES", 100)
    assert len(list(digest._blocks(one))) == 1


def test_a_digest_of_a_newer_format_is_said_and_the_rest_used(tmp_path):
    _, digests = on_hosts(tmp_path, one_missing(4))
    data = digests[1].read_bytes()
    digests[1].write_bytes(data.replace(digest.MAGIC, b"UNHANG-DIGEST\x02\n", 1))
    merged = record_all(digests)
    assert list(merged.recordings) == [0, 2]
    (told,) = merged.not_examined
    assert told.what == str(digests[1]) and "a digest of format 2, and this unhang reads format 1" in told.why and told.unread


def test_progress_counts_dumps_and_digests(tmp_path):
    paths, digests = on_hosts(tmp_path, one_missing(6), hosts=3)
    for work in (
        lambda tell: sum_up(paths, tmp_path / "more", "h", clean=str, progress=tell),
        lambda tell: record_all([*digests[:2], *paths[2::3]], progress=tell),
    ):
        told = []
        work(lambda done, total, told=told: told.append((done, total)))
        assert len(told) >= 4 and told == sorted(told) and told[-1][0] == told[-1][1] > 0


def test_what_is_drawn_of_a_digest_is_that_of_its_dumps_but_for_times(tmp_path):
    (tmp_path / "dumps").mkdir()
    plan = jobs.Plan(world=8, tp=2, steps=5)
    for rank, raw in jobs.run(plan).items():
        (tmp_path / "dumps" / f"rank_{rank}").write_bytes(pickle.dumps(raw))
    paths = sorted((tmp_path / "dumps").iterdir())
    sum_up(paths, tmp_path / "digests", "node7", clean=str)
    of_dumps, of_digest = record_all(paths, drawn=True), record_all(sorted((tmp_path / "digests").iterdir()), drawn=True)
    assert of_dumps.lanes and set(of_digest.hosts.values()) == {"node7"} and not of_dumps.hosts
    for rank, lanes in of_dumps.lanes.items():
        (mine,), (theirs,) = (lanes, of_digest.lanes[rank])
        assert (theirs.calls, theirs.sites) == (mine.calls, mine.sites)
        assert list(theirs.lanes) == [replace(lane, starts_ns=None) for lane in mine.lanes]
