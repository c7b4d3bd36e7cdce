"""What cannot go well is refused before anything is looked at, in words that fit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from unhang.cli.app import app
from unhang.errors import RunDirError, UnhangError
from unhang.records.rundir import RunDir


def refused(*words):
    found = CliRunner().invoke(app, list(words))
    assert isinstance(found.exception, UnhangError), found.output
    return found, found.exception


def test_a_python_that_is_not_there_is_refused_before_the_machine_is_looked_at():
    found, error = refused("doctor", "--live", "--python", "/nope")
    assert str(error) == "there is no Python at /nope" and not found.output.strip()


def test_a_directory_of_variables(tmp_path):
    _, error = refused("vars", str(tmp_path))
    assert str(error).endswith("is a directory") and error.hint == f"unhang vars {tmp_path}/train.sh"


def test_source_code_is_no_log(tmp_path):
    script = tmp_path / "train.py"
    script.write_text('raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")\n')
    _, error = refused("why", str(script))
    assert error.cause == f"{script}: no log: source code"


def test_nothing_given_where_there_are_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("why")[1].hint == "unhang why train.log"
    (tmp_path / "runs").mkdir()
    assert refused("why")[1].hint == "unhang why runs"


def test_a_run_directory_that_holds_something(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(RunDirError, match=f"{re.escape(str(tmp_path))} is not empty"):
        RunDir.create(tmp_path)
    with pytest.raises(RunDirError, match="a is no directory"):
        RunDir.create(tmp_path / "a")


def test_a_directory_is_no_file_to_export_to(tmp_path):
    for more in ((), ("--force",)):
        _, error = refused("export", "torchrun", "-o", str(tmp_path), *more)
        assert str(error) == f"{tmp_path} is a directory"


def test_what_ray_cannot_carry_is_not_blamed_on_an_option_that_nobody_gave():
    _, error = refused("export", "ray", "--set", "loader-workers=0")
    assert "this form does not start through unhang run" in str(error) and "--without-unhang" not in str(error)


def test_the_quick_start_judges_the_newest_run(tmp_path):
    start = tmp_path / "start.sh"
    assert CliRunner().invoke(app, ["export", "bash", "-o", str(start)]).exit_code == 0
    shim = tmp_path / "unhang"
    shim.write_text('#!/bin/sh\necho "$@"\n')
    shim.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for words, said in (([], "why runs\n"), (["a.log", "--all"], "why a.log --all\n")):
        assert subprocess.run(["bash", start, "why", *words], env=environ, capture_output=True, text=True, timeout=60, check=True).stdout == said


@pytest.mark.parametrize(("verb", "said"), [("run", "unhang: interrupted; nothing was started\n"), ("why", "")])
def test_an_interrupt_while_the_command_is_imported(verb, said):
    # The signal comes when app is asked for: nothing but main is there by then.
    program = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'unhang.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
        "from unhang.cli import main\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.argv = ['unhang', {verb!r}, 'train.py']\n"
        "main.entry()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (ended.returncode, ended.stderr) == (130, said)
