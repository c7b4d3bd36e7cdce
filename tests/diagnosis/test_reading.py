"""Many logs: in bounded memory, each with its own name, and one that cannot be read stops none of the others."""

from __future__ import annotations

import gzip
import io
import lzma
import multiprocessing
import os
import tarfile
import threading

import pytest

from unhang.diagnosis import reading
from unhang.diagnosis.reading import read_all
from unhang.logs import Needles, Signature, blocks, readers
from unhang.logs.discovery import find

NEEDLES = Needles([Signature(needle="needle", pattern=r"needle \d", keep=1000)])


def test_the_hits_of_all_logs_together_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_HITS", 1000)
    monkeypatch.setattr(reading, "_LEAST_HITS", 4)
    for n in range(100):
        (tmp_path / f"rank{n:03d}.log").write_text("needle 1\n" * 500)
    reads = read_all(find([str(tmp_path)]).sources, NEEDLES, lambda m: None)
    assert sum(len(r.hits) for r in reads) <= 2000
    # The first and the last of every log are among them.
    assert all({r.hits[0].line, r.hits[-1].line} == {1, 500} for r in reads)


def test_members_of_one_name_are_told_apart(tmp_path):
    path = tmp_path / "job.tar"
    with tarfile.open(path, "w") as tar:
        for text in (b"needle 1\n", b"x\nneedle 2\n"):
            info = tarfile.TarInfo("rank0.log")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    first, second = read_all(find([str(path)]).sources, NEEDLES, lambda m: None)
    assert second.source == f"{first.source}#2" and [h.line for h in second.hits] == [2]


def test_a_file_that_vanishes_is_missed(tmp_path):
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text("needle 1\n")
    found = find([str(tmp_path)])
    (tmp_path / "a.log").unlink()
    missed = []
    reads = read_all(found.sources, NEEDLES, missed.append)
    assert [r.source.rpartition("/")[2] for r in reads] == ["b.log"] and "a.log" in missed[0].what


@pytest.fixture
def small_parts(monkeypatch):
    """What is done with gigabytes, with kilobytes."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 512)
    monkeypatch.setattr(reading, "SPAN_BYTES", 2048)
    monkeypatch.setattr(reading, "_ALONE_BYTES", 0)
    monkeypatch.setattr(readers, "cores", lambda: 3)
    monkeypatch.setattr(reading, "cores", lambda: 3)


def many(folder):
    """Logs of every kind: of several parts, small, packed, in an archive, damaged."""
    for n in range(12):
        text = "".join(f"line {i} of {n}\nneedle {i % 10}\n" for i in range(n * n)).encode()
        if n % 4 == 1:
            (folder / f"rank{n}.log.gz").write_bytes(gzip.compress(text))
        elif n % 4 == 2:
            (folder / f"rank{n}.log.xz").write_bytes(lzma.compress(text))
        elif n % 4 == 3:
            with tarfile.open(folder / f"node{n}.tar", "w") as tar:
                for name in ("rank0.log", "rank0.log", "rank1.log"):
                    info = tarfile.TarInfo(name)
                    info.size = len(text)
                    tar.addfile(info, io.BytesIO(text))
        else:
            (folder / f"rank{n}.log").write_bytes(text)
    (folder / "whole.log").write_text("line\nneedle 1\n" * 500)
    (folder / "cut.gz").write_bytes(gzip.compress(b"needle 1\n" * 3000)[:-20])


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_read_side_by_side_they_are_what_they_are_one_after_the_other(tmp_path, monkeypatch, small_parts, kind):
    many(tmp_path)
    monkeypatch.setattr(threading, "active_count", lambda: 1 if kind == "processes" else 2)
    sources = find([str(tmp_path)]).sources
    results = []
    for least in (0, 10**12):
        monkeypatch.setattr(reading, "_ALONE_BYTES", least)
        missed = []
        results.append((read_all(sources, NEEDLES, missed.append), missed))
    assert results[0] == results[1]
    reads, missed = results[0]
    assert len(reads) == 9 + 3 * 3 + 2 and [m.unread for m in missed] == [True]
    assert sum(len(r.hits) for r in reads) == sum(n * n * (3 if n % 4 == 3 else 1) for n in range(12)) + len(reads[0].hits) + 500


def test_a_large_log_that_cannot_be_read_to_its_end(tmp_path, monkeypatch, small_parts):
    path = tmp_path / "log"
    path.write_text("needle 1\n" * 2000)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    real = os.pread

    def broken(fd, size, offset):
        if offset > 9000:
            raise OSError(5, "Input/output error")
        return real(fd, size, offset)

    # Processes are forked with it.
    monkeypatch.setattr(os, "pread", broken)
    monkeypatch.setattr(blocks, "MARGIN_BYTES", 64)
    missed = []
    (read,) = read_all(find([str(path)]).sources, NEEDLES, missed.append)
    assert len(read.hits) > 500 and [(m.what, m.unread) for m in missed] == [(str(path), True)]
    assert f"read up to byte {read.bytes}" in missed[0].why


@pytest.mark.parametrize("lines", [100, 2000])
def test_a_log_that_was_longer_when_it_was_found(tmp_path, monkeypatch, small_parts, lines):
    path = tmp_path / "log"
    path.write_text("needle 1\n" * lines)
    found = find([str(path)])
    path.write_text("needle 1\n" * 10)
    missed = []
    (read,) = read_all(found.sources, NEEDLES, missed.append)
    assert len(read.hits) == 10 and [m.unread for m in missed] == [True] and "90 of" in missed[0].why


def test_packed_logs_may_hold_as_many_hits_as_plain_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_HITS", 10_000)
    kept = {}
    for kind, packed in (("plain", bytes), ("packed", gzip.compress)):
        (tmp_path / kind).mkdir()
        for n in range(20):
            (tmp_path / kind / f"rank{n}.log").write_bytes(packed(b"needle 1\n" * 500))
        kept[kind] = [len(r.hits) for r in read_all(find([str(tmp_path / kind)]).sources, NEEDLES, lambda m: None)]
    assert kept["plain"] == kept["packed"] and min(kept["plain"]) > 100


def test_few_large_windows_are_held_at_once(tmp_path, monkeypatch, small_parts):
    for n in range(6):
        (tmp_path / f"rank{n}.xz").write_bytes(lzma.compress(b"needle 1\n" * n))
        (tmp_path / f"rank{n}.gz").write_bytes(gzip.compress(b"needle 1\n" * n))
    taken, most = reading._Reading._take, []

    def take(self, limit):
        most.append((sum(wide for _, wide in self.under_way), len(self.under_way)))
        taken(self, limit)

    monkeypatch.setattr(reading._Reading, "_take", take)
    assert len(read_all(find([str(tmp_path)]).sources, NEEDLES, lambda m: None)) == 12
    assert max(wide for wide, _ in most) == reading._WIDE < max(n for _, n in most)


@pytest.mark.parametrize("kind", ["processes", "threads", "a stream"])
def test_what_goes_wrong_leaves_nobody_behind(tmp_path, monkeypatch, small_parts, kind):
    monkeypatch.setattr(threading, "active_count", lambda: 1 if kind == "processes" else 2)
    for n in range(20):
        (tmp_path / f"{n}.log").write_text("needle 1\n" * 500)
    packed = tmp_path / "packed" / "a.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(b"needle 1\n" * 500))

    def broken(done, total):
        raise KeyboardInterrupt

    sources = find([str(packed if kind == "a stream" else tmp_path)]).sources
    with pytest.raises(KeyboardInterrupt):
        read_all(sources, NEEDLES, lambda m: None, broken)
    assert not [t for t in threading.enumerate() if t.name.startswith("read")] and not multiprocessing.active_children()
