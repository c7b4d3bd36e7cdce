"""The T5 models, which part of them is trained, and how the learning rate moves."""

from __future__ import annotations

import math
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read by transformers when it is imported; nothing here comes from a hub

import torch
from prepare import EOS, PAD
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"d_model": 128, "d_kv": 32, "d_ff": 384, "num_layers": 2, "num_heads": 4},
    "small": {"d_model": 192, "d_kv": 48, "d_ff": 512, "num_layers": 4, "num_heads": 4},
    "base": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 10, "num_heads": 12},
}


def build(size: str, *, vocab_size: int, dropout: float, pretrained: Path | None) -> T5ForConditionalGeneration:
    """A T5 of this size with fresh weights, or the one that an earlier training left in `pretrained`."""
    if pretrained is not None:
        model = T5ForConditionalGeneration.from_pretrained(pretrained, local_files_only=True)
        if model.config.vocab_size < vocab_size:
            raise ValueError(
                f"{pretrained} knows {model.config.vocab_size} tokens, the data has {vocab_size}: use the data it was trained on (--data)"
            )
        return model
    config = T5Config(
        vocab_size=math.ceil(vocab_size / 64) * 64,
        feed_forward_proj="gated-gelu",
        dropout_rate=dropout,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        **SIZES[size],
    )
    return T5ForConditionalGeneration(config)


def freeze_for_finetuning(model: nn.Module) -> None:
    """Leave only the decoder's own layers trainable: embedding and encoder are frozen.

    The embedding is one tensor with four names (shared, both embed_tokens, lm_head), so the output layer is frozen with it.
    """
    for part in (model.shared, model.encoder, model.lm_head):
        part.requires_grad_(False)


def set_training(model: nn.Module) -> None:
    """Training mode, but no dropout in a part that is frozen: it would only add noise to features that cannot adapt."""
    model.train()
    if not any(p.requires_grad for p in model.encoder.parameters()):
        model.encoder.eval()


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """Numbers of trainable and of frozen parameters; a shared one counts once."""
    counts = [0, 0]
    for parameter in model.parameters():
        counts[not parameter.requires_grad] += parameter.numel()
    return counts[0], counts[1]


def make_optimizer(model: nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over what is trainable; vectors (norms) are not decayed."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [p for p in trainable if p.dim() > 1], "weight_decay": weight_decay},
            {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=lr,
    )


def lr_factor(done: int, *, warmup: int, total: int) -> float:
    """Share of the peak rate for the step after `done` steps: up to 1 within `warmup` steps, then down to 0 at `total`, both linear."""
    if done < warmup:
        return (done + 1) / (warmup + 1)
    return max(0.0, (total - done) / max(1, total - warmup))


def make_schedule(optimizer: torch.optim.Optimizer, *, warmup: int, total: int) -> LambdaLR:
    return LambdaLR(optimizer, lambda done: lr_factor(done, warmup=warmup, total=total))
