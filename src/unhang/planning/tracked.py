"""Asks torch's own memory tracker (`probes/memory`), with the training's Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    differs = deepspeed and training.precision in ("bf16", "fp16")
    kinds = ["torch", *(["deepspeed"] if differs else []), *(["FSDP2"] if fsdp2 and training.world_size > 1 else [])]
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _TIMEOUT_S, "check": False}
    try:
        with os.fdopen(os.dup(sys.stderr.fileno()), "w") if sys.stderr.isatty() else Path(os.devnull).open("w") as progress:
            request = json.dumps({**model, **asdict(training), "kinds": kinds, "progress": progress.fileno()})
            done = subprocess.run([python, str(_PROBE)], input=request, pass_fds=[progress.fileno()], **how)
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
        activations=told["states"],
        fsdp2=told["states"].get("FSDP2"),
        dropped=told["dropped"],
        failed=told.get("failed"),
    )
