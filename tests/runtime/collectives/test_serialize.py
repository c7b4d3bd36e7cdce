from __future__ import annotations

import re
import warnings

import pytest
import torch

from unhang.runtime.collectives.agreement import can_be_told, paired, short

pytestmark = pytest.mark.torch


def test_a_number_counts_once_and_a_pair_as_often_as_it_says():
    assert paired({"loss": 2, "right": (3, 4), "wrong": [1.5, 0]}) == {"loss": (2.0, 1.0), "right": (3.0, 4.0), "wrong": (1.5, 0.0)}


def test_a_loss_need_not_be_detached():
    loss = torch.tensor(2.0, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert paired({"loss": loss, "by sample": (loss * 3, torch.tensor(4))}) == {"loss": (2.0, 1.0), "by sample": (6.0, 4.0)}


@pytest.mark.parametrize(
    ("given", "told"), [([1], "list [1]"), ({1: 2.0}, "dict {1: 2.0}"), ({"a\udcff": 1}, r"dict {'a\udcff': 1}"), (None, "NoneType None")]
)
def test_what_are_no_metrics_is_named(given, told):
    with pytest.raises(TypeError, match=re.escape(f"metrics are a mapping of names to numbers or pairs (sum, count), not {told}") + "$"):
        paired(given)


@pytest.mark.parametrize("value", ["high", (1, 2, 3), None, (1, "many")])
def test_what_is_no_number_is_named_with_its_metric(value):
    with pytest.raises(TypeError, match=re.escape(f"metric 'a' is a number or a pair (sum, count), not {value!r}")):
        paired({"a": value})


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf")])
def test_a_count_is_one(count):
    with pytest.raises(ValueError, match=f"^the count of metric 'a' is a number from 0 on, not {count}$"):
        paired({"a": (1.0, count)})


def test_names_are_texts_that_can_be_sent():
    assert [can_be_told(name) for name in ("a", "损失", "", "a\udcff", 1, None)] == [True, True, True, False, False, False]


def test_long_things_are_told_in_short():
    assert short(list(range(100))) == f"list {str(list(range(100)))[:80]}…"
