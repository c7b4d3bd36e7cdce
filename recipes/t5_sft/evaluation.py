"""Evaluation: every rank sums loss over its own share of the rows, without collectives; then one all_reduce adds up the sums.

Shares may differ in length by one row, which is why there is no collective inside the loop: ranks would fall out of step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from data import IGNORED, ArrowRows, Collate
from torch.utils.data import DataLoader, Dataset
from world import World

from unhang.testing import faults


@dataclass(frozen=True, kw_only=True)
class Score:
    """Mean loss over all label tokens of the evaluation rows."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss) if self.loss < 700 else math.inf


class Share(Dataset[dict[str, Any]]):
    """Every `world_size`-th row, beginning with `rank`."""

    def __init__(self, rows: ArrowRows, *, world: World, step: int) -> None:
        self.rows, self.world, self.step = rows, world, step

    def __len__(self) -> int:
        return len(range(self.world.rank, len(self.rows), self.world.size))

    def __getitem__(self, index: int) -> dict[str, Any]:
        faults.point("evaluate.sample", step=self.step)
        return self.rows[self.world.rank + index * self.world.size]


def evaluate(model: torch.nn.Module, rows: ArrowRows, *, collate: Collate, batch_size: int, workers: int, world: World, step: int) -> Score:
    """Loss over all rows; every rank gets the same answer. `model` is the bare one: DDP's forward would look for its peers.

    The loader has a generator of its own: it would draw from the global one, and the training after it would differ.
    """
    model.eval()
    share = Share(rows, world=world, step=step)
    loader = DataLoader(share, batch_size=batch_size, collate_fn=collate, num_workers=workers, generator=torch.Generator())
    stats = torch.zeros(2, dtype=torch.float64, device=world.device)
    with torch.inference_mode(), world.autocast():
        for batch in loader:
            tokens = (batch["labels"] != IGNORED).sum().to(world.device)
            loss = model(**world.move(batch), use_cache=False).loss
            stats += torch.stack([loss.double() * tokens, tokens.double()])
    stats = faults.tap("evaluate.stats", stats, step=step)
    dist.all_reduce(stats)
    return Score(loss=(stats[0] / stats[1]).item(), tokens=int(stats[1].item()))
