"""Compiled databases, kept between runs."""

from __future__ import annotations

import os
import stat

import pytest

hyperscan = pytest.importorskip("hyperscan")

from unhang import cache  # noqa: E402
from unhang.logs import needles  # noqa: E402
from unhang.logs.needles import Hyperscan  # noqa: E402

LITERALS = [b"needle", b"hay stack"]
DATA = memoryview(b"a needle in a hay stack")
FOUND = {0: 2, 1: 14}


@pytest.fixture
def compiles(monkeypatch):
    """How often something was compiled."""
    count = []
    real = needles._compiled
    monkeypatch.setattr(needles, "_compiled", lambda literals: count.append(1) or real(literals))
    return count


def test_the_second_time_nothing_is_compiled(tmp_path, compiles):
    assert [Hyperscan(LITERALS, tmp_path / "new" / "unhang").present(DATA) for _ in range(3)] == [FOUND] * 3
    assert len(compiles) == 1


def test_other_literals_are_another_database(tmp_path, compiles):
    assert Hyperscan(LITERALS, tmp_path).present(DATA) == FOUND
    assert Hyperscan(LITERALS[::-1], tmp_path).present(DATA) == {0: 14, 1: 2}
    assert len(compiles) == 2


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Hyperscan(LITERALS).present(DATA) == FOUND
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:100], lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:], lambda b: b"junk" * 1000])
def test_a_damaged_one_is_made_again(tmp_path, compiles, damage):
    Hyperscan(LITERALS, tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    assert Hyperscan(LITERALS, tmp_path).present(DATA) == FOUND
    assert Hyperscan(LITERALS, tmp_path).present(DATA) == FOUND
    assert len(compiles) == 2


def test_one_that_was_compiled_from_other_literals_is_not_loaded(tmp_path, compiles):
    Hyperscan(LITERALS, tmp_path)
    (mine,) = tmp_path.iterdir()
    Hyperscan([b"other", b"words"], tmp_path)
    (other,) = (p for p in tmp_path.iterdir() if p != mine)
    mine.write_bytes(other.read_bytes())
    assert Hyperscan(LITERALS, tmp_path).present(DATA) == FOUND
    assert len(compiles) == 3


def test_one_that_others_could_have_written_is_not_loaded(tmp_path, compiles):
    Hyperscan(LITERALS, tmp_path)
    (kept,) = tmp_path.iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    kept.chmod(0o666)
    Hyperscan(LITERALS, tmp_path)
    assert len(compiles) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_one_of_somebody_else_is_not_loaded(tmp_path, compiles):
    Hyperscan(LITERALS, tmp_path)
    (kept,) = tmp_path.iterdir()
    os.chown(kept, 65534, -1)
    Hyperscan(LITERALS, tmp_path)
    assert len(compiles) == 2


def test_a_folder_that_cannot_be_written_is_no_fault(tmp_path):
    (tmp_path / "file").write_text("")
    assert Hyperscan(LITERALS, tmp_path / "file").present(DATA) == FOUND


def test_only_the_newest_are_kept(tmp_path):
    for n in range(10):
        Hyperscan([b"needle %d" % n], tmp_path)
    assert len(list(tmp_path.iterdir())) == cache._MOST_KEPT
    assert {p.stat().st_size > 100 for p in tmp_path.iterdir()} == {True}


def test_in_one_process_it_is_compiled_once():
    assert needles._database(LITERALS, None) is needles._database(tuple(LITERALS), None)
    assert needles._database(LITERALS[::-1], None) is not needles._database(LITERALS, None)
