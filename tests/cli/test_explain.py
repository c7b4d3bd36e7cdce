"""unhang explain: every cause in both languages, and help for wrong names."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import typer
from rich.cells import cell_len
from tests.chinese import of_document, zh
from tests.tables import for_each
from typer.testing import CliRunner

from unhang.cli import explain
from unhang.diagnosis import unknown
from unhang.errors import UnhangError
from unhang.knowledge import catalogue
from unhang.report.language import LABELS


@pytest.fixture
def run():
    app = typer.Typer()
    app.callback()(lambda: None)
    explain.register(app)
    return lambda *arguments: CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@for_each("cause", list(catalogue.load()))
def test_every_cause(run, cause):
    english, chinese = run(cause, "--lang", "en"), run(cause, "--lang", "zh")
    assert english.exit_code == chinese.exit_code == 0
    assert catalogue.get(cause).title in english.stdout and zh(catalogue.get(cause).title) in chinese.stdout


def test_lines_in_a_file_end_where_their_words_do(run):
    printed = run("gpu-oom", "--lang", "en").stdout
    assert printed.count("\n") > 20 and not [line for line in printed.splitlines() if line != line.rstrip()]


def test_the_shell_completes_names():
    def complete(begun):
        asked = {"_UNHANG_COMPLETE": "complete_bash", "COMP_WORDS": f"unhang explain {begun}", "COMP_CWORD": "2"}
        code = "import sys; from unhang.cli.main import entry; sys.argv[0] = 'unhang'; entry()"
        return subprocess.run([sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60).stdout.split()

    assert complete("gpu-") == [id for id in catalogue.load() if id.startswith("gpu-")]
    assert complete("port") == ["port-in-use"] and complete("zzz") == []


def test_help_needs_no_catalogue():
    done = subprocess.run([sys.executable, "-X", "importtime", "-m", "unhang", "explain", "--help"], capture_output=True, text=True, timeout=60)
    assert "CAUSE" in done.stdout and "unhang.knowledge" not in done.stderr


def test_the_list(run):
    ran = run("--list", "--lang", "en")
    assert ran.exit_code == 0 and all(cause in ran.stdout for cause in catalogue.load())


@pytest.mark.parametrize("columns", ["40", "60", "200"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_list_cuts_nothing(monkeypatch, capsys, columns, lang):
    monkeypatch.setenv("COLUMNS", columns)
    explain.explain(show_list=True, lang=lang)
    lines = capsys.readouterr().out.splitlines()
    assert all(line == line.rstrip() and cell_len(line) <= int(columns) for line in lines)
    words = [line.split()[0] for line in lines if line[0] != " "]
    assert words == list(catalogue.load())
    text = "".join("".join(lines).split())
    assert all("".join((c.title if lang == "en" else zh(c.title)).split()) in text for c in catalogue.load().values())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_to_do_stands_before_the_samples(run, lang):
    shown = run("gpu-oom", "--lang", lang).stdout
    labels = LABELS[lang]
    places = [shown.index(labels[part]) for part in ("what", "why", "remedies", "looks")]
    assert places == sorted(places)


def test_the_verdict_that_names_nothing(run):
    assert "unknown: Nothing recognised" in run("unknown", "--lang", "en").stdout
    assert "没有发现能说明原因的线索" in run("unknown", "--lang", "zh").stdout


def test_every_id_that_a_verdict_calls_possible_is_explained(run):
    for cause in {*unknown.TRANSPORT, *unknown.WAITING, *unknown.CRASH, "unknown", *(m for c in catalogue.load().values() for m in c.mistaken_for)}:
        assert run(cause).exit_code == 0, cause


def test_wrong_names(run):
    assert "did you mean port-in-use" in str(run("port-is-use").exception)
    assert isinstance(run().exception, UnhangError)


def test_a_cause_as_json(run):
    told = json.loads(run("loader-worker-died", "--json").stdout)
    assert (told["schema"], told["id"], told["role"]) == ("unhang/explain/1", "loader-worker-died", "root")
    assert (
        set(told["explain"]) == {"en", "zh"}
        and of_document(told, told["remedies"][0]["says"]) != told["remedies"][0]["says"]
        and told["signatures"][0]["needle"]
        and told["sources"]
    )
    assert [c["id"] for c in json.loads(run("--list", "--json").stdout)["causes"]] == list(catalogue.load())
    assert json.loads(run("unknown", "--json").stdout)["explain"]["zh"] == LABELS["zh"]["unknown"]
    assert isinstance(run("no-such", "--json").exception, UnhangError)
