"""The Trainer of transformers, with a guarded evaluation."""

from __future__ import annotations

import math

import pytest
from tests.integrations.conftest import trained_on

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture
def run(ranks):
    return ranks("accelerate", "huggingface.py")


def test_whatever_happens_in_an_evaluation_the_training_goes_on_as_without(run):
    found = trained_on(run, prefix="eval_")
    # The other data set is evaluated all the same.
    assert found["exception"][0]["eval_b_accuracy"] == found["ok"][0]["eval_b_accuracy"]


def test_the_first_evaluation_fails_and_is_neither_the_best_nor_counted(run):
    failed, fine = run("exception"), run("ok")
    assert failed[0]["best"] is not None and not math.isnan(failed[0]["best"])
    assert failed[0]["best"] == max(one["eval_a_accuracy"] for one in failed[0]["evaluations"][1:])
    assert failed[0]["patience"][0] <= fine[0]["patience"][0]
    assert failed[0]["steps"] == 12


def test_a_rate_that_waits_for_a_plateau_does_not_wait_for_what_failed(run):
    rates = [one["rate"] for one in run("exception", SCHEDULER="reduce_lr_on_plateau")]
    assert rates[0] == rates[1] > 0


def test_one_process_without_a_group(run):
    (alone,) = run("memory", size=1)
    assert [(one["eval_evaluation_failed"], one["eval_attempts"]) for one in alone["evaluations"]] == [(0.0, 2.0)] * 3
