"""unhang explain: every cause in both languages, and help for wrong names."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from unhang.cli import explain
from unhang.diagnosis import unknown
from unhang.errors import UnhangError
from unhang.knowledge import catalogue


@pytest.fixture
def run():
    app = typer.Typer()
    app.callback()(lambda: None)
    explain.register(app)
    return lambda *arguments: CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.mark.parametrize("cause", list(catalogue.load()))
def test_every_cause(run, cause):
    english, chinese = run(cause, "--lang", "en"), run(cause, "--lang", "zh")
    assert english.exit_code == chinese.exit_code == 0
    assert catalogue.get(cause).title in english.stdout and catalogue.get(cause).title_zh in chinese.stdout


def test_the_list(run):
    ran = run("--list", "--lang", "en")
    assert ran.exit_code == 0 and all(cause in ran.stdout for cause in catalogue.load())


def test_the_verdict_that_names_nothing(run):
    assert "unknown: Nothing recognised" in run("unknown", "--lang", "en").stdout
    assert "没有能说明原因的线索" in run("unknown", "--lang", "zh").stdout


def test_every_id_that_a_verdict_calls_possible_is_explained(run):
    for cause in {*unknown.TRANSPORT, *unknown.WAITING, *unknown.CRASH, "unknown", *(m for c in catalogue.load().values() for m in c.mistaken_for)}:
        assert run(cause).exit_code == 0, cause


def test_wrong_names(run):
    assert "did you mean port-in-use" in str(run("port-is-use").exception)
    assert isinstance(run().exception, UnhangError)
