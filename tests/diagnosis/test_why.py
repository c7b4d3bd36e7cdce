"""Whatever a verdict is made of, judging hands it out without credentials."""

from __future__ import annotations

import pytest

from unhang import encoding
from unhang.diagnosis import why
from unhang.errors import RunDirError
from unhang.model import Finding, NotExamined, Verdict
from unhang.records.rundir import RunDir, runs_in

SECRET = "hf_" + "plantedplantedplanted"
TOLD = Finding(cause="unknown", standing="possible", says=f"\x1b {SECRET}")


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / f"\x1b {SECRET}"
    for name in ("a", "b"):
        run = RunDir.create(folder / name)
        run.write(run.run, {"schema": "unhang/run/1"})
    return folder


def says(verdict):
    text = encoding.encode(verdict).decode()
    assert "planted" not in text and "u001b" not in text
    return text


def test_of_a_whole_run(runs, monkeypatch):
    monkeypatch.setattr(why.run_history, "unknown", lambda _, **__: TOLD)
    monkeypatch.setattr(why.run_history, "not_examined", lambda *_, **__: (NotExamined(what=SECRET, why=SECRET),))
    assert says(why.judge(RunDir.open(runs / "a"))).count("[redacted]") == 3


@pytest.mark.parametrize("number", [1, None])
def test_of_an_incident(runs, monkeypatch, number):
    monkeypatch.setattr(RunDir, "incident_numbers", lambda _: [1])
    monkeypatch.setattr(why, "_incident", lambda *_: Verdict(primary=TOLD))
    monkeypatch.setattr(why.run_history, "not_examined", lambda *_, **__: (NotExamined(what=SECRET, why=SECRET),))
    assert says(why.judge(RunDir.open(runs / "a"), number=number)).count("[redacted]") == (1 if number else 3)


def test_of_the_newest_run(runs):
    verdict = why.judge_newest(runs_in(runs), runs)
    assert "1 other run in" in says(verdict) and "only the newest was judged" in verdict.not_examined[-1].why
    assert "other run" not in says(why.judge_newest([runs / "a"], runs))
    with pytest.raises(RunDirError, match="no incident 9; it has: none"):
        why.judge_newest(runs_in(runs), runs, number=9)
