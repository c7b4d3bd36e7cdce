"""What is named becomes sources: files, directories, patterns, standard input; and what is no log is counted, not read."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import socket
import subprocess
import sys
import zipfile

import pytest
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.logs.discovery import LEADS_OUT, STDIN, find
from unhang.logs.kinds import no_log
from unhang.logs.sources import Limits, walk


def write(root, files):
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def names(found, root):
    return [os.path.relpath(s.name, root) for s in found.sources]


def why(found):
    return {m.what: m.why for m in found.not_examined}


def everything(found, limits=None):
    missed = []
    got = [
        (o.source.name, o.path.read_bytes() if o.path else b"".join(iter(lambda o=o: o.stream.read(1000), b"")))
        for o in walk(found.sources, missed.append, limits=limits)
    ]
    return got, missed


def test_a_plain_file_is_given_by_its_path(tmp_path):
    write(tmp_path, {"a.log": b"one\n"})
    (source,) = find([str(tmp_path / "a.log")]).sources
    assert (source.path, source.seekable, source.size_bytes, source.kind) == (tmp_path / "a.log", True, 4, None)
    assert source.mtime == os.stat(tmp_path / "a.log").st_mtime
    (opened,) = walk([source], pytest.fail)
    assert (opened.path, opened.stream) == (tmp_path / "a.log", None)


def test_a_directory_is_walked_in_order_and_each_file_read_once(tmp_path):
    write(tmp_path, {"b/2.log": b"2", "b/1.log": b"1", "a.log": b"a", "c/x": b"\0\0binary\xff", "c/empty": b"", "z": gzip.compress(b"z")})
    (tmp_path / "a-latest").symlink_to("b")
    (tmp_path / "b" / "loop").symlink_to("..")
    (tmp_path / "b" / "self.log").symlink_to("1.log")
    os.link(tmp_path / "a.log", tmp_path / "c" / "again.log")
    found = find([str(tmp_path), str(tmp_path / "b"), str(tmp_path / "b" / "2.log")])
    assert names(found, tmp_path) == ["a.log", "b/1.log", "b/2.log", "c/empty", "c/x", "z"]
    assert found.not_examined == ()
    assert [s.seekable for s in found.sources] == [True] * 5 + [False]


@pytest.mark.parametrize("how", ["run", "run/", "link", "run/**/*", "run/**/**.log", "r*/**"])
def test_a_link_that_leads_out_is_named(tmp_path, how):
    write(tmp_path, {"elsewhere/r.log": b"r", "run/a.log": b"a", "run/b/b.log": b"b"})
    run = tmp_path / "run"
    for name, to in (
        ("more", tmp_path / "elsewhere"),
        ("run.log", "../elsewhere/r.log"),
        ("root", "/"),
        ("b/up.log", "../a.log"),
        ("gone", "nowhere"),
    ):
        (run / name).symlink_to(to)
    (tmp_path / "link").symlink_to("run")
    found = find([str(tmp_path / how)])
    assert {os.path.realpath(s.path) for s in found.sources} == {str(run / "a.log"), str(run / "b" / "b.log")}
    (left,) = [m for m in found.not_examined if m.why == LEADS_OUT]
    assert left.unread and " -> " in left.what


def test_a_link_that_was_typed_is_followed(tmp_path):
    write(tmp_path, {"elsewhere/r.log": b"r", "elsewhere/more/s.log": b"s"})
    for name, to in (("r.log", "elsewhere/r.log"), ("more", "elsewhere/more")):
        (tmp_path / name).symlink_to(to)
    assert names(find([str(tmp_path / "more"), str(tmp_path / "r.log")]), tmp_path) == ["more/s.log", "r.log"]
    # Where the other one lies is named as well.
    (tmp_path / "elsewhere" / "more" / "back.log").symlink_to("../r.log")
    assert find([str(tmp_path / "more"), str(tmp_path / "elsewhere")]).not_examined == ()


@pytest.mark.parametrize("target", ["elsewhere", "elsewhere/r.log"])
def test_a_link_that_a_pattern_matches_leads_no_farther_up_than_it_begins(tmp_path, target):
    for name in ("run", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "r.log").write_text("x")
    (tmp_path / "run" / "link.log").symlink_to(tmp_path / target)
    found = find([f"{tmp_path}/run/*"])
    assert names(found, tmp_path) == ["run/r.log"] and [n.why for n in found.not_examined] == [LEADS_OUT]


@pytest.mark.parametrize("target", ["/", "/proc"])
def test_a_link_to_the_root_is_not_walked(tmp_path, target):
    (tmp_path / "all").symlink_to(target)
    for path in (tmp_path / "all", f"{tmp_path}/all/", f"{tmp_path}/a*", f"{tmp_path}/a*/**/*.log"):
        with pytest.raises(UnhangError) as refused:
            find([str(path)])
        assert LEADS_OUT in (refused.value.cause or "")


def torch_zip():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", b"x")
    return out.getvalue()


NO_LOGS = {
    "elf": b"\x7fELF\2\1\1",
    "lib.so.12": b"x",
    "a": b"!<arch>\nfoo",
    "w.safetensors": b"x",
    "w": (100).to_bytes(8, "little") + b'{"a":1}',
    "m.ckpt": b"x",
    "zip-checkpoint": torch_zip(),
    "pickled": pickle.dumps({"a": 1}, protocol=2),
    "pickled4": pickle.dumps({"a": 1}, protocol=4),
    "g": b"GGUF\3\0\0\0",
    "d.parquet": b"x",
    "d": b"PAR1\x15\4",
    "arrow": b"ARROW1\0\0",
    "n": b"\x93NUMPY\1\0",
    "p": b"\x89PNG\r\n\x1a\n",
    "j": b"\xff\xd8\xff\xe0",
    "doc": b"%PDF-1.7",
    "x.pyc": b"x",
    "db": b"SQLite format 3\0",
    "train.py": b"raise RuntimeError('NCCL error')",
    "events.out.tfevents.17.host": b"x",
    "run.json": b"{}",
    "incidents/1/stacks/rank0.json": b"{}",
}


@for_each("name", NO_LOGS)
def test_what_is_plainly_no_log(name):
    assert no_log(name, NO_LOGS[name])


@for_each(
    ("name", "head"),
    [
        ("rank0.err", b"Traceback"),
        ("job.o123", b""),
        ("incidents/2026-05-01/rank0.log", b""),
        ("x.json", b"{"),
        ("slurm-1.out", b"\0" * 512),
        ("core.log", b"\x80 broken utf-8"),
        ("x.so.log", b"a"),
        ("train.py.log", b"a"),
        ("l", b"GGUF loading\n"),
        ("l", b"PAR1 is a table\n"),
        ("l", b"abc\r\nd"),
        ("l.zip", b"PK\x03\x04" + bytes(22) + b"\x05\0\0\0a.log"),
    ],
)
def test_what_may_be_a_log(name, head):
    assert no_log(name, head) is None


def test_what_is_no_log_is_counted_in_a_directory_and_read_if_named(tmp_path):
    write(tmp_path, {**NO_LOGS, ".git/objects/ab": b"x", "good.log": b"l\n", "m2.ckpt": b"x"})
    found = find([str(tmp_path)])
    assert names(found, tmp_path) == ["good.log"]
    reasons = [m.why for m in found.not_examined]
    assert len(reasons) == len(set(reasons)) <= 12 and f"{tmp_path}/.git" in why(found)
    (checkpoints,) = [m for m in found.not_examined if m.why == "no log: a model checkpoint"]
    assert checkpoints.what.startswith(f"8 in {tmp_path}, such as {tmp_path}/")
    (named,) = find([str(tmp_path / "m.ckpt")]).sources
    assert named.seekable and named.kind == "a model checkpoint"
    assert find([str(tmp_path / "run.json")]).sources[0].kind == "a record that unhang wrote"


JUNK = bytes(range(256)) * 4


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.log": b""}, "a.log is empty"),
        ({"a.log": JUNK}, "a.log is no log: binary data"),
        ({"m.pt": pickle.dumps({"a": 1}, protocol=4)}, "m.pt is no log: a model checkpoint"),
        ({"a.log": b"", "b": JUNK}, "none of the 2 files holds a log"),
    ],
)
def test_where_not_one_line_is_there_it_is_said(tmp_path, files, words):
    write(tmp_path, files)
    with pytest.raises(UnhangError, match="nothing was read") as e:
        find([str(tmp_path / name) for name in files])
    assert str(e.value).endswith(words)
    write(tmp_path, {"good.log": b"step 1\n"})
    assert len(find([str(tmp_path / name) for name in (*files, "good.log")]).sources) == len(files) + 1


def test_nothing_came_through_the_pipe():
    with pytest.raises(UnhangError, match="stdin is empty") as e:
        find(["-"], stdin=io.BytesIO())
    assert "pipe" in e.value.cause


def test_what_lies_beside_a_model_is_no_log(tmp_path):
    write(tmp_path, {"m/model.safetensors": b"x", "m/config.json": b"{}", "m/model.safetensors.index.json": b"{}", "junk": JUNK})
    with pytest.raises(UnhangError, match="there is no log in"):
        find([str(tmp_path)])


@for_each("text", ["步骤 1 损失 2.0\n" * 40, "\x1b[31mred\x1b[0m\r\a\b\t\n" * 40, "\0" * 400 + "torn \x01\x02\x03 page\n" * 9])
@for_each("encoding", ["utf-8", "gb18030", "utf-16"])
def test_text_is_never_taken_for_binary_data(tmp_path, text, encoding):
    write(tmp_path, {"a": text.encode(encoding)})
    assert names(find([str(tmp_path)]), tmp_path) == ["a"]


def test_binary_data_in_a_packed_file_and_in_a_pipe(tmp_path):
    write(tmp_path, {"a.gz": gzip.compress(JUNK)})
    for found in (find([str(tmp_path / "a.gz")]), find(["-"], stdin=io.BytesIO(JUNK))):
        got, missed = everything(found)
        assert got == [] and missed[0].why == "no log: binary data"


def test_own_records_are_skipped_below_the_directory_that_was_named(tmp_path):
    write(tmp_path, {"incidents/1/kernel.txt": b"k"})
    assert names(find([str(tmp_path / "incidents" / "1")]), tmp_path) == ["incidents/1/kernel.txt"]
    with pytest.raises(UnhangError, match="there is no log in") as e:
        find([str(tmp_path)])
    assert "a record that unhang wrote" in e.value.cause


def test_packed_files_of_a_directory_are_looked_into(tmp_path):
    write(tmp_path, {"a.gz": gzip.compress(b"a\n"), "b.gz": gzip.compress(b"\x93NUMPY\1\0"), "cut.gz": gzip.compress(b"c" * 99)[:-8]})
    got, missed = everything(find([str(tmp_path)]))
    assert got == [(f"{tmp_path}/a.gz", b"a\n"), (f"{tmp_path}/cut.gz", b"c" * 99)]
    assert [(m.what, m.why.split(";")[0]) for m in missed] == [(f"{tmp_path}/b.gz", "no log: a data file"), (f"{tmp_path}/cut.gz", "it is cut off")]


def test_a_missing_path_names_what_is_near(tmp_path):
    write(tmp_path, {"logs/rank0.err": b"x", "logs/rank1.err": b"x", "other": b""})
    for path, near in (("logs/rank0.eer", "logs/rank0.err"), ("lgs/rank0.err", "logs"), ("logs/zzzzzz", "logs/rank0.err"), ("other/x", "other")):
        with pytest.raises(UnhangError, match="there is no ") as e:
            find([str(tmp_path / path)])
        assert str(tmp_path / near) in e.value.hint and e.value.cause is None, path
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(UnhangError, match="a symbolic link to nowhere"):
        find([str(tmp_path / "dangling")])
    with pytest.raises(UnhangError):
        find(["a\0b"])


def test_near_names_in_the_working_directory(tmp_path, monkeypatch):
    write(tmp_path, {"train.log": b"x"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnhangError) as e:
        find(["trian.log"])
    assert e.value.hint == "the nearest names that exist: train.log"


def test_a_pattern_is_expanded_unless_a_file_has_that_name(tmp_path):
    write(tmp_path, {"r[0].log": b"x", "r0.log": b"0", "sub/r1.log": b"1", "sub/m.pt": b"x", "empty.d/.keep": b""})
    assert names(find([str(tmp_path / "r[0].log")]), tmp_path) == ["r[0].log"]
    assert names(find([str(tmp_path / "r[0-9].log")]), tmp_path) == ["r0.log"]
    found = find([str(tmp_path / "**")])
    assert sorted(names(found, tmp_path)) == ["empty.d/.keep", "r0.log", "r[0].log", "sub/r1.log"]
    assert list(why(found).values()) == ["no log: a model checkpoint"]
    assert names(find([str(tmp_path / "**/.k*"), str(tmp_path / "r0.log")]), tmp_path) == ["empty.d/.keep", "r0.log"]
    with pytest.raises(UnhangError, match="no log matches") as e:
        find([str(tmp_path / "*.err")])
    assert "r0.log" in e.value.hint
    with pytest.raises(UnhangError, match="no log matches") as e:
        find([str(tmp_path / "sub" / "*.pt")])
    assert "a model checkpoint" in e.value.cause


def test_an_empty_directory(tmp_path):
    (tmp_path / "d" / "e").mkdir(parents=True)
    with pytest.raises(UnhangError, match="there is no log in") as e:
        find([str(tmp_path)])
    assert e.value.cause == "it is empty"


def test_special_files_never_block(tmp_path, monkeypatch):
    write(tmp_path, {"a.log": b"a"})
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as s:
        monkeypatch.chdir(tmp_path)  # the path of a socket is short
        s.bind("sock")
    (tmp_path / "null").symlink_to("/dev/null")
    found = find([str(tmp_path)])
    assert names(found, tmp_path) == ["a.log"]
    assert sorted(m.why for m in found.not_examined) == ["no log: a FIFO", "no log: a device", "no log: a socket"]
    for name, what in (("fifo", "a FIFO"), ("sock", "a socket"), ("null", "a device")):
        with pytest.raises(UnhangError, match=f"is {what}, not a file"):
            find([str(tmp_path / name)])


def test_what_may_not_be_read(tmp_path):
    if os.geteuid() == 0:  # root reads everything; a loop of links fails for everyone
        bad = tmp_path / "bad.log"
        bad.symlink_to("bad.log")
        message = "Too many levels"
    else:
        bad = write(tmp_path, {"bad.log": b"x"}) / "bad.log"
        bad.chmod(0)
        message = "Permission denied"
    write(tmp_path, {"good.log": b"g"})
    with pytest.raises(UnhangError, match=message):
        find([str(bad)])
    found = find([str(tmp_path)])
    assert names(found, tmp_path) == ["good.log"] and message in why(found)[str(bad)]


def test_a_file_that_vanishes_is_reported(tmp_path):
    write(tmp_path, {"a.gz": gzip.compress(b"a"), "b.gz": gzip.compress(b"b")})
    found = find([str(tmp_path)])
    (tmp_path / "a.gz").unlink()
    got, missed = everything(found)
    assert got == [(f"{tmp_path}/b.gz", b"b")]
    assert [(m.what, m.why) for m in missed] == [(f"{tmp_path}/a.gz", "it cannot be read: No such file or directory")]


def test_files_are_capped_and_counted(tmp_path):
    write(tmp_path, {f"{i:02}.log": b"x" for i in range(30)})
    found = find([str(tmp_path), str(tmp_path / "29.log")], limits=Limits(files=10))
    assert names(found, tmp_path) == [f"{i:02}.log" for i in range(10)] + ["29.log"]
    assert why(found) == {f"20 in {tmp_path}, such as {tmp_path}/10.log": "more than 10 files were found; these were not read"}


@pytest.mark.parametrize("size", [10, 20_000_000])
def test_standard_input(size, tmp_path):
    data = b"x" * size
    found = find(["-", "-"], stdin=io.BytesIO(data))
    (source,) = found.sources
    assert (source.name, source.path, source.size_bytes) == (STDIN, None, size)
    assert everything(found) == ([(STDIN, data)], [])
    assert everything(find(["-"], stdin=io.BytesIO(gzip.compress(data)))) == ([(STDIN, data)], [])


def test_an_archive_on_standard_input():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("a.log", b"a\n")
    code = "import sys; from unhang.logs.discovery import find; from unhang.logs.sources import walk\n"
    code += "for o in walk(find(['-']).sources, print): print(o.source.name, o.stream.read(9))"
    done = subprocess.run([sys.executable, "-c", code], input=out.getvalue(), capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"stdin!a.log b'a\\n'\n", b"")


def test_standard_input_is_bounded():
    found = find(["-"], stdin=io.BytesIO(b"x" * 1000), limits=Limits(spool_bytes=700))
    assert everything(found)[0] == [(STDIN, b"x" * 700)] and "longer" in why(found)[STDIN]


def test_files_that_are_longer_than_they_say():
    (source,) = find(["/proc/self/status"]).sources
    assert not source.seekable and source.size_bytes is None
    ((_, data),), _ = everything(find(["/proc/self/status"]))
    assert data.startswith(b"Name:")


def test_names_that_are_no_text(tmp_path):
    raw = os.fsencode(tmp_path) + b"/\xff\x1b[2J.log"
    with open(raw, "wb") as f:
        f.write(b"x")
    (source,) = find([str(tmp_path)]).sources
    assert source.name == f"{tmp_path}/\\udcff\\x1b[2J.log" and os.fsencode(source.path) == raw


HEAVY = ("zstandard", "lzma", "bz2", "tarfile", "zipfile", "tempfile")


def test_nothing_heavy_is_imported_for_plain_files(tmp_path):
    write(tmp_path, {"a.log": b"a"})
    code = "import sys; from unhang.logs.discovery import find; from unhang.logs.sources import walk\n"
    code += "list(walk(find([sys.argv[1]]).sources, print)); print(sorted(set(sys.argv[2:]) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, tmp_path, *HEAVY], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


PROGRAM = 'raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB")\n'


def test_source_code_is_no_log_where_it_is_named_either(tmp_path):
    """It holds the very messages that are searched for."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "rank0.log").write_text("step 1\n")
    with pytest.raises(UnhangError, match="nothing was read") as refused:
        find([str(tmp_path / "train.py")])
    assert "no log: source code" in (refused.value.cause or "")
    found = find([str(tmp_path / "train.py"), str(tmp_path / "rank0.log")])
    assert [s.path.name for s in found.sources if s.path] == ["rank0.log"]
    assert [(n.what.rpartition("/")[2], n.why, n.unread) for n in found.not_examined] == [("train.py", "no log: source code", False)]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ('{"a":', True),
        ('[\n  {"a": 1},\n  {"b"', True),
        ('{"a": 1}\n', False),
        ('{\n  "a": 1\n}\n', False),
        ('{"step": 1}\n{"step": 2}\n{"st', False),
        ("step 1\n", False),
    ],
)
def test_json_without_its_end_is_not_called_read(tmp_path, text, cut):
    (tmp_path / "x.json").write_text(text)
    found = find([str(tmp_path / "x.json")])
    assert len(found.sources) == 1
    assert [(n.why, n.unread) for n in found.not_examined] == ([("it is JSON without its end: it was read as it stands", True)] if cut else [])
