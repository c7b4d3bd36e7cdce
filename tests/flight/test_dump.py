"""One dump, opened once."""

from __future__ import annotations

import pickle

import pytest
from tests.flight import jobs

from unhang.errors import RecordError
from unhang.flight import dump

DEFAULT = ("0", "default_pg")


def written(path, *, backend="nccl", numbers=(1, 2)):
    entries = [jobs.entry(n, DEFAULT, n, "all_reduce", 4, 20, "completed", t=n, backend=backend) for n in numbers]
    path.write_bytes(pickle.dumps(jobs.dump(entries)))
    return path


def test_calls_and_columns_are_of_one_rank(tmp_path):
    found = dump.read(written(tmp_path / "rank_3"), rank=3)
    assert [c.seq for c in found.flight.calls["0"]] == [1, 2]
    assert found.recording.rank == 3 and found.recording.tracks[0].last == 2 and found.recording.heard is None


def test_two_recorders_of_one_process(tmp_path):
    one = dump.read(written(tmp_path / "rank_0"), rank=0)
    other = dump.read(written(tmp_path / "cpu", backend="gloo", numbers=(1,)), rank=0)
    found = dump.both(one, other)
    assert set(found.flight.calls) == {t.group.name for t in found.recording.tracks} == {"0", "cpu:0"}


def test_what_is_no_dump_is_refused(tmp_path):
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"some": "thing"}))
    with pytest.raises(RecordError):
        dump.read(tmp_path / "rank_0", rank=0)
