"""Run directories out of archives: what is written to disk, and what of it is left."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import pickle
import random
import tarfile
import tempfile
import zipfile

import pytest
import zstandard

from unhang.errors import UnhangError
from unhang.logs.discovery import find
from unhang.logs.sources import Source
from unhang.logs.streams import Limits
from unhang.records import packed

RUN = b'{"schema": "unhang/run/1", "started": "2026-11-0%dT10:00:00+00:00"}'


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """Where everything is unpacked to."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    assert not list(folder.iterdir())


def tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            if isinstance(data, str):
                member.type, member.linkname = tarfile.SYMTYPE, data
                archive.addfile(member)
            else:
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path


def source(path):
    return find([str(path)]).sources[0]


def piped(data: bytes):
    return find(["-"], stdin=io.BytesIO(data)).sources[0]


def held(path):
    return packed.held(source(path))


@contextlib.contextmanager
def unpacked(given, holds="runs", *, limits=None):
    with packed.folder() as into:
        yield packed.unpack(given if isinstance(given, Source) else source(given), holds, into, limits=limits)


def paths_of(found):
    return {str(p).removeprefix(found.place): p.read_bytes() for p in found.dumps}


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


@pytest.mark.parametrize("prefix", ["", "./", "run/", "home/me/runs/run/"])
@pytest.mark.parametrize("how", ["tar", "tar.gz", "tar.xz", "zip"])
def test_only_what_a_run_directory_has(tmp_path, prefix, how):
    members = [
        (f"{prefix}logs/attempt-0/rank0.err", b"step 1\n"),
        (f"{prefix}incidents/1/stacks/rank0.json", b"{}"),
        (f"{prefix}incidents/1/verdict.json", b"{}"),
        (f"{prefix}run.json", RUN % 1),
        ("model.pt", b"x" * 100),
        (f"{prefix}logs/attempt-0/.hidden", b"x"),
    ]
    path = tmp_path / f"a.{how}"
    if how == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members:
                archive.writestr(name, data)
    else:
        tar(path, members, "w" if how == "tar" else f"w:{how[4:]}")
    assert held(path) == "runs"
    with unpacked(path) as found:
        assert files(found.runs[0].path) == ["incidents/1/stacks/rank0.json", "incidents/1/verdict.json", "logs/attempt-0/rank0.err", "run.json"]
        assert found.runs[0].name == f"{path}!{prefix.strip('./')}".rstrip("!") and found.not_examined == ()


def test_several_in_one(tmp_path):
    path = tar(tmp_path / "a.tgz", [(f"runs/{name}/run.json", RUN % day) for name, day in (("z", 1), ("b", 3), ("c", 2))])
    with unpacked(path) as found:
        assert [run.name.rpartition("/")[2] for run in found.runs] == ["z", "c", "b"]


def test_more_than_anybody_packs(tmp_path):
    path = tar(tmp_path / "a.tar", [(f"runs/{n}/run.json", RUN % 1) for n in range(1200)], "w")
    with unpacked(path) as found:
        assert len(found.runs) == 1000 and found.not_examined[0].unread and "more than 1,000 run directories" in found.not_examined[0].why


def test_names_that_lead_out_and_links(tmp_path, kept):
    members = [
        ("run/run.json", RUN % 1),
        ("run/../../up/run.json", RUN % 2),
        ("/abs/run.json", RUN % 2),
        ("run/events.jsonl", "/etc/hostname"),
        ("run/logs/attempt-0", "/etc"),
        ("run/logs/attempt-0/rank0.err", b"step 1\n"),
    ]
    path = tar(tmp_path / "a.tar", members, "w")
    with unpacked(path) as found:
        assert len(found.runs) == 1 and files(kept / next(kept.iterdir()))[-1].endswith("run.json")
        assert not any(p.is_symlink() for p in kept.rglob("*"))
        assert [n.unread for n in found.not_examined] == [True, True]
    assert {p.name for p in tmp_path.iterdir()} == {"kept", "a.tar"}


@pytest.mark.parametrize(("limits", "says"), [(Limits(members=2), "more than 2 members"), (Limits(always_bytes=500, ratio=1), "bomb")])
def test_limits(tmp_path, limits, says):
    path = tar(tmp_path / "a.tgz", [("r/run.json", RUN % 1), *((f"r/logs/attempt-0/rank{n}.err", b"0" * 4000) for n in range(9))])
    with unpacked(path, limits=limits) as found:
        assert any(says in n.why and n.unread for n in found.not_examined)
        assert sum(p.stat().st_size for p in found.runs[0].path.rglob("*.err")) < 9 * 4000 if found.runs else True


def test_what_is_cut_off_is_judged_as_far_as_it_goes(tmp_path):
    path = tar(tmp_path / "a.tar", [("r/run.json", RUN % 1), ("r/logs/attempt-0/rank0.err", b"0" * 4000)], "w")
    path.write_bytes(path.read_bytes()[:3000])
    with unpacked(path) as found:
        assert len(found.runs) == 1 and "cut off" in found.not_examined[0].why


def test_a_full_disk_is_the_users(tmp_path, monkeypatch):
    path = tar(tmp_path / "a.tgz", [("r/run.json", RUN % 1)])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed, "_write", full)
    with pytest.raises(UnhangError, match="No space left"), unpacked(path):
        pass


def test_it_is_gone_whatever_happens(tmp_path):
    path = tar(tmp_path / "a.tgz", [("r/run.json", RUN % 1)])
    with contextlib.suppress(SystemExit), unpacked(path):
        raise SystemExit(130)


def test_large_archives_of_logs_are_not_read_to_their_end(tmp_path, monkeypatch):
    path = tar(tmp_path / "a.tar", [("train.log", b"0" * 4000), ("r/run.json", RUN % 1)], "w")
    assert held(path) == "runs"
    monkeypatch.setattr(packed, "_LOOK_BYTES", 1000)
    assert held(path) is None
    # Its own logs may be as long as they like.
    assert held(tar(tmp_path / "b.tar", [("r/logs/attempt-0/rank0.err", b"0" * 4000), ("r/run.json", RUN % 1)], "w")) == "runs"
    (tmp_path / "c.log").write_text("step 1\n")
    (tmp_path / "c.log.gz").write_bytes(gzip.compress(b"step 1\n"))
    assert held(tmp_path / "c.log.gz") is None


def dump(rank: int) -> bytes:
    return pickle.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": [{"record_id": rank}]}, protocol=2)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_dumps_are_taken_with_their_folders(tmp_path, kind):
    archive = tmp_path / f"dumps.{kind}"
    files = {f"h{rank // 2}/nccl_trace_rank_{rank}": dump(rank) for rank in range(4)}
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as z:
            for name, data in files.items():
                z.writestr(name, data)
    else:
        with tarfile.open(archive, "w:gz" if kind.endswith("gz") else "w") as tar:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    assert held(archive) == "dumps"
    with unpacked(archive, "dumps") as found:
        assert paths_of(found) == files
        assert (found.others, found.not_examined, found.called) == (False, (), f"{archive}!")


def test_dumps_beside_logs_and_names_that_lead_out(tmp_path):
    archive = tmp_path / "all.tar"
    with tarfile.open(archive, "w") as tar:
        for name, data in {"../../rank_9": dump(9), "/etc/rank_8": dump(8), "rank_0": dump(0), "train.log": b"step 1\n", "model.pt": b"x"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with unpacked(archive, "dumps") as found:
        assert [p.name for p in found.dumps] == ["rank_0"] and found.others
        (left,) = found.not_examined
        assert left.unread and "leads out" in left.why
    assert not (tmp_path / "rank_9").exists()


def test_an_archive_of_dumps_that_is_cut_off(tmp_path):
    archive = tmp_path / "all.tar"
    with tarfile.open(archive, "w") as tar:
        for rank in range(3):
            info = tarfile.TarInfo(f"rank_{rank}")
            info.size = len(dump(rank))
            tar.addfile(info, io.BytesIO(dump(rank)))
    archive.write_bytes(archive.read_bytes()[:2200])
    gone = source(archive)
    with unpacked(archive, "dumps") as found:
        assert [p.name for p in found.dumps] == ["rank_0", "rank_1"]
        assert found.not_examined and found.not_examined[0].unread
    archive.unlink()
    assert packed.held(gone) is None


PACKINGS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": zstandard.compress}


def zipped(members) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return made.getvalue()


def tarred(members, tmp_path, mode="w:gz") -> bytes:
    path = tar(tmp_path / "made", members, mode)
    data = path.read_bytes()
    path.unlink()
    return data


def archived(how, members, tmp_path) -> bytes:
    return zipped(members) if how == "zip" else tarred(members, tmp_path, "w" if how == "tar" else "w:gz")


@pytest.mark.parametrize("how", ["tar", "tar.gz", "zip"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_dumps_that_are_packed_singly(tmp_path, how, packing):
    # More than a block of any packing.
    dumps = [
        (f"d/rank_{n}.{packing}", PACKINGS[packing](pickle.dumps({"pg_config": {}, "entries": [random.Random(n).randbytes(2_000_000)]}, 2)))
        for n in range(2)
    ]
    (tmp_path / "a").write_bytes(archived(how, [*dumps, ("train.log.gz", gzip.compress(b"step 1\n"))], tmp_path))
    assert held(tmp_path / "a") == "dumps"
    with unpacked(tmp_path / "a", "dumps") as found:
        assert paths_of(found) == dict(dumps)
        assert (found.others, found.not_examined) == (True, ())


@pytest.mark.parametrize("inner", ["tar", "tar.gz", "zip"])
@pytest.mark.parametrize("outer", ["tar", "tar.gz", "zip"])
def test_archives_of_hosts_in_an_archive(tmp_path, outer, inner):
    hosts = [(f"jobs/h{h}.{inner}", archived(inner, [(f"./rank_{h}", dump(h)), ("../up", dump(9))], tmp_path)) for h in range(2)]
    (tmp_path / "a").write_bytes(archived(outer, hosts, tmp_path))
    assert held(tmp_path / "a") == "dumps"
    with unpacked(tmp_path / "a", "dumps") as found:
        assert paths_of(found) == {f"jobs/h{h}.{inner}!/rank_{h}": dump(h) for h in range(2)}
        (left,) = found.not_examined
        assert left.unread and "leads out" in left.why and "../up" in left.what
    (tmp_path / "b").write_bytes(archived(outer, [(f"h0.{inner}", archived(inner, [("run.json", RUN % 1)], tmp_path))], tmp_path))
    assert held(tmp_path / "b") == "runs"
    with unpacked(tmp_path / "b") as found:
        assert [r.name for r in found.runs] == [f"{tmp_path}/b!h0.{inner}"]


def test_an_archive_in_two_others_is_not_opened(tmp_path):
    data = zipped([("rank_0", dump(0))])
    for _ in range(2):
        data = zipped([("a.zip", data)])
    (tmp_path / "a.zip").write_bytes(data)
    assert held(tmp_path / "a.zip") is None


def test_a_damaged_archive_in_an_archive_costs_only_itself(tmp_path):
    broken = tarred([("rank_1", dump(1)), ("rank_2", b"x" * 3000)], tmp_path, "w")[:2000]
    path = tar(tmp_path / "a.tgz", [("h1.tar", broken), ("rank_0", dump(0))])
    with unpacked(path, "dumps") as found:
        assert sorted(p.name for p in found.dumps) == ["rank_0", "rank_1"]
        assert [n.unread for n in found.not_examined] == [True]


@pytest.mark.parametrize("how", ["tar", "tar.gz", "zip"])
def test_through_a_pipe(tmp_path, how):
    dumps = piped(archived(how, [("d/rank_0", dump(0))], tmp_path))
    assert packed.held(dumps) == "dumps"
    with unpacked(dumps, "dumps") as found:
        assert (paths_of(found), found.called) == ({"d/rank_0": dump(0)}, "stdin!")
    run = piped(archived(how, [("r/logs/attempt-0/rank0.err", b"step 1\n"), ("r/run.json", RUN % 1)], tmp_path))
    assert packed.held(run) == "runs"
    with unpacked(run) as found:
        assert [r.name for r in found.runs] == ["stdin!r"] and len(files(found.runs[0].path)) == 2


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_dump_alone_through_a_pipe(pack):
    given = piped(pack(dump(3)))
    assert packed.held(given) == "dumps"
    with unpacked(given, "dumps") as found:
        assert [p.read_bytes() for p in found.dumps] == [dump(3)]
        assert str(found.dumps[0]).replace(found.place, found.called) == "stdin" and not found.others
    assert packed.held(piped(pack(b"step 1\n"))) is None


def test_names_that_no_file_can_have(tmp_path, kept):
    names = ["a" * 400, "b/" * 90 + "c", "a\0b", "\x1b[31m", "x", "x", "x/y", ".", "", "2/x"]
    made = tmp_path / "a.tar"
    with tarfile.open(made, "w", format=tarfile.PAX_FORMAT) as archive:
        for n, name in enumerate(names):
            member = tarfile.TarInfo(f"m{n}")
            member.pax_headers = {"path": name}
            member.size = len(dump(n))
            archive.addfile(member, io.BytesIO(dump(n)))
    with unpacked(made, "dumps") as found:
        assert sorted(p.read_bytes() for p in found.dumps) == sorted(dump(n) for n in range(len(names)))
        assert all(p.is_relative_to(kept) and p.name.isprintable() for p in found.dumps) and found.not_examined == ()


def test_members_of_a_run_directory_in_each_others_place(tmp_path):
    members = [("r/run.json", RUN % 1), ("r/incidents/1/flight/cpu", b"x"), ("r/incidents/1/flight/cpu/rank_0", b"y")]
    with unpacked(tar(tmp_path / "a.tar", members)) as found:
        assert len(found.runs) == 1 and "another member" in found.not_examined[0].why


def test_another_programs_run_json(tmp_path):
    path = tar(tmp_path / "a.tgz", [("run.json", b'{"job": 1}'), ("rank_0", dump(0))])
    assert held(path) == "dumps"
    assert held(tar(tmp_path / "b.tgz", [("run.json", b'{"job": 1}'), ("rank_0", dump(0)), ("events.jsonl", b"")])) == "runs"
    assert packed.held(source(tmp_path / "b.tgz"), runs=False) == "dumps"


def test_a_bomb_is_not_unpacked(tmp_path):
    bomb = gzip.compress(dump(0) + bytes(50_000_000))
    path = tar(tmp_path / "a.tar", [("h.tar.gz", tarred([("rank_1", dump(1) + bytes(50_000_000))], tmp_path)), ("rank_0.gz", bomb)], "w")
    with unpacked(path, "dumps", limits=Limits(always_bytes=1_000_000, ratio=10)) as found:
        assert sum(p.stat().st_size for p in found.dumps) < 2_500_000
        assert any("bomb" in n.why and n.unread for n in found.not_examined)
    # What is packed singly is taken as it is, and unpacked within the bounds of a dump.
    with unpacked(tar(tmp_path / "b.tar", [("rank_0.gz", bomb)], "w"), "dumps", limits=Limits(always_bytes=1_000_000, ratio=10)) as found:
        assert [p.stat().st_size for p in found.dumps] == [len(bomb)]
