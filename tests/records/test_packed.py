"""Run directories out of archives: what is written to disk, and what of it is left."""

from __future__ import annotations

import contextlib
import io
import pickle
import tarfile
import zipfile

import pytest

from unhang.errors import UnhangError
from unhang.records import packed
from unhang.records.logs.streams import Limits

RUN = b'{"schema": "unhang/run/1", "started": "2026-11-0%dT10:00:00+00:00"}'


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """Where everything is unpacked to."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(packed.tempfile, "tempdir", None)
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
    assert packed.holds_run(path)
    with packed.unpacked(path) as found:
        assert files(found.runs[0].path) == ["incidents/1/stacks/rank0.json", "incidents/1/verdict.json", "logs/attempt-0/rank0.err", "run.json"]
        assert found.runs[0].name == f"{path}!{prefix.strip('./')}".rstrip("!") and found.not_examined == ()


def test_several_in_one(tmp_path):
    path = tar(tmp_path / "a.tgz", [(f"runs/{name}/run.json", RUN % day) for name, day in (("z", 1), ("b", 3), ("c", 2))])
    with packed.unpacked(path) as found:
        assert [run.name.rpartition("/")[2] for run in found.runs] == ["z", "c", "b"]


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
    with packed.unpacked(path) as found:
        assert len(found.runs) == 1 and files(kept / next(kept.iterdir()))[-1].endswith("run.json")
        assert not any(p.is_symlink() for p in kept.rglob("*"))
        assert [n.unread for n in found.not_examined] == [True, True]
    assert {p.name for p in tmp_path.iterdir()} == {"kept", "a.tar"}


@pytest.mark.parametrize(("limits", "says"), [(Limits(members=2), "more than 2 members"), (Limits(always_bytes=500, ratio=1), "bomb")])
def test_limits(tmp_path, limits, says):
    path = tar(tmp_path / "a.tgz", [("r/run.json", RUN % 1), *((f"r/logs/attempt-0/rank{n}.err", b"0" * 4000) for n in range(9))])
    with packed.unpacked(path, limits=limits) as found:
        assert any(says in n.why and n.unread for n in found.not_examined)
        assert sum(p.stat().st_size for p in found.runs[0].path.rglob("*.err")) < 9 * 4000 if found.runs else True


def test_what_is_cut_off_is_judged_as_far_as_it_goes(tmp_path):
    path = tar(tmp_path / "a.tar", [("r/run.json", RUN % 1), ("r/logs/attempt-0/rank0.err", b"0" * 4000)], "w")
    path.write_bytes(path.read_bytes()[:3000])
    with packed.unpacked(path) as found:
        assert len(found.runs) == 1 and "cut off" in found.not_examined[0].why


def test_a_full_disk_is_the_users(tmp_path, monkeypatch):
    path = tar(tmp_path / "a.tgz", [("r/run.json", RUN % 1)])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed, "_write", full)
    with pytest.raises(UnhangError, match="No space left"), packed.unpacked(path):
        pass


def test_it_is_gone_whatever_happens(tmp_path):
    path = tar(tmp_path / "a.tgz", [("r/run.json", RUN % 1)])
    with contextlib.suppress(SystemExit), packed.unpacked(path):
        raise SystemExit(130)


def test_large_archives_of_logs_are_not_read_to_their_end(tmp_path, monkeypatch):
    path = tar(tmp_path / "a.tar", [("train.log", b"0" * 4000), ("r/run.json", RUN % 1)], "w")
    assert packed.holds_run(path)
    monkeypatch.setattr(packed, "_LOOK_BYTES", 1000)
    assert not packed.holds_run(path)
    # Its own logs may be as long as they like.
    assert packed.holds_run(tar(tmp_path / "b.tar", [("r/logs/attempt-0/rank0.err", b"0" * 4000), ("r/run.json", RUN % 1)], "w"))
    (tmp_path / "c.log").write_text("step 1\n")
    assert not packed.holds_run(tmp_path / "c.log")


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
    assert packed.holds_dumps(archive) and not packed.holds_run(archive)
    with packed.unpacked_dumps(archive) as found:
        assert {str(p.relative_to(found.folder)): p.read_bytes() for p in found.paths} == files
        assert (found.others, found.not_examined) == (False, ())
        folder = found.folder
    assert not folder.exists()


def test_dumps_beside_logs_and_names_that_lead_out(tmp_path):
    archive = tmp_path / "all.tar"
    with tarfile.open(archive, "w") as tar:
        for name, data in {"../../rank_9": dump(9), "/etc/rank_8": dump(8), "rank_0": dump(0), "train.log": b"step 1\n", "model.pt": b"x"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with packed.unpacked_dumps(archive) as found:
        assert [p.name for p in found.paths] == ["rank_0"] and found.others
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
    with packed.unpacked_dumps(archive) as found:
        assert [p.name for p in found.paths] == ["rank_0", "rank_1"]
        assert found.not_examined and found.not_examined[0].unread
    assert not packed.holds_dumps(tmp_path / "nothing")
