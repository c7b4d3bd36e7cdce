"""Archives that are damaged or made to do harm: refused, and nothing of them is left."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
import time

import pytest
import zstandard
from tests.pack.conftest import unhang
from typer.testing import CliRunner

from unhang.cli.app import app
from unhang.errors import UnhangError
from unhang.pack import archive, manifest, relocate

DATA = b"data\n"
SUM = hashlib.sha256(DATA).hexdigest()
DIR = ["bin", "dir", 0o755, 0, "", ""]
FILE = ["bin/file", "file", 0o644, len(DATA), SUM, ""]
KNOWN = {
    "schema": manifest.SCHEMA,
    "prefix": "/old/env",
    "kind": "venv",
    "machine": platform.machine(),
    "glibc": "2.2",
    "cpu_flags": [],
    "python": {"version": "3.11.7", "abi": "x", "interpreter": None},
    "torch": None,
    "distributions": {},
    "sources": [],
    "moves": [["/old/env", ""]],
    "places": {},
    "left_out": [],
}


def member(name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(data), target, mode
    return info, data


def made(entries, members, **changed) -> bytes:
    out = io.BytesIO()
    told = json.dumps(KNOWN | {"entries": entries} | changed).encode()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in (member(".unhang/manifest.json", told), member(".unhang/placement.py", b"raise SystemExit('never run')\n"), *members):
            tar.addfile(info, io.BytesIO(data))
    return zstandard.compress(out.getvalue())


BIN = member("bin", kind=tarfile.DIRTYPE, mode=0o755)
GOOD = [BIN, member("bin/file", DATA)]
LONG = [["a", "file", 0o644, 1 << 40, SUM, ""]]


def up(path: str, kind: str = "file", target: str = "") -> list:
    return [path, kind, 0o644, len(DATA) if kind == "file" else 0, SUM if kind == "file" else "", target]


HOSTILE = {
    "traversal": (made([up("../escaped")], [member("../escaped", DATA)]), "leads outside"),
    "absolute": (made([up("/tmp/escaped")], [member("/tmp/escaped", DATA)]), "leads outside"),
    "not normal": (made([DIR, up("bin/../../escaped")], [BIN, member("bin/../../escaped", DATA)]), "leads outside"),
    "our own folder": (made([up(".unhang/placed.json")], [member(".unhang/placed.json", DATA)]), "leads outside"),
    "link outside": (made([up("a", "link", "../../etc")], [member("a", kind=tarfile.SYMTYPE, target="../../etc")]), "link a leads outside"),
    "absolute link": (made([up("a", "link", "/etc")], [member("a", kind=tarfile.SYMTYPE, target="/etc")]), "link a leads outside"),
    "link above a link": (made([DIR, up("a", "link", "bin/..")], [BIN, member("a", kind=tarfile.SYMTYPE, target="bin/..")]), "link a leads outside"),
    "through a link": (made([DIR, up("a", "link", "bin"), up("a/file")], [BIN]), "does not lie in a directory"),
    "hard link outside": (made([up("a", "hard", "/etc/passwd")], [member("a", kind=tarfile.LNKTYPE, target="/etc/passwd")]), "no file before it"),
    "twice": (made([DIR, FILE, FILE], GOOD), "there twice"),
    "setuid": (made([DIR, ["bin/file", "file", 0o4755, len(DATA), SUM, ""]], GOOD), "mode that it cannot have"),
    "negative size": (made([DIR, ["bin/file", "file", 0o644, -1, SUM, ""]], GOOD), "size or mode"),
    "rewrites outside": (made([DIR, FILE], GOOD, places={"../../etc/passwd": "text"}), "is to be rewritten"),
    "moves to outside": (made([DIR, FILE], GOOD, moves=[["/", ""]]), "old prefix"),
    "interpreter outside": (made([DIR, FILE], GOOD, python={"version": "3", "abi": "", "interpreter": "../python"}), "interpreter"),
    "device": (made([DIR, FILE], [BIN, member("bin/file", kind=tarfile.CHRTYPE)]), "not what its manifest lists"),
    "link in place of a file": (made([DIR, FILE], [BIN, member("bin/file", kind=tarfile.SYMTYPE, target="/etc/passwd")]), "not what its manifest"),
    "another name": (made([DIR, FILE], [BIN, member("bin/../../escaped", DATA)]), "not what its manifest lists"),
    "another sum": (made([DIR, FILE], [BIN, member("bin/file", b"evil\n")]), "another sum"),
    "more than listed": (made([DIR, FILE], [*GOOD, member("bin/more", DATA)]), "does not list"),
    "cut short": (made([DIR, FILE], [BIN]), "ends before bin/file"),
    "other schema": (made([DIR, FILE], GOOD, schema="unhang/pack/99"), "another format"),
    "wrong types": (made([DIR, FILE], GOOD, places=["bin/file"]), "no manifest"),
    "a version of many digits": (made([DIR, FILE], GOOD, glibc="9" * 5000), "ask for glibc"),
    "not enough space": (made(LONG, []), "No space left on device"),
    "bomb": (made([DIR, FILE], [BIN, member("bin/file", bytes(256 << 20))]), "not what its manifest lists"),
    "no archive": (b"PK\x03\x04 something else", "no archive of unhang pack: it does not begin as zstd"),
    "another tar": (zstandard.compress(bytes(1024) + b"x" * 4096), "no archive of unhang pack"),
    "empty": (b"", "no archive of unhang pack"),
    "stream cut": (made([DIR, FILE], GOOD)[:-9], "no archive of unhang pack"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_is_refused_with_nothing_left(tmp_path, name):
    data, says = HOSTILE[name]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tar.zst").write_bytes(data)
    (tmp_path / "out").mkdir()
    done = CliRunner().invoke(app, ["pack", "load", str(tmp_path / "in" / "a.tar.zst"), str(tmp_path / "out" / "place")])
    refused = isinstance(done.exception, UnhangError) or done.exit_code == 1
    assert refused, (done.exit_code, done.exception)
    assert says in f"{done.exception} {done.output}"
    assert not list((tmp_path / "out").iterdir())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_a_small_one_that_is_right_is_loaded(tmp_path):
    record = b"x" * 200_000  # longer than a field of CSV may be
    listed = ["x.dist-info/RECORD", "file", 0o644, len(record), hashlib.sha256(record).hexdigest(), ""]
    members = [*GOOD, member("x.dist-info", kind=tarfile.DIRTYPE, mode=0o755), member("x.dist-info/RECORD", record)]
    (tmp_path / "a.tar.zst").write_bytes(made([DIR, FILE, ["x.dist-info", *DIR[1:]], listed], members))
    unhang("load", tmp_path / "a.tar.zst", tmp_path / "place")
    assert (tmp_path / "place" / "bin" / "file").read_bytes() == DATA


def test_a_pipe_in_the_place_of_a_file_is_told_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "file", 0o644)
    (tmp_path / "file").chmod(0o644)
    assert relocate.differences(tmp_path, [["file", "file", 0o644, 0, SUM, ""]], {}) == [("file", "is no file")]


def test_what_is_long_is_rewritten_in_time():
    """Each of them took seconds for some kilobytes."""
    begun = time.thread_time()
    for data, how in (
        (b"/old/env/x" * 50_000, "binary"),
        (b"#!/bin/sh\n'''exec' /" + b"/python" * 100_000, "script"),
        (b"#!" + b"/python3" * 50_000 + b" \xff", "script"),
    ):
        assert relocate.rewritten(data, how, [("/old/env", "/new/env")], final="/new/env", interpreter=None, names=())
    assert time.thread_time() - begun < 5
    strings = b"\0/old/env/lib\0/old/env/x/"
    assert relocate.rewritten(strings, "binary", [("/old/env", "/new")], final="/new", interpreter=None, names=()) == (
        b"\0/new/lib\0\0\0\0\0/old/env/x/"
    )


def test_a_stream_that_goes_on_for_ever_is_bounded(tmp_path):
    """A header of a kind that tar reads into memory before anybody can look at it."""
    told = json.dumps(KNOWN | {"entries": [DIR, FILE]}).encode()
    huge = tarfile.TarInfo("././@PaxHeader")
    huge.type, huge.size = tarfile.XHDTYPE, 1 << 30
    stream = zstandard.ZstdCompressor().compressobj()
    path = tmp_path / "a.tar.zst"
    with path.open("wb") as file:
        file.write(stream.compress(member(".unhang/manifest.json", told)[0].tobuf() + told + bytes(-len(told) % 512) + huge.tobuf()))
        for _ in range(64):
            file.write(stream.compress(bytes(1 << 24)))
        file.write(stream.flush())
    with archive.opened(path) as opened, pytest.raises(UnhangError, match="more than it announces"):
        opened.extract(tmp_path)
