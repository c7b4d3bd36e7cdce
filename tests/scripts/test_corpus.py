"""Inputs of unhang and the facts in its answers: a changed fact fails here, with a diff. scripts/corpus.py says what may change."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

CORPUS = Path(__file__).resolve().parents[2] / "scripts" / "corpus.py"


@pytest.mark.parametrize("kind", ["logs", "runs", "dumps", "machines", "rest"])
def test_the_facts_are_those_that_were_recorded(kind):
    done = subprocess.run([sys.executable, CORPUS, "compare", kind], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def corpus():
    spec = importlib.util.spec_from_file_location("corpus", CORPUS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_less_specific_is_not_wrong(corpus):
    shown = {"evidence": ["a:1", "a:2"], "remedies": [["x"]]}
    named = {"cause": "gpu-oom", "standing": "likely", "ranks": [3, 4], "where": "train.py:5 in step", **shown}
    guess = {"cause": "unknown", "standing": "not-established"}
    less = [{**named, "standing": "possible"}, {**named, "ranks": [3]}, {**named, "where": None}, guess]
    less += [{**named, "evidence": ["a:2"], "remedies": []}]
    wrong = [{**named, "standing": "established"}, {**named, "ranks": [5]}, {**named, "where": "train.py:6 in step"}, {**named, "cause": "disk-full"}]
    wrong += [{**named, "evidence": ["a:3"]}, {**named, "remedies": [["y"]]}]
    assert [f for f in less if not corpus.is_less_specific({"primary": f}, {"primary": named})] == []
    assert [f for f in wrong if corpus.is_less_specific({"primary": f}, {"primary": named})] == []
    assert not corpus.is_less_specific({"contributing": [named]}, {"primary": named})
    assert not corpus.is_less_specific({"exit": 0, "primary": guess}, {"exit": 1, "primary": named})
    assert corpus.is_less_specific({"problems": [1]}, {"problems": [1, 2]}) and not corpus.is_less_specific({"problems": [3]}, {"problems": [1, 2]})


def test_a_reason_in_new_words_is_the_same_reason(corpus):
    def facts(*reasons):
        return {"not_examined": [[reason, [], False] for reason in reasons]}

    assert corpus.reworded([(facts("it is not there"), facts("it is missing"))] * 2) == {"it is not there": "it is missing"}
    assert corpus.reworded([(facts("a", "b"), facts("b", "b"))]) == {}


def test_no_refusal_equals_another(corpus):
    first, second = ({"error": error, "exitcode": 2, "error_zh": "..."} for error in ("a.log is empty", "a.log is damaged"))
    assert corpus.reduced(first) != corpus.reduced(second)
    assert corpus.is_refusal({"exit": 2, **corpus.reduced(first)})


def test_of_an_exported_file_only_comments_may_be_reworded(corpus):
    lines, comment_values = corpus.exported("#!/bin/sh\n#SBATCH --nodes=2\n  # asked for 2 hosts\nsrun a  b\n")
    assert lines == ["#!/bin/sh", "#SBATCH --nodes=2", "srun a  b"]
    assert comment_values == ["2"]


@pytest.mark.parametrize("damage", ["no facts", "no input", "a reason"])
def test_compare_fails_where_nothing_would_be_compared(corpus, monkeypatch, tmp_path, damage):
    (tmp_path / "less_specific.json").write_text("{}")
    monkeypatch.setattr(corpus, "DATA", tmp_path)
    told = {"exit": 0, "not_examined": [["it is not there", [], False, []]]}
    reworded = {"exit": 0, "not_examined": [["it is missing", [], False, []]]}
    monkeypatch.setattr(corpus, "inputs", lambda kind: {"1": {"tier": 1, "argv": [], "from": ""}})
    monkeypatch.setattr(corpus, "recorded", lambda kind: {"no facts": {}, "no input": {"1": told, "2": told}, "a reason": {"1": reworded}}[damage])
    monkeypatch.setattr(corpus, "answers", lambda kind: {"1": (told, 0.0)})
    assert corpus.compare(["logs"], None) == 1
    monkeypatch.setattr(corpus, "recorded", lambda kind: {"1": told})
    assert corpus.compare(["logs"], None) == 0
