"""What the numbers of a serving engine's error ask for."""

from __future__ import annotations

import pytest

from unhang.knowledge import serving
from unhang.logs import Hit, Signature

ALL = ("shorter-context", "split-the-model", "larger-share")


@pytest.mark.parametrize(
    ("groups", "remedies", "length"),
    [
        ({"length": "8192", "needed": "16.0", "available": "4.0"}, ALL, "2048"),
        ({"length": "8192", "needed": "16.0", "available": "4.0", "fits": "2000"}, ALL, "2000"),
        ({"length": "8192", "fits": "8000"}, ("larger-share", "shorter-context", "split-the-model"), "8000"),
        # Numbers that are none, or nothing at all.
        ({"length": "8192", "needed": "16.0", "available": "-0.3"}, ALL, None),
        ({"length": "8192", "needed": "16.0", "available": None}, ALL, None),
        ({"length": "8192", "needed": "n/a", "available": "4.0"}, ALL, None),
        ({"length": "8192", "needed": "16.0", "available": "0.0"}, ALL, None),
        ({"length": "8192", "needed": "16.0", "fits": "4096"}, ALL, "4096"),
    ],
)
def test_a_context_that_does_not_fit(groups, remedies, length):
    hit = Hit(signature=Signature(needle="x"), source="a.log", line=1, text="x", groups=groups)
    asked = serving.by_the_numbers(hit)
    assert asked is not None and asked.remedies == remedies
    assert asked.commands.get("shorter-context") == (None if length is None else f"vllm serve MODEL --max-model-len {length}")
