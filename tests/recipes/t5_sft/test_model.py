"""The parts that are trained, and the learning rate."""

from __future__ import annotations

import model
import pytest
import torch

pytestmark = pytest.mark.torch


@pytest.fixture
def tiny() -> torch.nn.Module:
    return model.build("tiny", vocab_size=300, dropout=0.1, pretrained=None)


def test_finetuning_trains_the_decoder_only(tiny: torch.nn.Module) -> None:
    everything = model.parameter_counts(tiny)
    model.freeze_for_finetuning(tiny)
    trained, frozen = model.parameter_counts(tiny)
    assert everything == (trained + frozen, 0)
    assert {name.split(".")[0] for name, p in tiny.named_parameters() if p.requires_grad} == {"decoder"}
    assert not tiny.lm_head.weight.requires_grad
    assert tiny.lm_head.weight is tiny.shared.weight


def test_a_frozen_encoder_has_no_dropout(tiny: torch.nn.Module) -> None:
    model.set_training(tiny)
    assert tiny.encoder.training
    model.freeze_for_finetuning(tiny)
    model.set_training(tiny)
    assert (tiny.encoder.training, tiny.decoder.training) == (False, True)


def test_norms_are_not_decayed(tiny: torch.nn.Module) -> None:
    matrices, vectors = model.make_optimizer(tiny, lr=1e-3, weight_decay=0.1).param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert all(p.dim() == 1 for p in vectors["params"])
    assert len(matrices["params"]) + len(vectors["params"]) == len(list(tiny.parameters()))


@pytest.mark.parametrize(
    ("warmup", "total", "expected"),
    [(3, 7, [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0]), (0, 4, [1.0, 0.75, 0.5, 0.25, 0.0]), (4, 4, [0.2, 0.4, 0.6, 0.8, 0.0])],
)
def test_the_learning_rate(warmup: int, total: int, expected: list[float]) -> None:
    assert [model.lr_factor(done, warmup=warmup, total=total) for done in range(total + 1)] == pytest.approx(expected)


def test_a_pretrained_model_with_too_few_tokens_is_refused(tiny: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("model")
    tiny.save_pretrained(place)
    with pytest.raises(ValueError, match="knows 320 tokens, the data has 400"):
        model.build("tiny", vocab_size=400, dropout=0.1, pretrained=place)
