"""How long steps take, and the throughput that follows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

NAMES = ("images_per_s", "images_per_s_per_rank", "mean_ms", "median_ms", "p95_ms", "loader_wait_ms")


class StepClock:
    """Times of steps, each from the request for its batch to its end; what comes between steps counts for none.

    A GPU's are taken from events: waiting for the device in every step would make the steps slower.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Begin and end of each step that is not collected yet.
        self._marks: list[Any] = []
        self._took_ms: list[float] = []
        self._waited_ms: list[float] = []

    def next(self, batches: Iterator[Any]) -> Any:
        """A step begins. Returns the next batch."""
        self._mark()
        began_s = time.perf_counter()
        batch = next(batches)
        self._waited_ms.append((time.perf_counter() - began_s) * 1000)
        return batch

    def end(self) -> None:
        self._mark()

    def _mark(self) -> None:
        if self._device.type == "cuda":
            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record()
        else:
            self._marks.append(time.perf_counter())

    def collect(self) -> None:
        """Wait for the device, and turn what it has noted into times."""
        is_cuda = self._device.type == "cuda"
        if is_cuda:
            torch.cuda.synchronize()
        for began, ended in zip(self._marks[::2], self._marks[1::2], strict=True):
            self._took_ms.append(began.elapsed_time(ended) if is_cuda else (ended - began) * 1000)
        self._marks.clear()

    def results(self, *, images: int, skip: int) -> dict[str, float | None]:
        """Of all steps but the first `skip`; a step takes as long as on its slowest rank. `images`: of all ranks in a step. All ranks call it."""
        self.collect()
        times = torch.tensor([self._took_ms, self._waited_ms], dtype=torch.float64, device=self._device)[:, skip:].contiguous()
        if not times.numel():
            return {"steps": 0, **dict.fromkeys(NAMES)}
        dist.all_reduce(times, dist.ReduceOp.MAX)
        steps, waits = times
        # Images over time. A mean of the steps' rates would count fast steps for more.
        per_s = images * 1000 / steps.mean()
        values = (per_s, per_s / dist.get_world_size(), steps.mean(), steps.quantile(0.5), steps.quantile(0.95), waits.mean())
        return {"steps": len(steps), **{name: round(value.item(), 3) for name, value in zip(NAMES, values, strict=True)}}
