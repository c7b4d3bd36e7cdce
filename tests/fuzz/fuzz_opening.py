"""A coverage-guided fuzzer of everything that takes packed data and archives apart: python tests/fuzz/fuzz_opening.py CORPUS [libFuzzer options].

It fails on any exception, on more output than the limits allow, on a reason that is not words, and, by libFuzzer's own options, on time and memory.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tarfile
import zipfile
from pathlib import Path

import atheris

from unhang.errors import UnhangError

with atheris.instrument_imports(include=["unhang.logs"]):
    from unhang.logs.discovery import find
    from unhang.logs.sources import Limits, walk
    from unhang.logs.tars import BLOCK_BYTES

import zstandard

LIMITS = Limits(always_bytes=4_000_000, ratio=10, unpacked_bytes=8_000_000, members=200, spool_bytes=1_000_000)


def one(data: bytes) -> None:
    if not data:
        return
    # A checksum keeps most mutations of a tar from getting anywhere; so one kind of input has all of them put right.
    content = with_checksums(data[1:]) if data[0] & 1 else data[1:]
    missed = []
    total = 0
    try:
        sources = find(["-"], stdin=io.BytesIO(content), limits=LIMITS).sources
    except UnhangError as e:
        # What holds no line of a log is refused in words.
        assert str(e).startswith("nothing was read: stdin "), e
        return
    for opened in walk(sources, missed.append, limits=LIMITS):
        assert opened.stream is not None and opened.source.name.isprintable()
        assert ".." not in opened.source.name.split("!")[-1].split("/")
        while part := opened.stream.read(65_536):
            total += len(part)
    # UTF-16 grows by half when it becomes UTF-8; what is stored in archives is there as it stands, and zip members never overlap.
    assert total <= (LIMITS.unpacked_bytes + len(content)) * 3 // 2, total
    assert len(missed) <= 50 and all(m.what and m.why for m in missed), missed


def with_checksums(data: bytes) -> bytes:
    out = bytearray(data)
    for at in range(0, len(out) - BLOCK_BYTES + 1, BLOCK_BYTES):
        if out[at] and out[at + 257 : at + 262] == b"ustar":
            out[at + 148 : at + 156] = b" " * 8
            out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + BLOCK_BYTES])
    return bytes(out)


def seeds() -> list[bytes]:
    """One small input of every kind that there is."""

    def tar(format: int, name: str = "a", data: bytes = b"one\n") -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=format) as t:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
        return out.getvalue()[: 512 * 8]

    def zipped(method: int, data: bytes = b"one\n" * 20) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as z:
            z.writestr("a", data)
            z.writestr("b/", b"")
        return out.getvalue()

    text = b"one\n" * 50
    packed = [gzip.compress(text), bz2.compress(text), lzma.compress(text), lzma.compress(text, format=lzma.FORMAT_ALONE)]
    packed += [zstandard.ZstdCompressor(write_checksum=c).compress(text) for c in (False, True)]
    packed += [b"\x50\x2a\x4d\x18\4\0\0\0skip" + packed[-1], b"\xff\xfe" + "日\n".encode("utf-16-le"), gzip.compress(packed[0])]
    tars = [
        tar(tarfile.GNU_FORMAT),
        tar(tarfile.PAX_FORMAT, "日" * 80),
        tar(tarfile.GNU_FORMAT, "a" * 150),
        tar(tarfile.USTAR_FORMAT, "a" * 60 + "/" + "b" * 80),
    ]
    sparse = tarfile.TarInfo("s")
    sparse.size, sparse.pax_headers = 516, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x"}
    tars.append(sparse.tobuf(tarfile.PAX_FORMAT) + b"1\n0\n4\n".ljust(512, b"\0") + b"one\n".ljust(512, b"\0") + bytes(1024))
    tars += [tar(tarfile.GNU_FORMAT, data=p) for p in packed[:3]]
    zips = [zipped(m) for m in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)]
    nested = [gzip.compress(t) for t in tars[:2]] + [zipped(zipfile.ZIP_STORED, tars[0]), tar(tarfile.GNU_FORMAT, data=zips[1])]
    return [b"\0" + s for s in (*packed, *tars, *zips, *nested)] + [b"\1" + t for t in tars]


if __name__ == "__main__":
    corpus = Path(sys.argv[1])
    for i, seed in enumerate(seeds()):
        one(seed)
        (corpus / f"seed-{i}").write_bytes(seed)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
