"""DeepSpeed's engine at ZeRO-2, with a guarded evaluation."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.integrations.conftest import trained_on

pytestmark = pytest.mark.torch


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_whatever_happens_in_an_evaluation_the_training_goes_on_as_without(ranks):
    trained_on(ranks("deepspeed", "deepspeeded.py"), prefix="eval/")


def test_a_model_that_is_split_is_refused():
    from unhang.integrations.deepspeed import evaluate

    engine = SimpleNamespace(zero_optimization_stage=lambda: 3)
    with pytest.raises(ValueError, match="split among the ranks"):
        evaluate(engine, lambda engine, batch: {}, {"a": []}, batch_size=8)
