"""New run directories: nobody's is overwritten, and whoever comes second gets another one."""

from __future__ import annotations

import pytest

from unhang.errors import RunDirError
from unhang.launch.supervise import run_path
from unhang.records.rundir import RunDir


def test_somebody_else_was_quicker(tmp_path):
    asked = []

    def path():
        asked.append(run_path(tmp_path, "train"))
        if len(asked) < 4:
            asked[-1].mkdir()
        return asked[-1]

    assert RunDir.create(path).path == asked[3] and len(asked) == len(set(asked)) == 4


def test_one_that_was_named(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    for path in (tmp_path / "mine", lambda: tmp_path / "mine"):
        with pytest.raises(RunDirError, match="mine: File exists"):
            RunDir.create(path)


def test_one_that_a_batch_script_has_made(tmp_path):
    assert RunDir.create(tmp_path).path == tmp_path


def test_a_link_that_leads_nowhere(tmp_path):
    (tmp_path / "mine").symlink_to("nowhere")
    with pytest.raises(RunDirError, match="mine: File exists"):
        RunDir.create(lambda: tmp_path / "mine")
