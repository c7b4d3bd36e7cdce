"""Digests: the same recordings as from the dumps, a few kilobytes a rank, and no trust in what a file says."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import re
import resource

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.flight import jobs

from unhang.errors import RecordError, UnhangError
from unhang.flight import digest
from unhang.flight.read_all import flight, record_all, sum_up
from unhang.flight.wait_graph import judge

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
    assert sorted(merged.recordings) == [1, 3] and "damaged" in merged.not_examined[0].why and merged.not_examined[0].unread


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
    assert done.path.stat().st_size < 4 * 5000 < sum(p.stat().st_size for p in paths) / 30


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


def test_a_full_disk_leaves_nothing(tmp_path):
    paths = write(tmp_path / "a", one_missing(2))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        with pytest.raises(OSError, match="No space left"):
            summed(paths, tmp_path / "digests")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
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
    merged = record_all([path])
    told = repr(merged) + repr(flight(merged.recordings[0])) + unpacked(path).decode("latin-1")
    assert secret not in told and "/home/user/password=[redacted]" in told
    # Two groups whose names differ in nothing else are still two.
    assert len(merged.recordings[0].tracks) == 2


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    return summed(write(folder / "dumps", jobs.run(jobs.Plan(world=8, steps=60))), folder / "digests").path


def unpacked(path):
    return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()[len(digest.MAGIC) :])


def refused(path, why="is damaged: nothing in it can be read"):
    """Nothing of it is used, and one sentence says so."""
    with pytest.raises(RecordError, match=f"^{re.escape(str(path))} {why}"):
        read = digest.read(path)
        for place in range(len(read)):
            read.dump(place)
    merged = record_all([path])
    assert merged.recordings == {} and [(n.what, n.unread) for n in merged.not_examined] == [(str(path), True)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_one_is_damaged_as_a_whole(one, tmp_path, at, bits, cut):
    data = one.read_bytes()
    place = int(at * len(data))
    path = tmp_path / "x.unhang-digest"
    path.write_bytes(data[:place] if cut else data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :])
    with pytest.raises(RecordError, match=re.escape(str(path))):
        digest.read(path)


@pytest.mark.parametrize("left", [0, 5, 14, 15, 40, -1])
def test_a_cut_one_is_refused_in_one_sentence(one, tmp_path, left):
    path = tmp_path / "cut.unhang-digest"
    path.write_bytes(one.read_bytes()[:left])
    refused(path)


def lying(one, path, change):
    """A digest whose checksum is right, and whose first dump has been changed."""
    host, missed, beside, blocks = msgspec.msgpack.decode(unpacked(one), type=list[msgspec.Raw])
    dumps = [list(d) for d in msgspec.msgpack.decode(blocks)]
    change(dumps[0])
    data = msgspec.msgpack.encode([host, missed, beside, dumps])
    path.write_bytes(digest.MAGIC + zstandard.ZstdCompressor(write_checksum=True).compress(data))
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(data=st.data())
def test_one_that_lies_is_refused_or_still_a_dump(one, tmp_path, data):
    """Checksums keep accidents out, nobody's intent."""
    values = (
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | st.text(max_size=5) | st.lists(st.integers(-5, 10**7), max_size=3)
    )

    def change(dump):
        field = data.draw(st.integers(0, len(dump) - 1))
        inner = dump[field]
        if isinstance(inner, dict) and data.draw(st.booleans()):
            inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(values)
        elif isinstance(inner, list) and inner and data.draw(st.booleans()):
            inner[data.draw(st.integers(0, len(inner) - 1))] = data.draw(values)
        else:
            dump[field] = data.draw(values)

    merged = record_all([lying(one, tmp_path / "x.unhang-digest", change)], drawn=True)
    for recording in merged.recordings.values():
        assert all(len(t.ids) == len(t.ends) for t in recording.tracks)
        flight(recording)
    judge(merged.recordings)


@pytest.mark.parametrize(("name", "value"), [("rank", 1 << 20), ("rank", 10**9), ("rank", -1), ("nth", 2**40)])
def test_ranks_that_no_job_has_are_refused(one, tmp_path, name, value):
    """A list of all ranks is made of them."""
    refused(lying(one, tmp_path / "x.unhang-digest", lambda dump: dump[0].update({name: value})))


@pytest.mark.parametrize("data", [bytes(16 * 1024**2), b"\xff" * 16 * 1024**2, b"\xdd\x7f\xff\xff\xff" * 1000])
def test_a_bomb_is_refused(tmp_path, data):
    path = tmp_path / "bomb.unhang-digest"
    path.write_bytes(digest.MAGIC + zstandard.ZstdCompressor(write_checksum=True).compress(data))
    refused(path)


def test_one_that_asks_for_more_than_its_size_can_hold_is_left_out(one, tmp_path):
    """A hundred million entries of one form in some kilobytes: the kernel ends its reader, and no dump is taken from it."""
    many = {"forms": [{}], "count": 100_000_000}

    def change(dump):
        dump[2], dump[3], dump[4] = many["forms"], msgspec.Raw(b"\xdd" + many["count"].to_bytes(4, "big") + bytes(many["count"])), {}

    merged = record_all([lying(one, tmp_path / "x.unhang-digest", change)])
    (left,) = merged.not_examined
    assert merged.recordings == {} and "it took more than" in left.why and left.unread


def test_no_more_is_unpacked_than_of_a_dump_and_no_more_is_written(one, tmp_path, monkeypatch):
    monkeypatch.setattr(digest, "MAX_BYTES", len(unpacked(one)) - 1)
    refused(one)
    with pytest.raises(RecordError, match="2 dumps are too many for one digest"):
        digest.write(tmp_path, "h", [digest.Summed(rank=r, block=bytes(len(unpacked(one))), left=()) for r in range(2)], clean=str)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", [1, 3])
def test_a_digest_of_another_format_is_said_and_the_rest_used(tmp_path, version):
    _, digests = on_hosts(tmp_path, one_missing(4))
    data = digests[1].read_bytes()
    digests[1].write_bytes(data.replace(digest.MAGIC, b"UNHANG-DIGEST%c\n" % version, 1))
    merged = record_all(digests)
    assert list(merged.recordings) == [0, 2]
    (told,) = merged.not_examined
    assert told.what == str(digests[1]) and f"a digest of format {version}, and this unhang reads format 2" in told.why and told.unread


def test_progress_counts_dumps_and_digests(tmp_path):
    paths, digests = on_hosts(tmp_path, one_missing(6), hosts=3)
    for work in (
        lambda tell: sum_up(paths, tmp_path / "more", "h", clean=str, progress=tell),
        lambda tell: record_all([*digests[:2], *paths[2::3]], progress=tell),
    ):
        told = []
        work(lambda done, total, told=told: told.append((done, total)))
        assert len(told) >= 4 and told == sorted(told) and told[-1][0] == told[-1][1] > 0


def test_what_is_drawn_of_a_digest_is_that_of_its_dumps(tmp_path):
    (tmp_path / "dumps").mkdir()
    plan = jobs.Plan(world=8, tp=2, steps=5)
    for rank, raw in jobs.run(plan).items():
        (tmp_path / "dumps" / f"rank_{rank}").write_bytes(pickle.dumps(raw))
    paths = sorted((tmp_path / "dumps").iterdir())
    sum_up(paths, tmp_path / "digests", "node7", clean=str)
    of_dumps, of_digest = record_all(paths, drawn=True), record_all(sorted((tmp_path / "digests").iterdir()), drawn=True)
    assert of_dumps.lanes and set(of_digest.hosts.values()) == {"node7"} and not of_dumps.hosts
    assert of_digest.lanes == of_dumps.lanes
