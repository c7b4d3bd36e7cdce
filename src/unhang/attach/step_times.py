"""What `unhang bench` asks of a rank: when each optimizer step ended, and what is in force once the first one has.

Each process writes into the directory that ENV_STEP_TIMES names: PID.json at its first step; PID.times, 32 bytes for each step (when it ended, and of
where its time went: the seconds so far in the loader and in calls, and DDP's of one earlier step); PID.peak when it ends.
At step ENV_STEP_LIMIT the process ends with SystemExit: every rank at the same step, so that none waits for another.

Where the time of a step goes: how long the thread that trains waits for the data loader, and how long it is inside torch.distributed; and what DDP's
own timers tell of the end of its backward pass. Two readings of a clock for each batch and each call, about a microsecond. Nothing here asks CUDA for
anything. DDP does, at the iterations that it times: it waits for the GPU to end the backward pass before, at the next forward pass.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import math
import os
import re
import socket
import struct
import sys
import threading
import time
import weakref
from _thread import get_ident
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import session
from .protocol import ENV_STEP_LIMIT, ENV_STEP_TIMES, ENV_STEP_VARIABLES
from .session import gpu, number

# Families of variables that training libraries read. The values of others are none of a benchmark's business.
FAMILIES = re.compile(
    r"(?:NCCL|RCCL|TORCH|PYTORCH|TORCHINDUCTOR|GLOO|TP|CUDA|CUBLAS|CUDNN|NVIDIA|HIP|HSA|ROCR|OMP|GOMP|KMP|MKL|OPENBLAS|UCX|UCC|FI|OMPI|ACCELERATE"
    r"|DEEPSPEED|DS|FSDP|TRITON|XLA|MALLOC|TOKENIZERS)_\w+|LD_PRELOAD|LD_LIBRARY_PATH|WORLD_SIZE|LOCAL_WORLD_SIZE"
)
_SECRET = re.compile(r"TOKEN(?!IZ)|SECRET|PASS|KEY|CREDENTIAL")

# With CUDA DDP times its first ten iterations and every so many that follow; torch's own number is 100. On the CPU its timers wait for nothing.
DDP_EVERY = 10
# Those of objects are made of these.
_CALLS = (
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_coalesced", "all_reduce", "all_reduce_coalesced", "all_to_all",
    "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "gather", "monitored_barrier", "recv", "reduce", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "send",
)  # fmt: skip
_file: int | None = None
_limit = 0


def is_of_interest(name: str) -> bool:
    """Whether a variable is recorded with its value."""
    return FAMILIES.fullmatch(name) is not None and not is_secret(name)


def is_secret(name: str) -> bool:
    """Whether the name of a variable suggests a credential."""
    return _SECRET.search(name) is not None


def record(step: int, device: Callable[[], str | None]) -> None:
    """Note the end of a step. Raises SystemExit at the last one that was asked for."""
    global _file, _limit
    now = time.monotonic()
    if _file is None:
        _limit = number(ENV_STEP_LIMIT) or 0
        path = os.path.join(os.environ[ENV_STEP_TIMES], str(os.getpid()))
        _file = os.open(f"{path}.times", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(os.open(f"{path}.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            json.dump(_in_force(device()), f)
        atexit.register(_write_peak, f"{path}.peak")
    os.write(_file, struct.pack("=4d", now, loader.spent_s, calls.spent_s, ddp_exposed_s(step)))
    if 0 < _limit <= step:
        # Not sys.exit: that is reported as the script's own.
        raise SystemExit(0)


def _in_force(device: str | None) -> dict[str, Any]:
    torch: Any = sys.modules["torch"]
    distributed: Any = sys.modules.get("torch.distributed")
    joined = bool(distributed and distributed.is_available() and distributed.is_initialized())
    asked = os.environ.get(ENV_STEP_VARIABLES, "").split(",")
    return {
        "rank": distributed.get_rank() if joined else number("RANK") or 0,
        "started_with": {name: value for name, value in _started_with().items() if name in asked or is_of_interest(name)},
        "variables": {name: value for name, value in os.environ.items() if name in asked or is_of_interest(name)},
        "gpu": gpu(torch, device),
        "observed": {"TCP addresses": found} if os.path.isdir("/proc/self/fd") and (found := _addresses()) else {},
        "torch": {
            "backend": str(distributed.get_backend()) if joined else "none",
            "world size": str(distributed.get_world_size() if joined else 1),
            "device": str(device),
            # Optimizers load torch._dynamo as well: only frames that it was given count.
            "torch.compile": "used" if getattr(sys.modules.get("torch._dynamo.utils"), "counters", {}).get("frames") else "not used",
            **_settings(torch),
        },
    }


_SETTINGS = {
    "threads": "get_num_threads", "interop threads": "get_num_interop_threads", "matmul precision": "get_float32_matmul_precision",
    "default dtype": "get_default_dtype", "deterministic algorithms": "are_deterministic_algorithms_enabled",
    "anomaly detection": "is_anomaly_enabled", "cuDNN benchmark": "backends.cudnn.benchmark",
    "cuDNN deterministic": "backends.cudnn.deterministic", "cuDNN TF32": "backends.cudnn.allow_tf32",
    "torch version": "__version__", "CUDA version": "version.cuda", "NCCL version": "cuda.nccl.version",
}  # fmt: skip


def _settings(torch: Any) -> dict[str, str]:
    found = {}
    for name, path in _SETTINGS.items():
        with contextlib.suppress(Exception):  # a torch that has no such setting
            value: Any = functools.reduce(getattr, path.split("."), torch)
            value = value() if callable(value) else value
            found[name] = ".".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return found


def _addresses() -> str:
    """The local addresses of this process's TCP connections, those of Gloo among them; not of the one to the store."""
    inodes, found = set(), set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/self/fd/{fd}"))
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/self/net/{name}") as f:
            for _, local, remote, state, _, _, _, _, _, inode, *_ in map(str.split, list(f)[1:]):
                ports = {str(int(end.rpartition(":")[2], 16)) for end in (local, remote)}
                # 01 is ESTABLISHED. Addresses are words of four bytes in the order of the machine.
                if state == "01" and f"socket:[{inode}]" in inodes and os.environ.get("MASTER_PORT") not in ports:
                    words = local.rpartition(":")[0]
                    packed = b"".join(struct.pack("=I", int(words[i : i + 8], 16)) for i in range(0, len(words), 8))
                    found.add(socket.inet_ntop(family, packed).removeprefix("::ffff:"))
    return ", ".join(sorted(found))


def _write_peak(path: str) -> None:
    """The most memory that this process has had: of the host, as the kernel counts it, and of CUDA's tensors."""
    peak = {}
    torch: Any = sys.modules["torch"]
    with contextlib.suppress(Exception), open("/proc/self/status") as f:
        peak["host_bytes"] = next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM:"))
    with contextlib.suppress(Exception):
        if torch.cuda.is_initialized():
            peak["cuda_bytes"] = int(torch.cuda.max_memory_allocated())
    with contextlib.suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
        json.dump(peak, f)


def _started_with() -> dict[str, str]:
    """The variables that this process was started with, as the kernel keeps them: what the script sets later does not show here."""
    try:
        with open("/proc/self/environ", "rb") as f:
            entries = f.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


class _Clock:
    """Seconds that the thread that trains has spent inside some functions; NaN until it has called one."""

    _is_inside = False

    def __init__(self) -> None:
        self.spent_s = math.nan

    def timed(self, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _Clock._is_inside or get_ident() != _training_thread():
                return function(*args, **kwargs)
            _Clock._is_inside = True
            began = time.monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                _Clock._is_inside = False
                spent_s = time.monotonic() - began
                self.spent_s = spent_s if math.isnan(self.spent_s) else self.spent_s + spent_s

        return call

    def patch(self, owner: Any, *names: str) -> None:
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, self.timed(getattr(owner, name)))


loader, calls = _Clock(), _Clock()
# Each DistributedDataParallel, with how often it is timed, and the last of its iterations that was read.
_models: list[tuple[weakref.ref[Any], int, dict[str, int]]] = []


def patch_loader(module: ModuleType) -> None:
    """torch.utils.data.dataloader."""
    loader.patch(module._BaseDataLoaderIter, "__next__")


def patch_collectives(module: ModuleType) -> None:
    """torch.distributed.distributed_c10d."""
    calls.patch(module, *_CALLS)
    calls.patch(module.Work, "wait")


def patch_ddp(module: ModuleType) -> None:
    """torch.nn.parallel.distributed."""
    kind: Any = module.DistributedDataParallel
    initialise = kind.__init__
    # Buffers are broadcast in C++.
    calls.patch(kind, "_sync_buffers")

    @functools.wraps(initialise)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        with contextlib.suppress(Exception):  # a torch that times otherwise: nothing is measured
            every = 1 if self.device_type == "cpu" else DDP_EVERY
            self._set_ddp_runtime_logging_sample_rate(every)
            _models.append((weakref.ref(self), every, {}))

    kind.__init__ = __init__


def ddp_exposed_s(step: int) -> float:
    """Seconds by which the communication of one earlier backward pass ended later than its computation; NaN where there is none to tell of."""
    found_s = math.nan
    for reference, every, seen in _models:
        if step % every != 1 % every:
            continue
        with contextlib.suppress(Exception):
            logged = reference()._get_ddp_logging_data()  # type: ignore[union-attr]
            iteration = logged["iteration"]
            # backward_comm_time begins with the first bucket, and so within the computation.
            exposed_s = (logged["backward_comm_time"] - logged["backward_compute_comm_overlap_time"]) / 1e9
            if seen.get("iteration") != iteration and logged["backward_comm_time"] > 0:
                found_s = exposed_s if math.isnan(found_s) else found_s + exposed_s
            seen["iteration"] = iteration
    return found_s


def _training_thread() -> int | None:
    attached = session.current()
    return attached.main_ident if attached is not None else threading.main_thread().ident
