"""Two calls timed in turns, in one process: the order alternates (A B, B A, ...)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def ratio(ours: Callable[[], object], plain: Callable[[], object], repeats: int) -> dict[str, Any]:
    """`ratio` of medians, quartiles of the ratios of each pair (`pairs`), and those of B to its own median (`plain_spread`)."""
    for _ in range(4):
        ours()
        plain()
    took: dict[Any, list[float]] = {ours: [], plain: []}
    for i in range(repeats):
        for call in (ours, plain) if i % 2 else (plain, ours):
            began = time.perf_counter()
            call()
            took[call].append(time.perf_counter() - began)
    a, b = statistics.median(took[ours]), statistics.median(took[plain])
    pairs = statistics.quantiles([x / y for x, y in zip(took[ours], took[plain], strict=True)], n=4)
    spread = statistics.quantiles([x / b for x in took[plain]], n=4)
    return {
        "ratio": round(a / b, 4),
        "pairs": [round(p, 4) for p in pairs],
        "plain_spread": [round(spread[0], 4), round(spread[2], 4)],
        "ours_ms": round(a * 1e3, 4),
        "plain_ms": round(b * 1e3, 4),
        "n": repeats,
    }
