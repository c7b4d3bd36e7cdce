"""Lightning's Trainer, with a callback for guarded evaluations."""

from __future__ import annotations

import pytest
from tests.integrations.conftest import trained_on

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]


def test_whatever_happens_in_an_evaluation_the_training_goes_on_as_without(ranks):
    trained_on(ranks("lightning", "lightninged.py"), prefix="eval/")
