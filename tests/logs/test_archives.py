"""Packed data and archives: everything that is whole is read, everything that is damaged is read up to the damage, bombs are stopped."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import os
import struct
import subprocess
import sys
import tarfile
import textwrap
import tracemalloc
import zipfile
import zlib

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.logs.discovery import find
from unhang.logs.sources import Limits, walk
from unhang.printable import one_line

LINES = b"".join(b"step %d loss 0.5\n" % i for i in range(20_000))
PACK = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}


def zstd_stream(data):
    c = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return c.compress(data) + c.flush()


PACK["zstd-stream"] = zstd_stream


def read(opened, size=65_536):
    if opened.path is not None:
        return opened.path.read_bytes()
    return b"".join(iter(lambda: opened.stream.read(size), b""))


def contents(path, limits=None, named=True):
    """{shown name behind the file's own: bytes}, {what: why} of one file (or of what a directory holds)."""
    missed = []
    path = os.fspath(path)
    found = find([path], limits=limits)
    got = [(o.source.name.removeprefix(path), read(o)) for o in walk(found.sources, missed.append, limits=limits)]
    return got, {m.what.removeprefix(path): m.why for m in (*found.not_examined, *missed)}


def put(tmp_path, data, name="it"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def tar_of(members, format=tarfile.GNU_FORMAT, mode="w"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, bytes):
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            else:  # a member that is no file
                (info.type,), info.linkname = data, "elsewhere"
                tar.addfile(info)
    return out.getvalue()


def zip_of(members, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, data in members:
            z.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize("kind", PACK)
def test_every_packing_is_told_by_its_first_bytes_and_read_whole(tmp_path, kind):
    path = put(tmp_path, PACK[kind](LINES), "rank0.log")
    found = find([str(path)])
    assert [(s.seekable, s.size_bytes, s.path) for s in found.sources] == [(False, None, path)]
    assert contents(path) == ([("", LINES)], {})


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd", "zstd-stream"])
def test_members_behind_one_another_and_padding(tmp_path, kind):
    pack = PACK[kind]
    assert contents(put(tmp_path, pack(LINES) + pack(b"") + pack(b"end\n") + bytes(512))) == ([("", LINES + b"end\n")], {})


def test_zstd_skippable_frames(tmp_path):
    skip = b"\x50\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"ignored"
    data = skip + PACK["zstd"](b"one\n") + skip + PACK["zstd"](b"two\n")
    assert contents(put(tmp_path, data)) == ([("", b"one\ntwo\n")], {})


@pytest.mark.parametrize("kind", PACK)
def test_what_stands_before_a_cut_is_read(tmp_path, kind):
    noise = os.urandom(1_500_000 if kind == "bzip2" else 300_000).hex().encode()
    packed = PACK[kind](noise)
    path = put(tmp_path, packed[: len(packed) * 2 // 3])
    got, missed = contents(path)
    assert noise.startswith(got[0][1]) and len(got[0][1]) > len(noise) // 5
    assert missed == {"": "it is cut off; only what stands before the cut can be read"}


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd", "zstd-stream"])
def test_what_stands_before_damage_is_read_and_a_tail_is_named(tmp_path, kind):
    noise = os.urandom(1_500_000 if kind == "bzip2" else 300_000).hex().encode()
    packed = bytearray(PACK[kind](noise))
    middle = len(packed) // 2
    packed[middle : middle + 64] = b"\xff" * 64
    got, missed = contents(put(tmp_path, bytes(packed)))
    # zstd without a checksum may read damaged literals as text
    assert missed or kind == "zstd"
    assert got[0][1][:100_000] == noise[:100_000] or kind == "xz"
    _, missed = contents(put(tmp_path, PACK[kind](b"a\n") + b"plain text behind it\n"))
    assert "bytes that are not" in missed[""]


@pytest.mark.parametrize("head", [b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07\x00", b"\x1f\x9d\x90"])
def test_packings_that_are_not_read_are_named(tmp_path, head):
    got, missed = contents(put(tmp_path, head + bytes(100)))
    assert got == [] and "unpack it first" in missed[""]


@pytest.mark.parametrize(("encoding", "bom"), [("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff")])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_utf16_becomes_utf8(tmp_path, encoding, bom, pack):
    text = "错误 NCCL \U0001f4a5\n" * 50_000
    data = pack(bom + text.encode(encoding) + b"\x00")
    path = put(tmp_path, data)
    assert find([str(path)]).sources[0].seekable is False
    got, missed = contents(path)
    assert got == [("", (text + "\ufffd").encode())] and missed == {}


@for_each("wrap", [bytes, gzip.compress, lzma.compress, PACK["zstd"]])
@for_each("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_and_what_is_packed_in_it(tmp_path, wrap, format):
    long = "a" * 90 + "/" + "日志-" * 6 + ".log"
    members = [("./logs", [tarfile.DIRTYPE]), ("./logs/rank0.err", LINES), (long, b"long\n"), ("r1.gz", gzip.compress(b"one\n")), ("empty", b"")]
    got, missed = contents(put(tmp_path, wrap(tar_of(members, format))))
    assert got == [("!logs/rank0.err", LINES), ("!" + long, b"long\n"), ("!r1.gz", b"one\n"), ("!empty", b"")]
    assert missed == {}


@pytest.mark.parametrize(("name", "unread"), [("rank0.log", True), ("model.pt", False)])
@pytest.mark.parametrize("method", [12, 14, 95])
def test_bzip2_and_lzma_in_a_zip_are_refused_in_one_sentence(tmp_path, method, name, unread):
    data = bytearray(zip_of([(name, LINES), ("good", b"good\n")]))
    data[data.index(b"PK\1\2") + 10] = method
    missed = []
    (good,) = walk(find([str(put(tmp_path, bytes(data)))]).sources, missed.append)
    assert good.source.name.endswith("!good")
    ((what, why, left),) = [(n.what, n.why, n.unread) for n in missed]
    assert what.endswith(name) and left is unread
    assert why.endswith("packed with bzip2, LZMA or another method that is not read in zips; unpack it first")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip(tmp_path, method):
    members = [("logs/", b""), ("logs/0_训练.txt", LINES), ("b.xz", lzma.compress(b"b\n")), ("empty", b"")]
    got, missed = contents(put(tmp_path, zip_of(members, method)))
    assert got == [("!logs/0_训练.txt", LINES), ("!b.xz", b"b\n"), ("!empty", b"")] and missed == {}
    # something before the archive moves its offsets; a comment behind it hides its end
    got, _ = contents(put(tmp_path, gzip.compress(zip_of(members, method) + b"")))
    assert got[0] == ("!logs/0_训练.txt", LINES)


def test_a_zip64(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z, z.open("big", "w", force_zip64=True) as f:
        f.write(LINES)
    data = bytearray(out.getvalue())
    at = data.rindex(b"PK\5\6")
    cd_size, cd_offset = (int.from_bytes(data[at + i : at + i + 4], "little") for i in (12, 16))
    record = b"PK\6\6" + (44).to_bytes(8, "little") + bytes(28) + cd_size.to_bytes(8, "little") + cd_offset.to_bytes(8, "little")
    assert len(record) == 56
    locator = b"PK\6\7" + bytes(4) + at.to_bytes(8, "little") + bytes([1, 0, 0, 0])
    data[at + 12 : at + 20] = b"\xff" * 8
    assert contents(put(tmp_path, bytes(data[:at]) + record + locator + bytes(data[at:])))[0] == [("!big", LINES)]


def test_archives_inside_archives_are_opened_to_a_depth(tmp_path):
    inner = tar_of([("a.log", b"a\n"), ("deep.zip", zip_of([("b.log", b"b\n")]))])
    got, missed = contents(put(tmp_path, gzip.compress(tar_of([("in.tar.gz", gzip.compress(inner)), ("z.zip", zip_of([("c", b"c\n")]))]))))
    assert got == [("!in.tar.gz!a.log", b"a\n"), ("!z.zip!c", b"c\n")]
    assert missed == {"!in.tar.gz!deep.zip": "an archive inside 2 others; it was not opened"}
    thrice = gzip.compress(gzip.compress(gzip.compress(b"x")))
    assert contents(put(tmp_path, thrice)) == ([], {"": "it is packed more than 2 times over; it was not read"})


def test_members_that_are_no_files_or_lead_out_are_listed_not_opened(tmp_path):
    odd = [("link", [tarfile.SYMTYPE]), ("hard", [tarfile.LNKTYPE]), ("fifo", [tarfile.FIFOTYPE]), ("dev", [tarfile.CHRTYPE])]
    bad = [(n, b"x\n") for n in ("/etc/passwd", "../up", "a/../../b", "a\\..\\b", "C:\\x")]
    got, missed = contents(put(tmp_path, tar_of([*odd, *bad, ("good", b"good\n")])))
    assert got == [("!good", b"good\n")]
    assert {k: v.rpartition(": ")[2] for k, v in missed.items() if not k.startswith("5 in")} == {
        "!link": "a symbolic link",
        "!hard": "a hard link",
        "!fifo": "a FIFO",
        "!dev": "a device",
    }
    assert [v for k, v in missed.items() if k.startswith("5 in") and k.endswith("!/etc/passwd")] == [
        "its name leads out of the archive; it was not opened"
    ]
    got, missed = contents(put(tmp_path, zip_of([("../up", b"x"), ("good", b"good\n")])))
    assert got == [("!good", b"good\n")] and list(missed) == ["!../up"]


def test_names_cannot_write_to_the_terminal(tmp_path):
    got, _ = contents(put(tmp_path, tar_of([("a\x1b[2J\nb", b"x\n")])))
    assert got[0][0] == "!a\\x1b[2J\\nb"


def test_of_a_long_name_the_end_counts(tmp_path):
    """Thousands of them, of 100,000 characters each, took a minute."""
    long = "d/" * 25_000 + "rank7.log"
    for packed in (tar_of([(long, b"x\n")]), zip_of([(long, b"x\n")])):
        ((name, data),) = contents(put(tmp_path, packed))[0]
        assert name.endswith("/d/rank7.log") and len(name) < 2000 and data == b"x\n"


def test_members_that_are_no_logs_are_counted(tmp_path):
    members = [
        ("m/a.pt", b"x"),
        ("m/b.pt", b"x"),
        ("run.json", b"{}"),
        ("lib", b"\x7fELF\2"),
        ("x.npy.gz", gzip.compress(b"\x93NUMPY")),
        ("log", b"l\n"),
    ]
    path = put(tmp_path, tar_of(members))
    got, missed = contents(path)
    assert got == [("!log", b"l\n")]
    assert missed == {
        f"2 in {path}, such as {path}!m/a.pt": "no log: a model checkpoint",
        "!run.json": "no log: a record that unhang wrote",
        "!lib": "no log: a program or library",
        "!x.npy.gz": "no log: a data file",
    }


def test_encrypted_and_unknown_zip_members(tmp_path):
    data = bytearray(zip_of([("secret", b"s\n"), ("odd", b"o\n"), ("good", b"g\n")]))
    first = data.index(b"PK\1\2")
    second = data.index(b"PK\1\2", first + 4)
    data[first + 8] |= 1
    data[second + 10] = 99
    got, missed = contents(put(tmp_path, bytes(data)))
    assert got == [("!good", b"g\n")]
    assert "encrypted" in missed["!secret"] and "method" in missed["!odd"]


def test_a_wrong_checksum_in_a_zip_is_named(tmp_path):
    data = bytearray(zip_of([("a", b"qqqq\n"), ("b", b"b\n")], zipfile.ZIP_STORED))
    data[data.index(b"qqqq")] = ord("z")
    got, missed = contents(put(tmp_path, bytes(data)))
    assert got == [("!a", b"zqqq\n"), ("!b", b"b\n")] and "checksum" in missed["!a"]


def test_a_cut_tar_says_where(tmp_path):
    noise = os.urandom(100_000).hex().encode()
    whole = tar_of([("a", b"a\n"), ("b", noise), ("c", b"c\n")])
    path = put(tmp_path, whole[:100_000])
    got, missed = contents(path)
    assert [n for n, _ in got] == ["!a", "!b"] and noise.startswith(got[1][1]) and len(got[1][1]) > 90_000
    assert missed == {"": "it is cut off; only what stands before the cut can be read", "!b": f"only a part of it was read: see {path}"}
    path = put(tmp_path, gzip.compress(whole)[:60_000])
    assert contents(path)[1] == missed
    assert "end mark" in contents(put(tmp_path, tar_of([("a", b"a\n")])[:1024]))[1][""]


def test_damage_in_one_member_does_not_stop_the_others(tmp_path):
    bad = bytearray(gzip.compress(os.urandom(10_000).hex().encode()))
    bad[5_000:5_100] = bytes(100)
    got, missed = contents(put(tmp_path, tar_of([("bad.gz", bytes(bad)), ("good", b"good\n")])))
    assert got[-1] == ("!good", b"good\n") and "damaged" in missed["!bad.gz"]
    got, missed = contents(put(tmp_path, zip_of([("bad.gz", gzip.compress(b"x")[:-6]), ("good", b"good\n")])))
    assert got[-1] == ("!good", b"good\n") and "cut off" in missed["!bad.gz"]


def test_a_tar_that_begins_like_lzma(tmp_path):
    assert contents(put(tmp_path, tar_of([("]", b"a\n")])))[0] == [("!]", b"a\n")]


def test_a_broken_header_ends_a_tar(tmp_path):
    data = bytearray(tar_of([("a", b"a\n"), ("b", b"b\n")]))
    data[1024 + 130] ^= 1
    got, missed = contents(put(tmp_path, bytes(data)))
    assert got == [("!a", b"a\n")] and "header" in missed[""]


def test_archives_appended_to_one_another(tmp_path):
    assert contents(put(tmp_path, tar_of([("a", b"a\n")]) + tar_of([("b", b"b\n")])))[0] == [("!a", b"a\n"), ("!b", b"b\n")]


@pytest.mark.parametrize("format", ["gnu", "posix"])
def test_sparse_members_are_told_as_unread(tmp_path, format):
    log = tmp_path / "sparse.log"
    with log.open("wb") as f:
        for i in range(6):
            f.seek(i * 1_000_000)
            f.write(b"line %d\n" % i)
        f.truncate(1 << 33)
    subprocess.run(["tar", "-C", tmp_path, f"--format={format}", "-Scf", tmp_path / "it", "sparse.log"], check=True, timeout=60)
    got, missed = contents(tmp_path / "it")
    assert got == [] and "sparse" in missed["!sparse.log"]


def test_a_consumer_may_stop_reading_a_stream(tmp_path):
    path = put(tmp_path, gzip.compress(tar_of([("a", LINES), ("b", LINES), ("c", b"c\n")])))
    streams = []
    for opened in walk(find([str(path)]).sources, pytest.fail):
        streams.append(opened.stream)
        assert opened.stream.read(6) in (b"step 0", b"c\n")
    assert [s.read(1) for s in streams] == [b"", b"", b""]


SMALL = Limits(always_bytes=1_000_000, ratio=1, unpacked_bytes=10_000_000, members=50, spool_bytes=100_000)


@pytest.mark.parametrize("kind", PACK)
def test_a_bomb_is_stopped_and_what_was_read_counts(tmp_path, kind):
    got, missed = contents(put(tmp_path, PACK[kind](bytes(4_000_000))), SMALL)
    assert 0 < len(got[0][1]) <= 1_000_000 and "bomb" in missed[""]


@pytest.mark.parametrize("build", [tar_of, zip_of])
def test_a_bomb_in_an_archive_ends_it(tmp_path, build):
    bomb = gzip.compress(bytes(4_000_000))
    path = put(tmp_path, build([("a", b"a\n"), ("bomb.gz", bomb), ("bomb2.gz", bomb), ("c", b"c\n")]))
    got, missed = contents(path, SMALL)
    assert [n for n, _ in got] == ["!a", "!bomb.gz"] and len(missed) == 2 and "bomb" in missed[""]


@pytest.mark.parametrize("build", [tar_of, zip_of])
def test_members_are_counted(tmp_path, build):
    got, missed = contents(put(tmp_path, build([(f"{i}", b"x") for i in range(80)])), SMALL)
    assert len(got) == 50 and missed == {"": "it has more than 50 members; the rest was not read"}


def test_a_quine_ends(tmp_path):
    # each layer holds the next one twice
    data = b"x\n" * 1000
    for i in range(30):
        data = zip_of([(f"{i}a.zip", data), (f"{i}b.zip", data)]) if i % 2 else gzip.compress(data)
        if len(data) > 200_000:
            break
    got, missed = contents(put(tmp_path, data))
    assert got == [] and missed


def test_overlapping_members_of_a_zip_are_refused(tmp_path):
    data = bytearray(zip_of([("a", b"a" * 100), ("b", b"b" * 100)], zipfile.ZIP_STORED))
    second = data.index(b"PK\1\2", data.index(b"PK\1\2") + 4)
    data[second + 42 : second + 46] = (10).to_bytes(4, "little")
    got, missed = contents(put(tmp_path, bytes(data)))
    assert got == [] and "overlap" in missed[""]


def test_windows_that_need_too_much_memory_are_refused(tmp_path):
    params = zstandard.ZstdCompressionParameters(window_log=28)
    c = zstandard.ZstdCompressor(compression_params=params).compressobj()
    got, missed = contents(put(tmp_path, c.compress(b"a\n") + c.flush()))
    assert [d for _, d in got] in ([], [b""]) and "memory" in missed[""]
    wide = lzma.compress(b"a\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 28}])
    got, missed = contents(put(tmp_path, wide))
    assert [d for _, d in got] in ([], [b""]) and "memory" in missed[""]
    assert contents(put(tmp_path, lzma.compress(b"a\n", preset=9))) == ([("", b"a\n")], {})


def test_headers_cannot_ask_for_memory(tmp_path):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    path = put(tmp_path, info.tobuf(tarfile.GNU_FORMAT) + bytes(10_000_000))
    tracemalloc.start()
    assert "too long" in contents(path)[1][""]
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()


def test_what_follows_a_zstd_frame_is_unpacked_in_small_pieces(tmp_path):
    """Four bytes of it may be 128 KiB."""
    skipped = (0x184D2A50).to_bytes(4, "little") + (248).to_bytes(4, "little") + bytes(248)
    block = (131_072 << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    path = put(tmp_path, skipped + (0xFD2FB528).to_bytes(4, "little") + b"\0\x38" + 2_000 * block)
    tracemalloc.start()
    assert contents(path, SMALL)[1]
    assert tracemalloc.get_traced_memory()[1] < 64_000_000
    tracemalloc.stop()


def header(kind, body):
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, len(body)
    return info.tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % 512)


def zip_with_fields(count, size):
    extra = bytes(size)
    begin = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 2, 0) + b"d/"
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 2, size, 0, 0, 0, 0, 0) + b"d/" + extra
    return begin + entry * count + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(entry) * count, len(begin), 0)


IN_LAYERS = {
    "padding": lambda: PACK["zstd"](b"a\n") + bytes(60_000_000),
    "empty frames": lambda: PACK["zstd"](b"a\n") + PACK["zstd"](b"") * 5_000_000,
    "empty members": lambda: PACK["bzip2"](b"a\n") + PACK["bzip2"](b"") * 5_000_000,
    "headers of all members": lambda: header(tarfile.XGLTYPE, b"") * 500_000,
    "headers of one member": lambda: header(tarfile.XHDTYPE, b"7 aa=b\n" * 140_000) * 40,
    "fields of a zip": lambda: zip_with_fields(1_000, 65_532),
}


@for_each("kind", IN_LAYERS)
def test_layers_of_tiny_parts_end(kind, tmp_path):
    """What is outside makes many of them out of a few kilobytes."""
    _, missed = contents(put(tmp_path, zstd_stream(IN_LAYERS[kind]())), Limits(cpu_s=0.1))
    assert any("more time than" in why for why in missed.values()), missed


def test_directories_in_a_zip_count_as_members(tmp_path):
    directory = bytearray(zip_of([("a", b"a\n"), *((f"{i}/", b"") for i in range(80))]))
    got, missed = contents(put(tmp_path, bytes(directory)), SMALL)
    assert got == [("!a", b"a\n")] and missed[""] == "it has more than 50 members; the rest was not read"


MEASURE = """
    import resource, sys
    from unhang.logs.discovery import find
    from unhang.logs.sources import walk
    import bz2, lzma, zlib, zipfile, zstandard
    def drain(path):
        return sum(sum(map(len, iter(lambda: o.stream.read(1 << 20), b""))) for o in walk(find([path]).sources, lambda m: print(m, file=sys.stderr)))
    drain(sys.argv[1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = drain(sys.argv[2])
    print(size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd", "tar", "zip", "members", "directory"])
def test_memory_stays_bounded(tmp_path, kind):
    size = 192 * 1024**2
    zeros = itertools.repeat(bytes(1024**2), size // 1024**2)
    path = tmp_path / "bomb"
    if kind in ("gzip", "bzip2", "xz", "zstd"):
        new = {
            "gzip": lambda: zlib.compressobj(9, zlib.DEFLATED, 31),
            "bzip2": bz2.BZ2Compressor,
            "xz": lambda: lzma.LZMACompressor(preset=1),
            "zstd": lambda: zstandard.ZstdCompressor().compressobj(),
        }
        c = new[kind]()
        path.write_bytes(b"".join(map(c.compress, zeros)) + c.flush())
        assert path.stat().st_size < 300_000
    elif kind == "tar":
        packed = bz2.compress(bytes(size // 4))
        path.write_bytes(tar_of([(f"{i}.bz2", packed) for i in range(4)]))
    elif kind == "zip":
        path.write_bytes(zip_of([(f"{i}", bytes(size // 4)) for i in range(4)], zipfile.ZIP_DEFLATED))
    elif kind == "members":
        size = 0
        path.write_bytes(gzip.compress(tar_of([("a" * 200 + str(i), b"") for i in range(20_000)])))
    else:
        size = 0
        path.write_bytes(zip_of([("a" * 200 + str(i), b"") for i in range(20_000)]))
    small = put(tmp_path, PACK["zstd"](b"x"), "small")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(MEASURE), small, path], capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr == ""
    got, grown_kib = map(int, done.stdout.split())
    assert got == size and grown_kib < 32 * 1024, f"{grown_kib} KiB"


names = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=120).filter(
    lambda n: one_line(n) == n and not n.startswith(("/", "\\", "./")) and ".." not in n and not n.endswith("/") and ":" not in n and "." not in n
)
some = st.lists(st.tuples(names, st.binary(max_size=1500).map(lambda b: b"log " + b)), max_size=6)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members=some, format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_tars_are_read_as_tarfile_reads_them(tmp_path, members, format):
    data = tar_of(members, format)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [("!" + m.name, tar.extractfile(m).read()) for m in tar if m.isreg()]
    got, missed = contents(put(tmp_path, data))
    assert (got, missed) == (expected, {}) or not members


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members=some, method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
def test_zips_are_read_as_zipfile_reads_them(tmp_path, members, method):
    members = list(dict(members).items())
    got, missed = contents(put(tmp_path, zip_of(members, method)))
    assert (got, missed) == ([("!" + n, d) for n, d in members], {})


WHOLE = [
    *(pack(b"abc\n" * 300) for pack in PACK.values()),
    tar_of([("a" * 150, b"x" * 600), ("b.gz", gzip.compress(b"y\n")), ("l", [tarfile.SYMTYPE])]),
    tar_of([("日" * 90, b"x" * 600)], tarfile.PAX_FORMAT),
    zip_of([("a", b"x" * 600), ("b.tar", tar_of([("c", b"c\n")]))]),
    gzip.compress(tar_of([("z.zip", zip_of([("a", b"x\n")]))])),
    b"\xff\xfeh\0i\0\n\0",
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_raises(tmp_path, data):
    whole = bytearray(data.draw(st.sampled_from(WHOLE)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        new = data.draw(st.binary(max_size=8))
        whole[at : at + data.draw(st.integers(0, 8))] = new
        whole = whole or bytearray(b"x")
    cut = data.draw(st.integers(0, len(whole)))
    try:
        got, _ = contents(put(tmp_path, bytes(whole[:cut]) if data.draw(st.booleans()) else bytes(whole)), SMALL)
    except UnhangError as e:
        assert str(e).startswith("nothing was read: ")
        return
    assert sum(len(d) for _, d in got) <= 1_100_000


@pytest.mark.parametrize("at", [0.3, 0.6, 0.95])
def test_all_that_stands_before_the_damage_is_read(tmp_path, at):
    """Also of a file so small that it is unpacked at once."""
    text = b"".join(b"step %d of %d\n" % (n, n * 7919 % 1009) for n in range(3000))
    data = bytearray(gzip.compress(text))
    place = int(len(data) * at)
    data[place : place + 8] = b"\xff" * 8
    got, missed = contents(put(tmp_path, bytes(data)))
    ((_, read),) = got
    assert text.startswith(read[:-400]) and len(read) > (at - 0.25) * len(text) and "damaged" in missed[""]


def test_no_cut_is_silent(tmp_path):
    """Whatever is missing from the end, it is said: cuts everywhere, of all kinds."""
    for whole in WHOLE[:-1]:
        full, missed = contents(put(tmp_path, whole))
        for cut in range(14, len(whole) - 1, 31):
            got, missed = contents(put(tmp_path, whole[:cut]))
            if got != full and cut >= tarfile.BLOCKSIZE:
                assert missed, (cut, whole[:20])
