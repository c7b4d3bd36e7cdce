"""accelerate, with a guarded evaluation."""

from __future__ import annotations

import pytest
from tests.integrations.conftest import trained_on

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]


def test_whatever_happens_in_an_evaluation_the_training_goes_on_as_without(ranks):
    trained_on(ranks("accelerate", "accelerated.py"), prefix="eval/")


def test_one_process_without_a_group(ranks):
    (alone,) = ranks("accelerate", "accelerated.py")("ok", size=1)
    assert [one["eval/evaluation_failed"] for one in alone["evaluations"]] == [0.0] * 3
