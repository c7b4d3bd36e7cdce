"""What `unhang bench` asks of a rank: when each optimizer step ended, and what is in force once the first one has.

Each process writes two files into the directory that ENV_STEP_TIMES names: PID.json at its first step, and PID.times, eight bytes for each step.
At step ENV_STEP_LIMIT the process ends with SystemExit: every rank at the same step, so that none waits for another.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from .protocol import ENV_STEP_LIMIT, ENV_STEP_TIMES

# Families of variables that training libraries read. The values of others are none of a benchmark's business.
FAMILIES = re.compile(
    r"(?:NCCL|RCCL|TORCH|PYTORCH|TORCHINDUCTOR|GLOO|TP|CUDA|CUBLAS|CUDNN|NVIDIA|HIP|HSA|ROCR|OMP|GOMP|KMP|MKL|OPENBLAS|UCX|UCC|FI|OMPI|ACCELERATE"
    r"|DEEPSPEED|DS|FSDP|TRITON|XLA|MALLOC|TOKENIZERS)_\w+|LD_PRELOAD|LD_LIBRARY_PATH|WORLD_SIZE|LOCAL_WORLD_SIZE"
)
_SECRET = re.compile(r"TOKEN(?!IZ)|SECRET|PASS|KEY|CREDENTIAL")

_file: int | None = None
_limit = 0


def is_of_interest(name: str) -> bool:
    """Whether a variable may be recorded with its value."""
    return FAMILIES.fullmatch(name) is not None and _SECRET.search(name) is None


def record(step: int, device: Callable[[], str | None]) -> None:
    """Note the end of a step. Raises SystemExit at the last one that was asked for."""
    global _file, _limit
    now = time.monotonic()
    if _file is None:
        limit = os.environ.get(ENV_STEP_LIMIT, "")
        _limit = int(limit) if limit.isdecimal() else 0
        path = os.path.join(os.environ[ENV_STEP_TIMES], str(os.getpid()))
        _file = os.open(f"{path}.times", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(os.open(f"{path}.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            json.dump(_in_force(device()), f)
    os.write(_file, struct.pack("=d", now))
    if 0 < _limit <= step:
        # Not sys.exit: that is reported as the script's own.
        raise SystemExit(0)


def _in_force(device: str | None) -> dict[str, Any]:
    torch: Any = sys.modules["torch"]
    distributed: Any = sys.modules.get("torch.distributed")
    joined = bool(distributed and distributed.is_available() and distributed.is_initialized())
    rank = os.environ.get("RANK", "")
    return {
        "rank": distributed.get_rank() if joined else int(rank) if rank.isdecimal() else 0,
        "argv": sys.argv,
        "started_with": {name: value for name, value in _started_with().items() if is_of_interest(name)},
        "variables": {name: value for name, value in os.environ.items() if is_of_interest(name)},
        "torch": {
            "backend": str(distributed.get_backend()) if joined else "none",
            "world size": str(distributed.get_world_size() if joined else 1),
            "device": str(device),
            "threads": str(torch.get_num_threads()),
            "matmul precision": str(torch.get_float32_matmul_precision()),
            "cuDNN benchmark": str(torch.backends.cudnn.benchmark),
        },
    }


def _started_with() -> dict[str, str]:
    """The variables that this process was started with, as the kernel keeps them: what the script sets later does not show here."""
    try:
        with open("/proc/self/environ", "rb") as f:
            entries = f.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
