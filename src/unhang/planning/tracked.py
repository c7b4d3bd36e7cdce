"""Asks torch's own memory tracker (`probes/memory`), with the training's Python."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unhang.errors import UnhangError
from unhang.planning.formula import Counts, Tracked
from unhang.planning.training import Training

_TIMEOUT_S = 300.0
_MARK = "unhang-plan "
_PROBE = Path(__file__).resolve().parent.parent / "probes" / "memory.py"


def ask(model: Mapping[str, Any], training: Training, *, python: str, fsdp2: bool, deepspeed: bool) -> Tracked:
    """`model` is {"config": fields of config.json} or {"callable": "module:name"}. Raises UnhangError if nothing could be counted."""
    request = json.dumps({**model, **asdict(training), "fsdp2": fsdp2 and training.world_size > 1, "deepspeed": deepspeed})
    try:
        done = subprocess.run([python, str(_PROBE)], input=request, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except OSError as e:
        raise UnhangError(f"cannot start {python}: {e.strerror}", says_zh=f"无法启动 {python}：{e.strerror}") from e
    except subprocess.TimeoutExpired as e:
        raise UnhangError(f"the model was not counted within {_TIMEOUT_S:g} s", says_zh=f"{_TIMEOUT_S:g} 秒内未能统计模型") from e
    line = next((line for line in done.stdout.splitlines() if line.startswith(_MARK)), None)
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    told: dict[str, Any] = json.loads(line.removeprefix(_MARK)) if line is not None else {"failed": last}
    if "counts" not in told:
        raise UnhangError(f"torch could not count the model: {told['failed']}", says_zh=f"torch 无法统计该模型：{told['failed']}")
    return Tracked(
        counts=Counts(**told["counts"]),
        batch=training.batch,
        activations=told["activations"],
        fsdp2=told.get("fsdp2"),
        torch=told["torch"],
        failed=told.get("failed"),
    )
