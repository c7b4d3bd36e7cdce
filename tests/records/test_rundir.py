"""New run directories: nobody's is overwritten, and whoever comes second gets another one."""

from __future__ import annotations

import os
import re
import shutil

import pytest
from tests.diagnosis.conftest import Builder

from unhang.diagnosis.why import judge
from unhang.errors import RunDirError
from unhang.launch.supervise import run_path
from unhang.records.incident import Raised
from unhang.records.run_follower import Looker
from unhang.records.rundir import MEMBER, RunDir, runs_in


def test_somebody_else_was_quicker(tmp_path):
    asked = []

    def path():
        asked.append(run_path(tmp_path, "train"))
        if len(asked) < 4:
            asked[-1].mkdir()
        return asked[-1]

    assert RunDir.create(path).path == asked[3] and len(asked) == len(set(asked)) == 4


def test_dumps_that_a_link_leads_to_are_not_its_own(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rank_0").write_bytes(b"x")
    run = RunDir(tmp_path / "run")
    for number in ("1", "2"):
        (run.path / "incidents" / number).mkdir(parents=True)
    run.run.write_text("{}")
    (run.path / "incidents" / "2" / "flight").symlink_to(tmp_path / "elsewhere")
    assert run.last_flight() is None
    (run.path / "incidents" / "1" / "flight").mkdir()
    (run.path / "incidents" / "1" / "flight" / "rank_0").write_bytes(b"x")
    assert run.last_flight() == run.path / "incidents" / "1" / "flight"


def test_one_that_was_named(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    for path in (tmp_path / "mine", lambda: tmp_path / "mine"):
        with pytest.raises(RunDirError, match="mine is not empty"):
            RunDir.create(path)


def test_one_that_a_batch_script_has_made(tmp_path):
    assert RunDir.create(tmp_path).path == tmp_path


def test_a_link_that_leads_nowhere(tmp_path):
    (tmp_path / "mine").symlink_to("nowhere")
    with pytest.raises(RunDirError, match="mine is no directory"):
        RunDir.create(lambda: tmp_path / "mine")


def test_what_a_run_directory_holds_is_a_file_of_its_own(tmp_path, monkeypatch):
    rundir = RunDir.create(tmp_path / "run")
    (tmp_path / "elsewhere").write_text("")
    rundir.write_bytes(rundir.report_html, b"")
    rundir.stacks(1, 0).parent.mkdir(parents=True)
    rundir.stacks(1, 0).symlink_to(tmp_path / "elsewhere")
    assert rundir.holds(rundir.report_html)
    assert not any(map(rundir.holds, (rundir.stacks(1, 0), rundir.stacks(1, 1), rundir.path, rundir.path / ".." / "elsewhere")))
    # A run whose disk was full goes on elsewhere, with links to what it had.
    rundir.write_bytes(rundir.run, b"{}")
    monkeypatch.setattr(RunDir, "elsewhere", property(lambda run: run.path.parent / "spare"))
    (tmp_path / "spare").mkdir()
    (tmp_path / "spare" / "run.json").symlink_to(rundir.run)
    assert RunDir(tmp_path / "spare").holds(rundir.report_html) and not RunDir(tmp_path / "spare").holds(tmp_path / "elsewhere")
    (tmp_path / "spare").rename(tmp_path / "another")
    assert not RunDir(tmp_path / "another").holds(rundir.report_html), "of any other name"
    if os.geteuid() == 0:
        (tmp_path / "another").rename(tmp_path / "spare")
        os.chown(tmp_path / "spare", 54321, 54321)
        assert not RunDir(tmp_path / "spare").holds(rundir.report_html), "made by another user"


LINKED = ("incidents", "incidents/1", "incidents/1/incident.json", "run.json", "events.jsonl", "now.json")


@pytest.mark.parametrize("linked", LINKED)
def test_no_record_that_a_link_leads_to_is_read(tmp_path, linked):
    secret = Builder(tmp_path / "secret").rank(0, raised=Raised(at_s=1.0, type="ValueError", text="SECRET", frames=())).write("failure")
    secret.write(secret.run, {"schema": "unhang/run/1", "command": ["SECRET"], "python": "SECRET", "torch": "2", "started": "SECRET"})
    secret.write(secret.now, {"schema": "unhang/now/1", "attempt": 0, "host": "SECRET", "time_s": 1, "at_s": 1, "every_s": 1, "hang_after_s": 1})
    secret.events.write_text('{"s":1.0,"event":"Finished","exitcode":77,"incidents":0}\n{"s":1.0,"event":"Note","text":"SECRET"}\n')
    run = shutil.copytree(secret.path, tmp_path / "run")
    shutil.rmtree(run / linked) if (run / linked).is_dir() else (run / linked).unlink()
    (run / linked).symlink_to(secret.path / linked)
    for other in LINKED[2:]:
        if (run / other).resolve().is_relative_to(run):
            (run / other).write_text("{}" if other == "run.json" else "")
    for read in (lambda: judge(RunDir.open(run)), lambda: Looker(run, is_alive=lambda process: None).look()):
        try:
            assert not re.search("SECRET|code 77|exitcode=77", repr(read()))
        except RunDirError as e:
            assert "is no file of this run directory" in str(e)


def test_the_report_is_a_file_of_a_packed_run_and_no_log(tmp_path):
    rundir = RunDir(tmp_path)
    assert MEMBER.fullmatch("runs/a/report.html")["file"] == "report.html" and not rundir.is_log(rundir.report_html)


def test_runs_behind_a_link_that_leads_out_are_not_found(tmp_path):
    for name in ("here", "there"):
        RunDir.create(tmp_path / name / "run").write(tmp_path / name / "run" / "run.json", {"schema": "unhang/run/1"})
    (tmp_path / "here" / "link").symlink_to(tmp_path / "there" / "run")
    assert runs_in(tmp_path / "here") == [tmp_path / "here" / "run"]
    (tmp_path / "root").symlink_to("/")
    assert runs_in(tmp_path / "root") == []
