"""Names in installed files: shared libraries by their read-only data, Python by its literals; what was seen is kept until a file changes."""

from __future__ import annotations

import json
import os
import struct

import pytest

from unhang.facts.variable_readers import Library, Reader


def elf(**sections: bytes) -> bytes:
    """A shared library with these sections; `text` is code."""
    names = b"\0" + b"".join(f".{n}".encode() + b"\0" for n in sections) + b".shstrtab\0"
    body, table, at = b"", [struct.pack("<IIQQQQIIQQ", *[0] * 10)], 64
    for name, data in sections.items():
        flags = 6 if name == "text" else 2
        table.append(struct.pack("<IIQQQQIIQQ", names.index(f".{name}".encode()), 1, flags, 0, at, len(data), 0, 0, 1, 0))
        body, at = body + data, at + len(data)
    table.append(struct.pack("<IIQQQQIIQQ", names.index(b".shstrtab"), 3, 0, 0, at, len(names), 0, 0, 1, 0))
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at + len(names), 0, 64, 0, 0, 64, len(table), len(table) - 1)
    )
    return head + body + names + b"".join(table)


@pytest.fixture
def library(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "__pycache__").mkdir()
    (tmp_path / "lib" / "a.so").write_bytes(
        elf(
            rodata=b"x\0TORCH_NCCL_BLOCKING_WAIT\0say NCCL_IN_TEXT=1\0RCCL_FORCE_ENABLE_DMABUF\0MSCCLPP_READ_ALLRED\0SHARP_COLL_LOG_LEVEL\0",
            text=b"NCCL_IN_CODE\0",
            nv_fatbin=b"NCCL_IN_KERNELS\0",
        )
    )
    (tmp_path / "src" / "deep" / "a.py").write_text("x = os.environ.get('MASTER_ADDR')\nRANK = 'RANK'\n# 'lower_case' NOT_QUOTED\n")
    (tmp_path / "src" / "__pycache__" / "b.py").write_text("'NOT_SEEN'")
    return Library(id="torch", version="9", binaries=(str(tmp_path / "lib" / "a.so"),), sources=(str(tmp_path / "src"),))


def test_names(library):
    found = Reader(None).names(library)
    for name in (
        "TORCH_NCCL_BLOCKING_WAIT",
        "NCCL_IN_TEXT",
        "RCCL_FORCE_ENABLE_DMABUF",
        "MSCCLPP_READ_ALLRED",
        "SHARP_COLL_LOG_LEVEL",
        "MASTER_ADDR",
        "RANK",
    ):
        assert found.find(name), name
    for name in ("NCCL_IN_CODE", "NCCL_IN_KERNELS", "NOT_SEEN", "NOT_QUOTED", "lower_case", "NCCL_TIMEOUT"):
        assert found.find(name) == "", name


def test_the_end_of_a_longer_name_counts(library):
    """The linker stores a string that is the end of another one only once."""
    assert Reader(None).names(library).find("NCCL_BLOCKING_WAIT").endswith("a.so")
    assert Reader(None).names(library).find("TORCH_NCCL_BLOCKING") == ""


def test_a_name_across_two_blocks(library, monkeypatch):
    monkeypatch.setattr("unhang.facts.variable_readers._BLOCK", 16)
    assert Reader(None).names(library).find("TORCH_NCCL_BLOCKING_WAIT")


@pytest.mark.parametrize("damage", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 200, b"NCCL_PLAIN"])
def test_damaged_libraries(tmp_path, damage):
    (tmp_path / "a.so").write_bytes(damage)
    found = Reader(None).names(Library(id="nccl", version="1", binaries=(str(tmp_path / "a.so"),)))
    assert found.whole and bool(found.find("NCCL_PLAIN")) is (damage == b"NCCL_PLAIN")


def test_what_cannot_be_read_is_not_called_absent(tmp_path):
    found = Reader(None).names(Library(id="nccl", version="1", binaries=(str(tmp_path / "gone.so"),)))
    assert found.find("NCCL_DEBUG") is None
    assert Reader(None).names(Library(id="nccl", version="1")) is None


def test_what_was_seen_is_kept_until_the_file_changes(library, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = Reader(cache)
    first.names(library)
    first.save()
    monkeypatch.setattr("unhang.facts.variable_readers._in_binary", lambda file: ["NCCL_SEEN_AGAIN"])
    again = Reader(cache).names(library)
    assert again.find("NCCL_IN_TEXT") and not again.find("NCCL_SEEN_AGAIN")
    os.utime(library.binaries[0], ns=(1, 1))
    assert Reader(cache).names(library).find("NCCL_SEEN_AGAIN")
    assert [p.name for p in cache.iterdir()] == ["variables-3.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "\udcff", json.dumps({"x": [1, 2, 3]})])
def test_a_damaged_cache_is_no_fault(library, tmp_path, text):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "variables-3.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    reader = Reader(cache)
    assert reader.names(library).find("RANK")
    reader.save()
    assert json.loads((cache / "variables-3.json").read_text())


def test_a_cache_that_cannot_be_written_is_no_fault(library, tmp_path):
    (tmp_path / "file").write_text("")
    reader = Reader(tmp_path / "file" / "cache")
    reader.names(library)
    reader.save()


def test_a_path_that_is_no_text_keeps_nobody_from_saving(tmp_path):
    file = tmp_path / "\udcff.py"
    file.write_text("'NCCL_X_Y'")
    reader = Reader(tmp_path / "cache")
    assert reader.names(Library(id="x", version="1", binaries=(str(file),), sources=())).find("NCCL_X_Y") == str(file)
    reader.save()
    assert list(json.loads(next((tmp_path / "cache").iterdir()).read_text())) == [str(tmp_path / "?.py")]
