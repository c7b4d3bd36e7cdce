"""Dumps in all the files that torch and those who gather its dumps write."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle

import pytest
import zstandard
from tests.tables import for_each

from unhang.errors import RecordError
from unhang.flight import dump_file, is_dump
from unhang.flight.dump_file import decoded, head_of, opened


def entry(seq=1):
    return {"record_id": seq, "profiling_name": "nccl:all_reduce", "collective_seq_id": seq, "state": "completed", "retired": True}


def raw(version="2.10"):
    return {"version": version, "pg_config": {}, "pg_status": {}, "entries": [entry(1), entry(2)]}


PACKINGS = {"gz": gzip.compress, "zst": zstandard.compress, "xz": lzma.compress, "bz2": bz2.compress, "": bytes}


@for_each("packing", PACKINGS)
@for_each("made", [lambda: pickle.dumps(raw()), lambda: pickle.dumps(raw(), protocol=2), lambda: json.dumps(raw()).encode()])
def test_packed(tmp_path, packing, made):
    path = tmp_path / "rank_0"
    path.write_bytes(PACKINGS[packing](made()))
    (found,) = opened(path)
    assert found.raw["entries"] == raw()["entries"] and found.cut is None
    assert is_dump(head_of(path))


def test_packed_and_cut_off(tmp_path):
    path = tmp_path / "rank_0.gz"
    big = raw() | {"entries": [entry(n) | {"frames": [{"name": f"f{n * 7919 % 1000}", "filename": "x.py", "line": n}]} for n in range(2000)]}
    path.write_bytes(gzip.compress(pickle.dumps(big, protocol=2))[:-2000])
    (found,) = opened(path)
    assert found.cut is not None and 100 < len(found.raw["entries"]) < 2000
    assert [e["collective_seq_id"] for e in found.raw["entries"]] == list(range(len(found.raw["entries"])))


def test_a_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(dump_file, "MAX_BYTES", 1 << 20)
    path = tmp_path / "rank_0.gz"
    path.write_bytes(gzip.compress(pickle.dumps(raw()) + bytes(4 << 20)))
    with pytest.raises(RecordError, match="larger than any"):
        opened(path)


@pytest.mark.parametrize(
    ("data", "ranks"),
    [
        (json.dumps({"0": raw(), "1": raw(), "17": raw()}), [0, 1, 17]),
        (json.dumps({"rank_3": raw(), "rank 4": raw()}), [3, 4]),
        (json.dumps({"host": "n1", "ranks": {"8": raw(), "9": raw()}}), [8, 9]),
        (json.dumps([raw(), raw()]), [None, None]),
        (json.dumps(raw()) + "\n" + json.dumps(raw() | {"rank": 5}), [None, 5]),
        (json.dumps(raw(), indent=2), [None]),
        ("\ufeff" + json.dumps(raw()), [None]),
        (json.dumps([entry(1), entry(2)]), [None]),
    ],
)
def test_forms_of_json(data, ranks):
    found = decoded(data.encode(), "x")
    assert [o.rank for o in found] == ranks and all(len(o.raw["entries"]) == 2 for o in found)
    assert is_dump(data.encode()[:4096])


def test_the_bare_list_of_torch_2_2():
    assert len(decoded(pickle.dumps([entry(1), entry(2)]), "x")[0].raw["entries"]) == 2


def test_the_last_of_several_lines_is_cut_off():
    whole, part = decoded((json.dumps(raw()) + "\n" + json.dumps(raw())[:-30]).encode(), "x")
    assert whole.cut is None and part.cut is not None and len(part.raw["entries"]) == 1


@for_each(
    "data",
    [b"{}", b"[]", b"[1, 2]", b'{"a": {"b": 1}}', b"{", b'{"loss": 3}\n{"loss": 2}', pickle.dumps({"weight": [1.0]}), pickle.dumps([]), b"\x80\x04"],
)
def test_what_is_no_dump(data):
    with pytest.raises(RecordError):
        decoded(data, "x")
    assert not is_dump(data)


def test_a_class_in_what_is_cut_off_is_never_called(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "made"),))

    data = pickle.dumps(raw() | {"entries": [entry(1), Evil(), entry(2)]})
    refused = 0
    for cut in range(len(data) + 1):
        try:
            decoded(data[:cut], "x")
        except RecordError as e:
            refused += "asks for" in str(e)
    assert refused and not (tmp_path / "made").exists()


def test_a_checkpoint_is_no_dump():
    state = {"model": {"weight": [0.0] * 100}, "version": 3, "epoch": 7}
    assert not is_dump(pickle.dumps(state)[:512]) and not is_dump(pickle.dumps(state, protocol=2)[:512])
