"""Options of `unhang run` behind the script."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from unhang.cli import training_command
from unhang.errors import UnhangError

OWN = frozenset({"--dry-run", "--timeout", "--fallback", "--nproc-per-node"})


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


def test_a_dry_run_that_would_start_the_training_is_refused(script):
    with pytest.raises(UnhangError, match="would go to it") as raised:
        training_command.notes((script("print(1)"), "--lr", "1", "--dry-run"), OWN)
    assert "unhang run --dry-run" in raised.value.hint and "unhang run -- " in raised.value.hint


@pytest.mark.parametrize("text", ["add('--dry-run')", "dry_run: bool = False", "if args.DRY_RUN:"])
def test_a_script_that_has_one_of_its_own_gets_it(script, text):
    assert training_command.notes((script(text), "--dry-run"), OWN) == []


def test_who_sets_the_command_apart_means_it(script):
    assert training_command.notes((script(""), "--dry-run"), OWN, meant=True) == []


def test_others_are_told(script):
    path = script("if __name__ == '__main__': pass  # --fallback")
    (note,) = training_command.notes(("torchrun", "--nproc-per-node", "2", path, "--timeout=9", "--fallback", "off", "--lr", "1"), OWN)
    assert "--timeout stands behind" in note


def test_a_command_of_its_own_is_no_script():
    assert training_command.notes(("make", "--dry-run", "--timeout", "9"), OWN) == []


def test_the_command_knows_its_options(script, tmp_path):
    path = script("")
    for argv, code in (((path, "--dry-run"), 2), (("--dry-run", "--", path, "--dry-run"), 0)):
        asked = [sys.executable, "-m", "unhang", "run", "--python", sys.executable, *argv]
        done = subprocess.run(asked, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]
