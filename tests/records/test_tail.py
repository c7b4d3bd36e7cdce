"""Files that grow, are cut, replaced, half written: each whole line comes once, and what was not yet whole comes when it is."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unhang.records import tail
from unhang.records.tail import Appended, Replaced


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"".join(b"line %d\n" % i for i in range(50_000)))
    lines = Appended(path)
    assert len(list(lines.read())) == 50_000
    read = []
    whole = tail.FileIO

    class Counting(whole):
        def read(self, size=-1):
            data = super().read(size)
            read.append(len(data))
            return data

    monkeypatch.setattr(tail, "FileIO", Counting)
    assert list(lines.read()) == []
    with path.open("ab") as f:
        f.write(b"one more\n")
    assert list(lines.read()) == [b"one more"]
    assert sum(read) < 1000


def test_half_a_line_waits_for_its_end(tmp_path):
    path = tmp_path / "a"
    lines = Appended(path)
    assert (list(lines.read()), lines.missing, lines.error) == ([], True, None)
    path.write_bytes(b"one\ntw")
    assert list(lines.read()) == [b"one"] and lines.is_cut
    with path.open("ab") as f:
        f.write(b"o\n")
    assert list(lines.read()) == [b"two"] and not lines.is_cut


def test_one_that_is_cut_or_replaced_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "a"
    lines = Appended(path)
    path.write_bytes(b"one\ntwo\n")
    assert list(lines.read()) == [b"one", b"two"]
    os.truncate(path, 4)
    assert (list(lines.read()), lines.restarted) == ([b"one"], 1)
    other = tmp_path / "b"
    other.write_bytes(b"one\nthree\n")
    other.replace(path)
    assert (list(lines.read()), lines.restarted) == ([b"one", b"three"], 2)
    # The same file, longer than before, with something else in it.
    path.write_bytes(b"four\nfive\nsix\n")
    assert (list(lines.read()), lines.restarted) == ([b"four", b"five", b"six"], 3)


def test_of_a_long_one_the_end_is_enough(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"".join(b"line %d\n" % i for i in range(1000)))
    lines = Appended(path, from_last_bytes=20)
    assert list(lines.read()) == [b"line 998", b"line 999"]
    with path.open("ab") as f:
        f.write(b"line 1000\n")
    assert list(lines.read()) == [b"line 1000"]


def test_what_never_ends_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tail, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(tail, "CHUNK_BYTES", 300)
    path = tmp_path / "a"
    path.write_bytes(b"one\n" + b"x" * 5000)
    lines = Appended(path)
    assert list(lines.read()) == [b"one"] and lines.too_long == 1
    assert len(lines._rest) <= 1300
    with path.open("ab") as f:
        f.write(b"y\ntwo\n")
    assert list(lines.read()) == [b"two"]


@pytest.mark.timeout(10)
def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        lines = Appended(path)
        assert list(lines.read()) == [] and lines.error
        document = Replaced(path, dict)
        assert document.read() is None and document.error


def test_a_document_is_decoded_when_it_is_another_one(tmp_path):
    path = tmp_path / "a.json"
    document = Replaced(path, dict[str, int])
    assert (document.read(), document.missing) == (None, True)
    path.write_text('{"a": 1}')
    first = document.read()
    assert first == {"a": 1} and document.read() is first
    path.write_text('{"a": 2')
    assert document.read() == {"a": 1} and "damaged" in (document.error or "")
    # What is wrong with it stays wrong while it stays.
    assert document.read() == {"a": 1} and document.error
    path.write_text('{"a": 3}')
    assert document.read() == {"a": 3} and document.error is None
    path.unlink()
    assert document.read() == {"a": 3} and document.missing


@given(whole=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=8))
def test_however_it_is_written_each_line_comes_once(tmp_path_factory, whole, cuts):
    path = tmp_path_factory.mktemp("growing") / "a"
    path.touch()
    lines = Appended(path)
    got = []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(whole)], strict=True):
        with path.open("ab") as f:
            f.write(whole[start:end])
        got += lines.read()
    assert got == whole.split(b"\n")[:-1]
    assert lines.restarted == 0 and lines.is_cut == (whole.rpartition(b"\n")[2] != b"")
