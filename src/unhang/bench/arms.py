"""What is compared, and in which order: the arms as they are started, and the rules that were fixed before the first run."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unhang.launch.command import Command


@dataclass(frozen=True, kw_only=True)
class Arm:
    """`asked` is what the user typed, `changes` the names in `Run.in_force` that this is to change. `samples`: of a rank in a step."""

    name: str
    asked: str
    command: Command
    settings: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, Any] | None = None
    changes: frozenset[str] = frozenset()
    samples: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """`steps` ends each run at that optimizer step. The time of a step is divided by its samples if `is_per_sample`.

    `is_race`: arms that cannot win any more are left out. `leaves_out_equal`: so are those that do not differ from the baseline, else an error.
    """

    seed: int
    margin: float
    budget_s: float
    steps: int
    is_per_sample: bool = False
    is_race: bool = False
    leaves_out_equal: bool = False


def order(names: Sequence[str], *, seed: int, round: int) -> list[str]:
    """The order of a round: another one each time, and the same again for the same seed."""
    shuffled = list(names)
    random.Random(f"{seed}/{round}").shuffle(shuffled)
    return shuffled
