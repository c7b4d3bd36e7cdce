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
    named = {"cause": "gpu-oom", "standing": "likely", "ranks": [3, 4], "where": "train.py:5 in step"}
    guess = {"cause": "unknown", "standing": "not-established"}
    less = [{**named, "standing": "possible"}, {**named, "ranks": [3]}, {**named, "where": None}, guess]
    wrong = [{**named, "standing": "established"}, {**named, "ranks": [5]}, {**named, "where": "train.py:6 in step"}, {**named, "cause": "disk-full"}]
    assert [f for f in less if not corpus.is_less_specific({"primary": f}, {"primary": named})] == []
    assert [f for f in wrong if corpus.is_less_specific({"primary": f}, {"primary": named})] == []
    assert corpus.is_less_specific({"problems": [1]}, {"problems": [1, 2]}) and not corpus.is_less_specific({"problems": [3]}, {"problems": [1, 2]})


def test_a_reason_in_new_words_is_the_same_reason(corpus):
    def facts(*reasons):
        return {"not_examined": [[reason, [], False] for reason in reasons]}

    assert corpus.reworded([(facts("it is not there"), facts("it is missing"))] * 2) == {"it is not there": "it is missing"}
    assert corpus.reworded([(facts("a", "b"), facts("b", "b"))]) == {}
