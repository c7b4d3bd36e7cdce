import os
import subprocess

import pytest

from unhang.facts import paths
from unhang.facts.host import Host


def read(tmp_path, text, *, at_most=255):
    (tmp_path / "script").write_bytes(text.encode())
    return paths.shebang(Host(), str(tmp_path / "script"), at_most=at_most)


@pytest.mark.parametrize(
    ("text", "interpreter", "fault"),
    [
        ("#!/bin/true\n", "/bin/true", None),
        ("#! /bin/true -s\n", "/bin/true", None),
        ("#!/no/such/bin/python3.11\n", "/no/such/bin/python3.11", "gone"),
        ("#!/bin/true\r\n", "/bin/true", "carriage-return"),
        ("#!/usr/bin/env python3\n", "python3", None),
        ("#!/usr/bin/env -S A=1 python -u\n", "python", None),
        ("#!/bin/sh\n'''exec' /no/such/python \"$0\" \"$@\"\n' '''\nimport re\n", "/no/such/python", "gone"),
        ("#!/bin/sh\n'''exec' \"/no such/python\" \"$0\" \"$@\"\n' '''\n", "/no such/python", "gone"),
    ],
)
def test_what_a_script_begins_with(tmp_path, text, interpreter, fault):
    assert read(tmp_path, text) == paths.Shebang(interpreter=interpreter, fault=fault)


@pytest.mark.parametrize("text", ["", "\x7fELF", "#!/bin/sh\necho\n", "#!/usr/bin/env\n", "import os\n"])
def test_no_script_of_python(tmp_path, text):
    assert read(tmp_path, text) is None


def test_a_trampoline_to_the_interpreter_beside_it(tmp_path):
    text = "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n"
    assert read(tmp_path, text) == paths.Shebang(interpreter=f"{tmp_path}/python", fault="gone")
    (tmp_path / "python").write_text("")
    assert read(tmp_path, text).fault is None


@pytest.mark.parametrize(("length", "fault"), [(255, None), (256, "too-long")])
def test_the_limit_is_the_kernels(tmp_path, length, fault):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    interpreter = f"{deep}/".ljust(length - 2, "p")
    os.symlink("/bin/true", interpreter)
    assert read(tmp_path, f"#!{interpreter}\n", at_most=paths.shebang_limit(Host())).fault == fault
    (tmp_path / "script").chmod(0o755)
    try:
        runs = subprocess.run([str(tmp_path / "script")], check=False).returncode == 0
    except OSError:
        runs = False
    assert runs == (fault is None)


@pytest.mark.parametrize(("release", "limit"), [("4.18.0-553.el8.x86_64", 127), ("5.0.1", 127), ("5.1.0", 255), ("6.8.0-generic", 255), ("?", 255)])
def test_older_kernels_take_less(machine, release, limit):
    assert paths.shebang_limit(machine({"/proc/sys/kernel/osrelease": f"{release}\n"})) == limit
