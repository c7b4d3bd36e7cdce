"""What `unhang run` does behind a training: the report for a browser, which may fail and change nothing."""

from __future__ import annotations

import pytest

from unhang.cli import running
from unhang.model import Finding, Verdict
from unhang.records.rundir import RunDir
from unhang.report import html

VERDICT = Verdict(primary=Finding(cause="process-stuck", standing="possible", says="rank 1 stands still"))


@pytest.fixture
def rundir(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    rundir.write(rundir.run, {"schema": "unhang/run/1", "torch": "2.13"})
    return rundir


def test_the_report_is_in_the_run_directory(rundir, capsys):
    running._write_report(rundir, VERDICT)
    assert "rank 1 stands still" in rundir.report_html.read_text("utf-8")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError(), ValueError("of our own"), KeyboardInterrupt()])
def test_a_report_that_fails_is_told_and_no_more(rundir, capsys, monkeypatch, error):
    def fails(*_args, **_more):
        raise error

    monkeypatch.setattr(html, "render", fails)
    running._write_report(rundir, VERDICT)
    assert not rundir.report_html.exists()
    assert (str(rundir.report_html) in capsys.readouterr().err) is not isinstance(error, KeyboardInterrupt)
