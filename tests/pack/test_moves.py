"""Environments that are packed, placed elsewhere, and work there."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zstandard
from tests.pack.conftest import package, run, unhang

from unhang.errors import UnhangError
from unhang.facts.host import Host
from unhang.pack import archive, import_checks, relocate
from unhang.pack import files as contents

HIDE = """
set -e
for d in "$@"; do mount -t tmpfs none "$d"; done
for f in /usr/bin/python3*; do mount --bind /dev/null "$f"; done
for d in /usr/lib/python3*; do mount -t tmpfs none "$d"; done
for f in /usr/lib*/*/libssl.so* /usr/lib*/*/libffi.so* /usr/lib*/*/libsqlite3.so*; do [ ! -e "$f" ] || mount --bind /dev/null "$f"; done
cd /
env -i "$DEST/bin/demo-cli"
env -i "$DEST/bin/python" -c 'import ctypes, hashlib, sqlite3, ssl, zlib; print("modules")'
exec env -i "$DEST/bin/python" -I "$CHECKS" 60
"""


def base_of(env: Path) -> str:
    return run(env / "bin" / "python", "-c", "import sys; print(sys.base_prefix)").strip()


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mount namespaces take root")
def test_works_without_its_old_place_and_without_its_python(env, packed, tmp_path):
    dest = tmp_path / "a new" / "place"
    dest.parent.mkdir()
    unhang("load", packed, dest)
    hidden = [str(env.parent), *([base] if (base := base_of(env)) not in ("/usr", "/") and not sys.executable.startswith("/usr") else [])]
    script = tmp_path / "hide.sh"
    script.write_text(HIDE)
    shutil.copy(import_checks.__file__, tmp_path / "checks.py")
    out = run("unshare", "-m", "sh", script, *hidden, env=os.environ | {"DEST": str(dest), "CHECKS": str(tmp_path / "checks.py")})
    said, modules, told = out.strip().splitlines()
    assert said == f"first {dest} {dest}/.python"
    assert modules == "modules"
    found = json.loads(told)
    assert (found["imports"], found["scripts"]) == ({"tried": 1, "failed": []}, {"tried": 1, "failed": []})


def test_stays_editable_and_names_its_new_place_only(env, packed, tmp_path):
    dest = tmp_path / "place"
    manifest = json.loads(unhang("load", "--json", packed, dest))["manifest"]
    assert run(dest / "bin" / "demo-cli").startswith("first ")
    source = dest / ".editable" / "demo-pkg"
    (source / "src" / "demo_pkg" / "__init__.py").write_text('def main(): print("second")\n')
    assert run(dest / "bin" / "demo-cli") == "second\n"
    # As git has it, and what a build left that cannot be done without.
    assert (source / "src" / "demo_pkg" / "built.so").exists() and not (source / "train.log").exists()
    assert (2, 17) <= tuple(map(int, manifest["glibc"].split("."))) <= tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))
    assert manifest["sources"][0]["commit"] == run("git", "-C", env.parent / "project", "rev-parse", "HEAD").strip()
    site = next((dest / "lib").glob("python3*")) / "site-packages"
    assert (site / "plain.pc").read_text() == f"prefix={dest}\nlibs=-L{dest}/lib -I{dest}/include other={env}-2/lib\n"
    assert (site / "absolute").readlink() == Path("../../../bin")
    assert (site / "one.bin").samefile(site / "two.bin") and (site / "one.bin").stat().st_mode & 0o777 == 0o440
    left = {p for p in dest.rglob("*") if p.is_file() and not p.is_symlink() and str(env.parent).encode() in p.read_bytes()}
    assert {str(p.relative_to(dest)) for p in left - {*(dest / ".unhang").iterdir()}} == {
        f"{site.relative_to(dest)}/{n}" for n in ("plain.pc", "one.bin", "two.bin")
    }
    assert [left["path"].rpartition("/")[2] for left in manifest["left_out"]] == ["one.bin", "two.bin"]


def test_what_git_ignores_is_listed_and_taken_if_asked_for(env, packed, tmp_path):
    log, file = env.parent / "project" / "train.log", tmp_path / "env.tar.zst"
    at, before = ".editable/demo-pkg/train.log", log.read_text()
    log.write_text(before * 2)
    try:
        *_, note, how, last = unhang("save", env, file).splitlines()
        assert note == f"note: {at}: git ignores it (1 file, {2 * len(before)} B)" and "--include PATTERN" in how
        # What stays behind changes nothing of what travels, and the sum is that of the file.
        assert file.read_bytes() == packed.read_bytes() and last.endswith(f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}")
        told = json.loads(unhang("save", "--json", "--replace", "--all-files", env, file))
        assert told["ignored"] == [] and told["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest() != told["digest"]
        with archive.opened(file) as opened:
            assert at in {e.path for e in opened.manifest.entries}
    finally:
        log.write_text(before)


def test_patterns_name_what_git_ignores(tmp_path, monkeypatch):
    top = tmp_path / "project"
    for path in (".venv/pyvenv.cfg", "data/a.bin", "data/deep/b.json", "node_modules/c.js", "src/__pycache__/d.pyc", "src/e.py", "f.log"):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(b"12345")
    (top / ".gitignore").write_text(".venv\ndata/\nnode_modules\n*.log\n")
    run("git", "-C", top, "init", "-q")

    def found(*include):
        _, items, left = contents.sources("project", top, "p", host=Host(), without=top / "g.log", include=include)
        return {i.path.removeprefix("p/") for i in items}, {one.path.removeprefix("p/"): one.why for one in left}

    (top / "g.log").write_text("the archive itself")
    assert found() == ({".gitignore", "src/e.py"}, {"data": "git ignores it (2 files, 10 B)", "f.log": "git ignores it (1 file, 5 B)"})
    assert found("*.json")[0] - found()[0] == {"data/deep/b.json"} and found("*.json")[1]["data"] == "git ignores it (1 file, 5 B)"
    assert found("data", "f.log")[1] == {} and found(".")[0] == found("data", "f.log", "node_modules")[0] > found()[0]
    assert not any(".venv" in path or "__pycache__" in path or path == "g.log" for path in found(".")[0])
    with pytest.raises(UnhangError, match=r"--include \.\./else"):
        found("../else")
    # Links, and what nobody would wait to see counted.
    (top / "data" / "system").symlink_to("/usr")
    (top / "system.log").symlink_to("/usr")
    monkeypatch.setattr(contents, "_MOST_COUNTED", 3)
    assert found()[1]["data"] == "git ignores it (3 files, 14 B)" and found()[1]["system.log"] == "git ignores it (1 file, 4 B)"
    (top / "data" / "c.bin").write_bytes(b"12345")
    assert found()[1]["data"] == "git ignores it (more than 3 files)"


@pytest.mark.parametrize(
    ("words", "missed"),
    # The last stands outside of a git checkout.
    [("--include nothing/*.json", "nothing/*.json"), ("--include *.log --include *.json", "*.json"), ("--include *.txt --project {}", "*.txt")],
)
def test_a_pattern_that_names_nothing_is_refused(env, tmp_path, words, missed):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.txt").write_text("a")
    says = unhang("save", env, tmp_path / "env.tar.zst", *words.format(tmp_path / "plain").split(), code=2)
    assert f"--include '{missed}' names no file" in says and not (tmp_path / "env.tar.zst").exists()


def test_is_placed_without_unhang(packed, tmp_path):
    """What docs/pack.md says to do on a host that has nothing but tar and zstd."""
    dest = tmp_path / "place"
    dest.mkdir()
    with packed.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        subprocess.run(["tar", "-C", dest, "-xf", "-"], input=stream.read(), check=True, timeout=120, umask=0o077)
    python = next((dest / ".python" / "bin").iterdir())
    run(python, "-I", dest / ".unhang" / "placement.py", "here", dest)
    assert run(dest / "bin" / "demo-cli") == f"first {dest} {dest}/.python\n"
    assert json.loads(unhang("verify", "--json", dest))["findings"] == []


def test_record_holds_the_sums_of_what_was_rewritten(packed, tmp_path):
    dest = tmp_path / "place"
    unhang("load", packed, dest)
    site = next((dest / "lib").glob("python3*")) / "site-packages"
    rows = [row for row in csv.reader((site / "demo_pkg-0.1.dist-info" / "RECORD").read_text().splitlines()) if row[1]]
    assert any(row[0].endswith("bin/demo-cli") for row in rows)
    for path, total, size in rows:
        data = (site / path).read_bytes()
        assert total == f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()}", path
        assert int(size) == len(data)


def test_the_same_environment_makes_the_same_bytes_and_is_placed_once(env, packed, tmp_path):
    unhang("save", env / "bin" / "..", tmp_path / "again.tar.zst")
    assert (tmp_path / "again.tar.zst").read_bytes() == packed.read_bytes()
    dest = tmp_path / "place"
    unhang("load", packed, dest)
    before = (dest / "bin" / "demo-cli").stat()
    assert json.loads(unhang("load", "--json", packed, dest))["state"] == "unchanged"
    assert (dest / "bin" / "demo-cli").stat().st_ino == before.st_ino
    (dest / "bin" / "demo-cli").write_text("#!/bin/sh\n")
    assert "exists already" in unhang("load", packed, dest, code=2)
    assert json.loads(unhang("load", "--json", "--replace", packed, dest))["state"] == "replaced"
    assert run(dest / "bin" / "demo-cli").startswith("first ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.tar.zst", "place"]
    # Packed from its new place it works at a third one.
    unhang("save", dest, tmp_path / "second.tar.zst")
    unhang("load", tmp_path / "second.tar.zst", tmp_path / "third")
    shutil.rmtree(dest)
    assert run(tmp_path / "third" / "bin" / "demo-cli") == f"first {tmp_path}/third {tmp_path}/third/.python\n"


def test_moved_once_more_is_found_and_repaired(packed, tmp_path):
    unhang("load", packed, tmp_path / "place")
    (tmp_path / "place").rename(tmp_path / "other")
    (tmp_path / "place").symlink_to("other")
    assert json.loads(unhang("verify", "--json", tmp_path / "place"))["findings"] == []
    (tmp_path / "place").unlink()
    found = json.loads(unhang("verify", "--json", tmp_path / "other", code=1))
    place = next(f for f in found["findings"] if f["area"] == "place")
    assert (place["cause"], place["remedies"][0]["command"]) == ("env-relocation", f"unhang pack verify --repair {tmp_path}/other")
    assert not [f["area"] for f in found["findings"] if f["remedies"] and f is not place]
    found = json.loads(unhang("verify", "--json", "--repair", tmp_path / "other"))
    assert [a["state"] for a in found["areas"]][:4] == ["ok"] * 4


def test_verify_names_what_is_wrong_and_goes_on(packed, tmp_path):
    dest = tmp_path / "place"
    unhang("load", packed, dest)
    site = next((dest / "lib").glob("python3*")) / "site-packages"
    package(site, "aborts", "import os\nos.abort()\n")
    package(site, "disturbed", "import sys\nassert 'demo_pkg' not in sys.modules\n")
    package(site, "asks_for_more", "import never_installed\n")
    package(site, "hangs", "import time\ntime.sleep(600)\n")
    package(site, "unzips", "raise ModuleNotFoundError('No module named _bz2', name='_bz2')\n")
    package(site, "links", "raise ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')\n")
    (site / "links-1.0.dist-info" / "entry_points.txt").write_text("[console_scripts]\ncrashes = links:main\n")
    (dest / "bin" / "crashes").write_text("#!/bin/sh\nkill -SEGV $$\n")
    (dest / "bin" / "crashes").chmod(0o755)
    (site / "plain.pc").write_text("changed")
    (site / "sitecustomize.py").write_text("")
    (site / "own.pth").write_text("import sys\n")
    with (site / "links-1.0.dist-info" / "RECORD").open("a") as record:
        record.write("own.pth,,\n")
    site.chmod(0o700)
    (dest / "bin" / "demo-cli").write_text("#!/nowhere/python\n")
    found = json.loads(unhang("verify", "--json", "--limit", "5s", dest, code=1))
    says = {f["area"]: [] for f in found["findings"]}
    for f in found["findings"]:
        says[f["area"]].append((f["cause"], f["says"]))
    ((_, files),) = says["files"]
    assert files.startswith("not as packed (4): ") and "site-packages has mode 700, not 755" in files and "sitecustomize.py was added" in files
    assert next(a["summary"] for a in found["areas"] if a["id"] == "files").endswith(", 4 not as packed")
    remedies = {f["area"]: [r["command"] for r in f["remedies"]] for f in found["findings"] if f["remedies"]}
    assert remedies == {"files": [f"unhang pack load --replace FILE {dest}"]}
    aborts, hangs, links, unzips = sorted(says["imports"], key=lambda s: s[1])
    assert "cannot import unzips (unzips): " in unzips[1]
    assert "cannot import aborts (aborts): it ended Python with -6" in aborts[1]
    assert "cannot import hangs (hangs): it did not end within 5 s" in hangs[1]
    assert links[0] == "library-link"
    assert next(a["summary"] for a in found["areas"] if a["id"] == "imports").endswith("asks_for_more (never_installed)")
    assert [s.partition(": ")[0].rpartition("/")[2] for _, s in says["scripts"]] == ["crashes", "demo-cli"]
    assert {"env-relocation"} == {cause for cause, _ in says["python"]}
    assert found["not_examined"]


def test_ctrl_c_leaves_no_process(packed, tmp_path):
    dest = tmp_path / "place"
    unhang("load", packed, dest)
    site = next((dest / "lib").glob("python3*")) / "site-packages"
    at, pid = tmp_path / "new", tmp_path / "pid"
    code = f"import os, time\nopen({str(at)!r}, 'w').write(str(os.getpid()))\nos.rename({str(at)!r}, {str(pid)!r})\ntime.sleep(600)\n"
    package(site, "hangs", code)
    process = subprocess.Popen([sys.executable, "-m", "unhang", "pack", "verify", str(dest)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not pid.exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not Path(f"/proc/{pid.read_text()}").exists()


@pytest.mark.torch
@pytest.mark.integration
def test_two_ranks_meet_with_the_torchrun_of_the_environment(packed, tmp_path):
    """torch itself is that of these tests: a gigabyte that needs no packing to be started."""
    torch = pytest.importorskip("torch")
    dest = tmp_path / "place"
    unhang("load", packed, dest)
    theirs, site = Path(torch.__file__).parent.parent, next((dest / "lib").glob("python3*")) / "site-packages"
    (site / "torch.pth").write_text(f"{theirs}\n")
    shutil.copytree(next(theirs.glob("torch-*.dist-info")), site / "torch-2.dist-info")
    script = dest / "bin" / "torchrun"
    script.write_bytes((dest / "bin" / "demo-cli").read_bytes().replace(b"demo_pkg import main", b"torch.distributed.run import main"))
    script.chmod(0o755)
    told = json.loads(run(dest / "bin" / "python", "-I", import_checks.__file__, "120").strip().splitlines()[-1])
    assert told["gloo"][0] == 0, told["gloo"][1]
    assert told["nccl"][0] == 0, told["nccl"][1]
    assert {f["script"] for f in told["scripts"]["failed"]} == set()
    assert "torch" in told["modules"] and not [f for f in told["imports"]["failed"] if f["module"] == "torch"]


def ended_when(argv: list[object], is_time, number: int = signal.SIGKILL) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "unhang", "pack", *map(str, argv)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while True:
        # It stands while it is looked at: it cannot come to its end in between.
        process.send_signal(signal.SIGSTOP)
        if is_time():
            break
        process.send_signal(signal.SIGCONT)
        assert process.poll() is None and time.monotonic() < until, "it was done before it could be killed"
        time.sleep(0.001)
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate()
    return process.returncode, out, err


def test_killed_in_the_middle_leaves_nothing_that_looks_right(env, packed, tmp_path):
    file, dest = tmp_path / "env.tar.zst", tmp_path / "place"
    code, _, err = ended_when(["save", env, file], lambda: any(tmp_path.glob(".env.tar.zst.*.part")), signal.SIGINT)
    assert (code, err, [*tmp_path.iterdir()]) == (130, "unhang: interrupted: nothing unfinished is left; the same command starts again\n", [])
    ended_when(["save", env, file], lambda: any(tmp_path.glob(".env.tar.zst.*.part")))
    assert not file.exists()
    unhang("save", env, file)
    assert [p.name for p in tmp_path.iterdir()] == ["env.tar.zst"] and file.read_bytes() == packed.read_bytes()
    deep = tmp_path / "a" / "b"
    code, out, err = ended_when(["load", "--json", file, deep], lambda: (tmp_path / "a" / ".b.unhang-new" / ".python").exists(), signal.SIGTERM)
    assert (code, json.loads(out)["exitcode"], "nothing unfinished is left" in err) == (143, 143, True)
    assert [p.name for p in tmp_path.iterdir()] == ["env.tar.zst"]
    ended_when(["load", file, dest], lambda: (tmp_path / ".place.unhang-new" / ".python" / "lib").exists())
    assert not dest.exists()
    unhang("load", file, dest)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["env.tar.zst", "place"]
    # Between the two renames of --replace.
    dest.rename(tmp_path / ".place.unhang-before")
    assert json.loads(unhang("load", "--json", file, dest))["state"] == "unchanged"


def test_what_is_no_environment_is_refused(tmp_path, packed):
    (tmp_path / "sources").mkdir()
    assert "neither pyvenv.cfg nor conda-meta" in unhang("save", tmp_path / "sources", tmp_path / "a.tar.zst", code=2)
    assert "was not loaded from an archive" in unhang("verify", tmp_path, code=2)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "a.tex").write_text("three years")
    (tmp_path / "link").symlink_to("thesis")
    for words in (("--replace", packed, "thesis"), (packed, "thesis"), ("--replace", packed, "link")):
        assert "it is not replaced" in unhang("load", *words[:-1], tmp_path / words[-1], code=2)
    assert (tmp_path / "thesis" / "a.tex").read_text() == "three years"
    (tmp_path / ".place.unhang-new").symlink_to("thesis")
    assert "cannot write" in unhang("load", packed, tmp_path / "place", code=2)
    # It appeared while an archive was unpacked.
    with pytest.raises(OSError), relocate.beside(tmp_path / "new") as new:
        relocate.exchange(new, tmp_path / "thesis", replace=False)
    assert (tmp_path / "thesis" / "a.tex").read_text() == "three years"
    assert f"{packed} is no directory" in unhang("load", packed, packed / "a" / "b", code=2)
    unhang("load", packed, tmp_path / "a" / "b")
    assert run(tmp_path / "a" / "b" / "bin" / "demo-cli").startswith("first ")
    (tmp_path / "python").write_text("not to be executed")
    (tmp_path / "locked" / "bin").mkdir(parents=True)
    (tmp_path / "locked" / "pyvenv.cfg").write_text("")
    (tmp_path / "locked" / "bin" / "python").symlink_to(tmp_path / "python")
    assert "may not be used by you" in unhang("save", tmp_path / "locked", tmp_path / "a.tar.zst", code=2)


@pytest.mark.parametrize(
    ("file", "says"), [("directory", "no regular file"), ("link", "no regular file"), ("-", "no regular file"), ("file", "--replace")]
)
def test_no_file_is_overwritten_unasked(file, says, env, tmp_path):
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("three years")
    (tmp_path / "link").symlink_to("file")
    assert says in unhang("save", env, "-" if file == "-" else tmp_path / file, code=2)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "three years"


def test_diff_shows_what_changed(env, packed, tmp_path):
    assert json.loads(unhang("diff", "--json", packed, env))["files"] == []
    dest = tmp_path / "place"
    unhang("load", packed, dest)
    site = next((dest / "lib").glob("python3*")) / "site-packages"
    # As it is, not as it was packed; that it lies elsewhere is no difference.
    same = {"facts": {}, "distributions": {}, "files": []}
    assert {name: json.loads(unhang("diff", "--json", packed, dest))[name] for name in same} == same
    package(site, "newer", "")
    (site / "own.pth").write_text("import sys\n")
    (site / "plain.pc").unlink()
    changed = dest / ".editable" / "demo-pkg" / "src" / "demo_pkg" / "__init__.py"
    before = changed.read_text()
    changed.write_text(before + "# changed\n")
    found = json.loads(unhang("diff", "--json", packed, dest, code=1))
    assert (found["facts"], found["distributions"]) == ({}, {"newer": [None, "1.0"]})
    names = {path.rpartition("/")[2] for path in found["files"]}
    assert names == {"newer.py", "newer-1.0.dist-info", "METADATA", "top_level.txt", "RECORD", "own.pth", "plain.pc", "__init__.py"}
    changed.write_text(before)
    unhang("save", dest, tmp_path / "second.tar.zst")
    found = json.loads(unhang("diff", "--json", packed, tmp_path / "second.tar.zst", code=1))
    assert found["facts"]["source demo-pkg"][1] == f"path .editable/demo-pkg, origin {dest}/.editable/demo-pkg, changed False"
    assert found["distributions"] == {"newer": [None, "1.0"]}
    assert any(path.endswith("newer.py") for path in found["files"])
