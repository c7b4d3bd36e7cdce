"""Asks torch's own memory tracker (`probes/memory`), with the training's Python."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unhang.errors import UnhangError
from unhang.i18n import msg
from unhang.plan.memory_model import Counts, Tracked
from unhang.plan.training import Training

_TIMEOUT_S = 300.0
_MARK = "unhang-plan "
_PROBE = Path(__file__).resolve().parent.parent / "probes" / "memory.py"


def ask(model: Mapping[str, Any], training: Training, *, python: str, fsdp2: bool, deepspeed: bool) -> Tracked:
    """`model` is {"config": fields of config.json} or {"callable": "module:name"}. Raises UnhangError if it could not be built."""
    differs = deepspeed and training.precision in ("bf16", "fp16")
    kinds = ["torch", *(["deepspeed"] if differs else []), *(["FSDP2"] if fsdp2 and training.world_size > 1 else [])]
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _TIMEOUT_S, "check": False}
    try:
        ran = subprocess.run([python, str(_PROBE)], input=json.dumps({**model, **asdict(training), "kinds": kinds}), **how)
        out, last = ran.stdout, (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1] if ran.returncode else None
    except OSError as e:
        raise UnhangError(msg("cannot start {python}: {strerror}", python=python, strerror=e.strerror)) from e
    except subprocess.TimeoutExpired as e:
        # Bytes even where text was asked for.
        out, last = (e.stdout or b"").decode(), f"not done within {_TIMEOUT_S:g} s"
    lines = [line.removeprefix(_MARK) for line in out.splitlines() if line.startswith(_MARK)]
    told: dict[str, Any] = {"failed": last, **(json.loads(lines[-1]) if lines else {})}
    if "counts" not in told:
        raise UnhangError(msg("torch could not count the model: {told}", told=told["failed"]))
    return Tracked(
        counts=Counts(**told["counts"]),
        sample=told["sample"],
        sample_bytes=told["sample_bytes"],
        attention=told["attention"],
        activations=told["states"],
        fsdp2=told["states"].get("FSDP2"),
        dropped=told["dropped"],
        failed=told["failed"],
    )
