"""Evaluation: every rank sums loss over its own share of the rows, without collectives; then the sums of all ranks are added up.

Shares may differ in length by one row, which is why there is no collective inside the loop: ranks would fall out of step.
Plainly, one all_reduce adds up, for which a rank that failed never comes. Guarded by unhang, all ranks learn what became of it, and train on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import library
import torch
import torch.distributed as dist
from data import IGNORED, ArrowRows, Collate
from library import faults
from torch.utils.data import DataLoader, Dataset
from world import World


@dataclass(frozen=True, kw_only=True)
class Score:
    """Mean loss over all label tokens of the evaluation rows; None where the evaluation failed, and `why`."""

    loss: float | None
    why: str | None = None
    attempts: int = 1

    @property
    def perplexity(self) -> float | None:
        if self.loss is None:
            return None
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


class Evaluator:
    """Loss over all rows; every rank gets the same answer. `model` is the bare one: DDP's forward would look for its peers."""

    def __init__(self, model: torch.nn.Module, rows: ArrowRows, *, collate: Collate, batch_size: int, workers: int, world: World) -> None:
        self.model, self.rows, self.collate, self.batch_size, self.workers, self.world = model, rows, collate, batch_size, workers, world

    def plain(self, step: int) -> Score:
        self.model.eval()
        stats = torch.zeros(2, dtype=torch.float64, device=self.world.device)
        for sums in self._batches(Share(self.rows, world=self.world, step=step), self.batch_size):
            stats += sums
        stats = faults.tap("evaluate.stats", stats, step=step)
        dist.all_reduce(stats)
        return Score(loss=(stats[0] / stats[1]).item())

    def guarded(self, step: int, *, monitor: Any = None) -> Score:
        """Out of memory: all ranks try again with smaller batches. Anything else that fails on a rank: no score, and the training goes on."""

        def test(share: Share, batch_size: int) -> Iterator[dict[str, tuple[float, float]]]:
            for sums in self._batches(share, batch_size):
                loss, tokens = sums.tolist()
                yield {"loss": (loss, tokens)}

        shares = {"eval": Share(self.rows, world=self.world, step=step)}
        result = library.evaluate(test, shares, batch_size=self.batch_size, step=step, model=self.model, monitor=monitor)
        found = result.data_sets.get("eval")
        if found is None or not result.ok:
            return Score(loss=None, why=(found and found.why) or result.why)
        return Score(loss=found.metrics["loss"], attempts=found.attempts)

    def _batches(self, share: Share, batch_size: int) -> Iterator[torch.Tensor]:
        """Loss summed over label tokens, and their number, batch by batch.

        The loader has a generator of its own: it would draw from the global one, and the training after it would differ.
        """
        for batch in DataLoader(share, batch_size=batch_size, collate_fn=self.collate, num_workers=self.workers, generator=torch.Generator()):
            with torch.inference_mode(), self.world.autocast():
                tokens = (batch["labels"] != IGNORED).sum().to(self.world.device)
                loss = self.model(**self.world.move(batch), use_cache=False).loss
                sums = torch.stack([loss.double() * tokens, tokens.double()])
            yield sums
