"""Environments of other makers: conda prefixes, uv's and copied ones, and what lies beside packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pack.conftest import package, run, unhang

from unhang.pack import relocate


@pytest.fixture
def prefix(packed, tmp_path) -> Path:
    """A conda prefix as conda leaves it, made by hand around a real interpreter: conda's channels are not asked."""
    unhang("load", packed, tmp_path / "made")
    made = tmp_path / "conda" / "envs" / "train"
    shutil.copytree(tmp_path / "made" / ".python", made, symlinks=True)
    program = next((made / "bin").glob("python3*"))
    (made / "bin" / "python").symlink_to(program.name)
    (made / "bin" / "tool").write_text(f"#!{made}/bin/python\nimport sys\nprint(sys.prefix)\n")
    (made / "bin" / "tool").chmod(0o755)
    (made / "lib" / "declared.so").write_bytes(b"\x7fELF\0" + f"{made}/share:{made}/etc".encode() + bytes(40) + b"end")
    (made / "lib" / "undeclared.so").write_bytes(b"\x7fELF\0" + f"{made}/share".encode() + b"\0end")
    (made / "etc").mkdir()
    (made / "etc" / "settings.conf").write_text(f"root={made}/share\n")
    site = made / "lib" / program.name / "site-packages"
    site.mkdir(exist_ok=True)
    package(site, "plain", "")
    (made / "conda-meta").mkdir()
    paths = [
        {"_path": "lib/declared.so", "prefix_placeholder": "/opt/placeholder", "file_mode": "binary"},
        {"_path": "lib/undeclared.so"},
    ]
    (made / "conda-meta" / "lib-1.0-0.json").write_text(json.dumps({"name": "lib", "paths_data": {"paths": paths}}))
    return made


def test_a_conda_prefix_keeps_the_length_of_its_binaries(prefix, tmp_path):
    told = json.loads(unhang("save", "--json", prefix, tmp_path / "conda.tar.zst"))["manifest"]
    assert (told["kind"], told["python"]["interpreter"]) == ("conda", None)
    assert [left["path"] for left in told["left_out"]] == ["lib/undeclared.so"]
    before = (prefix / "lib" / "declared.so").read_bytes()
    shutil.rmtree(prefix)
    dest = tmp_path / "short"
    unhang("load", tmp_path / "conda.tar.zst", dest)
    after = (dest / "lib" / "declared.so").read_bytes()
    assert len(after) == len(before) and after.startswith(f"\x7fELF\0{dest}/share:{dest}/etc\0".encode("latin1")) and after.endswith(b"\0end")
    assert (dest / "etc" / "settings.conf").read_text() == f"root={dest}/share\n"
    assert run(dest / "bin" / "tool") == f"{dest}\n"
    assert json.loads(unhang("verify", "--json", dest))["findings"] == []
    longer = tmp_path / ("long" * 30)
    refused = json.loads(unhang("load", "--json", tmp_path / "conda.tar.zst", longer, code=1))
    assert (refused["state"], [f["cause"] for f in refused["findings"]]) == ("refused", ["env-relocation"])
    assert not longer.exists()


@pytest.mark.parametrize("made_by", ["copies", "relocatable uv", "uv"])
def test_other_virtual_environments(made_by, tmp_path):
    env = tmp_path / "env"
    if made_by == "copies":
        run(sys.executable, "-m", "venv", "--without-pip", "--copies", env)
    else:
        if (uv := shutil.which("uv")) is None:
            pytest.skip("there is no uv")
        more = ("--relocatable",) if "relocatable" in made_by else ()
        run(uv, "venv", "--offline", "--python", os.path.realpath(sys.executable), *more, env)
    site = next((env / "lib").glob("python3*")) / "site-packages"
    package(site, "plain", "")
    # Linked from a cache, as uv can do it.
    (tmp_path / "cache.py").write_text("CACHED = 1\n")
    (site / "cached.py").symlink_to(tmp_path / "cache.py")
    (env / "bin" / "tool").write_text("#!/usr/bin/env python3\nimport cached, sys\nprint(sys.prefix, sys.argv[1:])\n")
    (env / "bin" / "tool").chmod(0o755)
    long = tmp_path / "old" / ("long" * 40)
    (env / "bin" / "far").write_text(f"#!/bin/sh\n'''exec' {env}/bin/python \"$0\" \"$@\"\n' '''\nprint('far')\n")
    (env / "bin" / "far").chmod(0o755)
    (site / "stray.pth").write_text(f"{tmp_path}\n")
    (tmp_path / "alias").symlink_to(tmp_path)
    (site / "by_alias").symlink_to(tmp_path / "alias" / "env" / "bin")
    (site / "itself").symlink_to(env)
    (site / "round").symlink_to("round")
    told = json.loads(unhang("save", "--json", env, tmp_path / "env.tar.zst"))["manifest"]
    assert [left["path"].rpartition("/")[2] for left in told["left_out"]] == [tmp_path.name, "round"]
    shutil.rmtree(env)
    (tmp_path / "cache.py").unlink()
    long.mkdir(parents=True)
    dest = long / "with spaces"
    unhang("load", tmp_path / "env.tar.zst", dest)
    assert run(dest / "bin" / "tool", "a b", env={"PATH": "/usr/bin:/bin"}) == f"{dest} ['a b']\n"
    assert run(dest / "bin" / "far", env={"PATH": "/usr/bin:/bin"}) == "far\n"
    site = dest / site.relative_to(env)
    assert [(site / n).readlink() for n in ("by_alias", "itself")] == [Path("../../../bin"), Path("../../..")]
    activated = run("bash", "-c", f'. "{dest}/bin/activate" && command -v python')
    assert activated == f"{dest}/bin/python\n"


@pytest.mark.parametrize("is_checkout", [True, False])
def test_a_project_travels_without_its_archive(is_checkout, env, tmp_path):
    project = tmp_path / "trainer"
    (project / ".venv").mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").write_text("")
    (project / "train.py").write_text("print('step')\n")
    if is_checkout:
        run("git", "-C", project, "init", "-q")
    file = project / "env.tar.zst"
    unhang("save", env, file, "--project", project)
    before = file.read_bytes()
    told = json.loads(unhang("save", "--json", "--replace", env, file, "--project", project))["manifest"]
    assert file.read_bytes() == before
    assert [s["path"] for s in told["sources"]] == [".editable/demo-pkg", ".project/trainer"]
    unhang("load", file, tmp_path / "place")
    assert run(tmp_path / "place" / "bin" / "python", tmp_path / "place" / ".project" / "trainer" / "train.py") == "step\n"
    assert not (tmp_path / "place" / ".project" / "trainer" / ".venv").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cd /old/env/bin", "cd /new/bin"),
        ("-L/old/env/lib -I/old/env/include", "-L/new/lib -I/new/include"),
        ("file:///old/env", "file:///new"),
        ('"/old/env"', '"/new"'),
        ("ends with /old/env.", "ends with /new."),
        ("/old/env2 /old/env-2 /old/env.bak /mnt/old/env", "/old/env2 /old/env-2 /old/env.bak /mnt/old/env"),
        ("/old/project/src", "/new/.editable/project/src"),
        ("export VIRTUAL_ENV=/old/b\n", "export VIRTUAL_ENV='/a new'\n"),
        ('setenv VIRTUAL_ENV "/old/b"', 'setenv VIRTUAL_ENV "/a new"'),
        # The new path of one lies below the old path of the other.
        ("/old", "/old"),
    ],
)
def test_paths_are_replaced_where_they_are_paths(text, expected):
    moves = [("/old/project", "/new/.editable/project"), ("/old/env", "/new"), ("/old/b", "/a new")]
    found = relocate.rewritten(text.encode(), "text", moves, final="/new", interpreter=None, names=())
    assert found.decode() == expected


def test_new_paths_are_not_replaced_again():
    moves = [("/home/ann/proj/.venv", "/home/ann/proj/envs/a"), ("/home/ann/proj", "/home/ann/proj/envs/a/.editable/proj")]
    found = relocate.rewritten(b"/home/ann/proj/.venv/bin:/home/ann/proj/src", "text", moves, final="/x", interpreter=None, names=())
    assert found == b"/home/ann/proj/envs/a/bin:/home/ann/proj/envs/a/.editable/proj/src"


def test_the_python_without_a_lock_is_found():
    script = b"#!/old/env/bin/python3.14t -I\n"
    found = relocate.rewritten(script, "script", [("/old/env", "/new")], final="/new", interpreter=None, names=("python3.14t",))
    assert b"/'python3.14t' -I \"$0\"" in found


def test_a_script_with_a_future_keeps_its_first_statement():
    script = b'#!/old/env/bin/python\n"""Says."""\nfrom __future__ import annotations\n'
    moves = [("/old/env", "/new")]
    found = relocate.rewritten(script, "script", moves, final="/new", interpreter=None, names=("python",))
    assert found == script.replace(b"/old/env", b"/new")
    compile(found, "script", "exec")


@pytest.mark.integration
def test_wheels_need_no_index_afterwards(tmp_path):
    env = tmp_path / "env"
    run(sys.executable, "-m", "venv", env)
    wheel = tmp_path / "wheels"
    wheel.mkdir()
    (tmp_path / "requirements.txt").write_text(f"--no-index\n--find-links {wheel}\nplain-pkg==1.0\n")
    import zipfile

    with zipfile.ZipFile(wheel / "plain_pkg-1.0-py3-none-any.whl", "w") as made:
        made.writestr("plain_pkg.py", "")
        made.writestr("plain_pkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: plain-pkg\nVersion: 1.0\n")
        made.writestr("plain_pkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr("plain_pkg-1.0.dist-info/RECORD", "")
    unhang("save", env, tmp_path / "env.tar.zst", "--with-wheels", tmp_path / "requirements.txt")
    shutil.rmtree(wheel)
    dest = tmp_path / "place"
    unhang("load", tmp_path / "env.tar.zst", dest)
    pip = (dest / "bin" / "pip", "--disable-pip-version-check", "install", "-q", "--no-index", "--find-links", dest / ".wheels", "plain-pkg")
    subprocess.run(list(map(str, pip)), check=True, timeout=120)
    assert run(dest / "bin" / "python", "-c", "import plain_pkg; print(1)") == "1\n"
