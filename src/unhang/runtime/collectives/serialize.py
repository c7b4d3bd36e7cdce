"""What users give, as it goes to the other ranks, and how it is told where it cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


def paired(metrics: Any) -> dict[str, tuple[float, float]]:
    """(sum, count) by metric. Raises TypeError for what is no mapping of names to numbers or such pairs, ValueError for what counts nothing."""
    if not isinstance(metrics, Mapping) or not all(map(can_be_told, metrics)):
        raise TypeError(f"metrics are a mapping of names to numbers or pairs (sum, count), not {short(metrics)}")
    return {name: _pair(name, value) for name, value in metrics.items()}


def _pair(name: str, value: Any) -> tuple[float, float]:
    total, count = value if isinstance(value, tuple | list) and len(value) == 2 else (value, 1.0)
    try:
        found = _number(total), _number(count)
    except (TypeError, ValueError) as e:
        raise TypeError(f"metric {name!r} is a number or a pair (sum, count), not {value!r}") from e
    if not 0 <= found[1] < math.inf:
        raise ValueError(f"the count of metric {name!r} is a number from 0 on, not {count!r}")
    return found


def _number(value: Any) -> float:
    # torch 2.13 warns of a conversion that leaves the graph, as a training's loss does.
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def can_be_told(name: Any) -> bool:
    """Whether it is a text that can be sent: a name that was taken from a file's may not be."""
    if not isinstance(name, str):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(value: Any) -> str:
    said = repr(value)
    return f"{type(value).__name__} {said[:80]}{'…' if len(said) > 80 else ''}"
