"""Faults on purpose: a training names its places with `point` and `tap`, and UNHANG_FAULT makes one of them fail.

    UNHANG_FAULT="stuck@evaluate.sample:rank=1,step=8"          KIND@POINT[:rank=N][,step=N][,seconds=S]

Without the variable both calls return at once. Without `rank` every rank fires, without `step` the first call does;
`step=N` means the first call at which the training is at step N or later. A fault fires once in a process, and only in
the first attempt of a run (UNHANG_ATTEMPT unset or 0), so that a restarted training runs through.

Nothing is printed, so that the logs are those of a training that really failed. UNHANG_FAULT_RECORD=FILE asks for one
JSON line, appended just before the fault fires, that says what fired, where and when.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from unhang.model import frozen

ENV_FAULT = "UNHANG_FAULT"
ENV_RECORD = "UNHANG_FAULT_RECORD"
ENV_ATTEMPT = "UNHANG_ATTEMPT"

SECONDS = 15.0
FORM = "KIND@POINT[:rank=N][,step=N][,seconds=S]"

T = TypeVar("T")


@frozen
class Fault:
    """A kind of fault: its name in UNHANG_FAULT, and what it does in one clause."""

    name: str
    says: str


@frozen
class Injection:
    """One fault to come: which kind, at which point, on which rank (None: all), from which step on (None: at once)."""

    kind: str
    point: str
    rank: int | None = None
    step: int | None = None
    seconds: float = SECONDS

    def due(self, name: str, step: int | None) -> bool:
        return name == self.point and (self.step is None or (step is not None and step >= self.step))


def parse(spec: str) -> Injection:
    """Read one specification. Raises ValueError, naming what is valid."""
    place, _, options = spec.strip().partition(":")
    kind, at, point_name = (part.strip() for part in place.partition("@"))
    if kind not in FAULTS:
        raise _invalid(spec, f"there is no fault {kind!r}; valid kinds: {', '.join(FAULTS)}")
    if not at or not point_name:
        raise _invalid(spec, f"{kind} needs a point: {FORM}")
    given: dict[str, Any] = {}
    for option in filter(None, (part.strip() for part in options.split(","))):
        key, equals, text = (part.strip() for part in option.partition("="))
        if key not in ("rank", "step", "seconds") or not equals:
            raise _invalid(spec, f"{option!r} is not one of rank=N, step=N, seconds=S")
        if key in given:
            raise _invalid(spec, f"{key} is given twice")
        try:
            given[key] = float(text) if key == "seconds" else int(text)
        except ValueError:
            raise _invalid(spec, f"{key}={text} is not a number") from None
        if not 0 <= given[key] < float("inf"):
            raise _invalid(spec, f"{key}={text} must be 0 or more, and finite")
    return Injection(kind=kind, point=point_name, **given)


def point(name: str, *, step: int | None = None) -> None:
    """A named place in a training."""
    injection = _armed if _ready else _arm(os.environ)
    if injection is not None and injection.due(name, step):
        if injection.kind in _ALTERATIONS:
            raise _invalid(os.environ[ENV_FAULT], f"{injection.kind} alters a value, and {name} is a point without one; it needs a tap")
        _fire(injection, step)


def tap(name: str, value: T, *, step: int | None = None) -> T:
    """A named place that a value passes through. Returns `value`; a longer one where `mismatch` is due, itself changed in place where `drift` is."""
    injection = _armed if _ready else _arm(os.environ)
    if injection is None or not injection.due(name, step):
        return value
    if injection.kind in _ALTERATIONS:
        _spend(injection, step)
        return cast(T, _ALTERATIONS[injection.kind](_tensor(injection, value)))
    _fire(injection, step)
    return value


_ready = False
_armed: Injection | None = None


def _arm(environ: Mapping[str, str]) -> Injection | None:
    """Read the environment, once in a process. Raises ValueError for a specification that cannot be read, at every call."""
    global _ready, _armed
    spec = environ.get(ENV_FAULT)
    injection = parse(spec) if spec else None
    if injection is not None:
        first_attempt = environ.get(ENV_ATTEMPT, "0") in ("", "0")
        mine = injection.rank is None or injection.rank == int(environ.get("RANK", "0"))
        injection = injection if first_attempt and mine else None
    _armed, _ready = injection, True
    return injection


def _fire(injection: Injection, step: int | None) -> None:
    _spend(injection, step)
    _ACTIONS[injection.kind](injection)


def _spend(injection: Injection, step: int | None) -> None:
    """Disarm, and write the record that UNHANG_FAULT_RECORD asks for."""
    global _armed
    _armed = None
    record = os.environ.get(ENV_RECORD)
    if record:
        said = {"kind": injection.kind, "point": injection.point, "rank": int(os.environ.get("RANK", "0")), "step": step}
        with open(record, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps({**said, "pid": os.getpid(), "time": time.time()}) + "\n")


def _invalid(spec: str, problem: str) -> ValueError:
    return ValueError(f"{ENV_FAULT}={spec!r}: {problem}")


def _stuck(injection: Injection) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _sigkill(injection: Injection) -> None:
    grown = []
    for _ in range(20):
        # Written, not only reserved: untouched zero pages are not resident.
        grown.append(b"x" * (20 << 20))
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def _sigstop(injection: Injection) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(injection: Injection) -> None:
    raise RuntimeError(f"injected at {injection.point}: the value of this batch cannot be used")


def _barrier(injection: Injection) -> None:
    import torch.distributed as dist

    dist.barrier()


def _slow(injection: Injection) -> None:
    # CPU time, so that other load lengthens this as it lengthens the training's steps.
    until = time.thread_time() + injection.seconds
    total = 0
    while time.thread_time() < until:
        for i in range(10_000):
            total = (total * 31 + i) % 1_000_003


def _exit(injection: Injection) -> None:
    sys.exit(0)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def _gil(injection: Injection) -> None:
    # PyDLL keeps the GIL during the call. sleep() and poll() return early on a signal; a timed lock waits on, and this one is held already.
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)
    deadline = time.time() + injection.seconds
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_timedlock(mutex, ctypes.byref(_Timespec(int(deadline), int(deadline % 1 * 1e9))))
    libc.pthread_mutex_unlock(mutex)


def _burst(injection: Injection) -> None:
    time.sleep(injection.seconds)


def _tensor(injection: Injection, value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{injection.kind} needs a tensor, and the tap passes a {type(value).__name__}")
    return value


def _one_more(tensor: Any) -> Any:
    import torch

    return torch.cat([tensor.reshape(-1), tensor.new_zeros(1)])


def _drifted(tensor: Any) -> Any:
    import torch

    with torch.no_grad():
        first = tensor[(0,) * tensor.dim()]
        first += 1e-3
    return tensor


_ALTERATIONS: dict[str, Callable[[Any], Any]] = {"mismatch": _one_more, "drift": _drifted}


_ACTIONS: dict[str, Callable[[Injection], None]] = {
    "stuck": _stuck,
    "sigkill": _sigkill,
    "sigstop": _sigstop,
    "raise": _raise,
    "barrier": _barrier,
    "slow": _slow,
    "exit": _exit,
    "gil": _gil,
    "burst": _burst,
}

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(name="stuck", says="waits forever for a lock that nobody releases"),
        Fault(name="sigkill", says="grows by 400 MB within a second, then is killed with SIGKILL, as by the OOM killer"),
        Fault(name="sigstop", says="is stopped with SIGSTOP"),
        Fault(name="raise", says="raises RuntimeError"),
        Fault(name="mismatch", says="brings a tensor with one element too many into a collective"),
        Fault(name="drift", says="changes one number of a tensor a little, as hardware that computes wrongly does"),
        Fault(name="barrier", says="enters a barrier that the other ranks do not enter"),
        Fault(name="slow", says="computes in Python for some seconds of CPU time, then goes on"),
        Fault(name="exit", says="leaves the training early with exit code 0"),
        Fault(name="gil", says="holds the GIL for some seconds inside one C call, then goes on"),
        Fault(name="burst", says="sleeps for some seconds, then goes on"),
    )
}
