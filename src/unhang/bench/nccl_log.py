"""NCCL's own log of each rank of a run: the same settings in all arms, and only what is printed while communicators are made and connected."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from unhang.bench.arms import Arm
from unhang.bench.step_times import RankFile
from unhang.logs import nccl_lines

# Connections, devices and settings. COLL and TUNING print a line for each call, which costs time.
SUBSYSTEMS = "INIT,ENV"
_OURS = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")


def settings(arms: Iterable[Arm], folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for a run of any arm. None if an arm sets one of them itself: then its cost is what is asked. Subsystems of the user stay."""
    if any(name in arm.settings for arm in arms for name in _OURS):
        return {}
    subsystems = environ.get("NCCL_DEBUG_SUBSYS") or SUBSYSTEMS
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": subsystems, "NCCL_DEBUG_FILE": str(folder / "nccl-%h-%p.log")}


def read(folder: Path, ranks: Iterable[RankFile]) -> tuple[RankFile, ...]:
    """Ranks of this host, with what NCCL says that they use; nothing of one that has not used it."""
    host = socket.gethostname().partition(".")[0]
    found = []
    for one in ranks:
        with contextlib.suppress(OSError):
            one = replace(one, observed={**one.observed, **nccl_lines.read_used(folder / f"nccl-{host}-{one.pid}.log")})
        found.append(one)
    return tuple(found)
