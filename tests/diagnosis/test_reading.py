"""Many logs: in bounded memory, each with its own name, and one that cannot be read stops none of the others."""

from __future__ import annotations

import io
import tarfile

import pytest

from unhang.diagnosis import reading
from unhang.diagnosis.reading import read_all
from unhang.records.logs import Needles, Signature
from unhang.records.logs.finding import find

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


def test_what_goes_wrong_leaves_no_thread_behind(tmp_path):
    import threading

    (tmp_path / "a.log").write_text("needle 1\n" * 10)

    def broken(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_all(find([str(tmp_path)]).sources, NEEDLES, lambda m: None, broken)
    assert not [t for t in threading.enumerate() if t.name.startswith("read")]
