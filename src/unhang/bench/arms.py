"""What is compared, and in which order: the arms as they are started, the rules that were fixed before the first run, and ready-made comparisons.

Settings of the latter are those of `unhang run --set`; whether one can be applied to a script is decided there (`settings`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from unhang.errors import UnhangError
from unhang.facts import network
from unhang.launch.command import Command
from unhang.model import frozen
from unhang.settings.choosing import Here, active_adapters


@frozen
class Arm:
    """`asked` is what the user typed, `changes` the names in `Run.in_force` that this is to change. `samples`: of a rank in a step."""

    name: str
    asked: str
    command: Command
    settings: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, Any] | None = None
    changes: frozenset[str] = frozenset()
    samples: int | None = None


@frozen
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


NONE = "none"
# Of the batch that the command names.
_TIMES = (1, 2, 4)
# Of containers and VPNs.
_NOT_MEANT = ("bridge", "tunnel", "vxlan")
_MOST_INTERFACES = 3


# The baseline first; () where they depend on the machine or the command.
READY_MADE: Mapping[str, tuple[str, ...]] = {
    "batch": (),
    "amp": (NONE, "precision=bf16"),
    "workers": (NONE, "loader-workers=0", "loader-workers=2", "loader-workers=4"),
    "cudnn": ("cudnn-benchmark=off", "cudnn-benchmark=on"),
    "bucket": (NONE, "bucket=1", "bucket=100"),
    "compile": (NONE, "compile=off"),
    "shm": ("shm=on", "shm=off"),
    "p2p": ("p2p=on", "p2p=off"),
    "ib": ("ib=on", "ib=off"),
    "backend": (NONE, "backend=gloo"),
    "interface": (),
}
_GPUS = {"cudnn": 1, "backend": 1, "shm": 2, "p2p": 2}


def ready_made_arms(name: str, here: Here, *, batch: int | None) -> tuple[str, ...]:
    """The arms of a ready-made comparison on this machine, the baseline first. `batch` is what the command has now, None where it does not say.

    Raises UnhangError if the machine or the command lacks what it needs.
    """
    gpus = here.installed.gpus
    if name == "ib" and not active_adapters(here):
        raise UnhangError(f"{name}: no adapter here has an active InfiniBand or RoCE port")
    if gpus < 2 <= _GPUS.get(name, 0):
        raise UnhangError(f"{name}: NCCL uses it between the GPUs of a host, and this one has {gpus}")
    if not gpus and name in (*_GPUS, "ib"):
        raise UnhangError(f"{name}: there is no GPU here, so nothing {'computes with cuDNN' if name == 'cudnn' else 'communicates over NCCL'}")
    if name == "batch":
        if batch is None:
            raise UnhangError(
                "batch: the command does not say how large the batch is now",
                cause="only the script can change it, by a flag that [arguments] of unhang.toml names",
                hint='[arguments] batch = "--batch-size" in unhang.toml, and --batch-size 64 in the command; or --arg batch-size=64,128',
            )
        return tuple(f"batch={batch * times}" for times in _TIMES)
    return _interfaces(here) if name == "interface" else READY_MADE[name]


def _interfaces(here: Here) -> tuple[str, ...]:
    seen = here.snapshot.get(network.SUBJECT)
    found = [
        one.name
        for one in (seen.interfaces if seen is not None else ())
        if one.kind not in _NOT_MEANT and one.up and one.addresses and not (one.kind == "loopback" and here.several_hosts)
    ]
    if len(found) < 2:
        raise UnhangError(f"interface: there is nothing to choose between, this machine has {', '.join(found) or 'none'}")
    return (NONE, *(f"interface={one}" for one in found[:_MOST_INTERFACES]))
