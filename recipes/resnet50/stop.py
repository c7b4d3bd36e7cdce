"""SIGTERM and Ctrl-C end a training after a step, the same on all ranks: schedulers preempt jobs. The same file in each recipe that needs it."""

from __future__ import annotations

import atexit
import multiprocessing
import signal
import time
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A scheduler's signal, or a Ctrl-C, may reach torchrun and its ranks alike, and torchrun passes it on.
_REPEATED_S = 5.0


class Stop:
    """From its making on a signal is only noted, as are its repeats. One that comes later does what it does without this."""

    def __init__(self, device: torch.device) -> None:
        self._asked, self._since, self._device = 0, 0.0, device
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._before = {int(number): signal.signal(number, self._ask) for number in _SIGNALS}
        atexit.register(_end_workers)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if not self._asked:
            self._asked, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > _REPEATED_S:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)

    def agreed(self) -> str:
        """The name of the signal that any rank had got a step ago, else "". A step late, so that the host does not wait for the GPU."""
        answer = self.close()
        flag = torch.tensor(self._asked, device=self._device)
        self._pending = dist.all_reduce(flag, dist.ReduceOp.MAX, async_op=True), flag
        return answer

    def check(self) -> None:
        """Raise InterruptedError if this rank has got a signal: an evaluation may take longer than a scheduler waits."""
        if self._asked:
            raise InterruptedError(f"stopped by {signal.Signals(self._asked).name}")

    def close(self) -> str:
        """Wait for what `agreed` has begun."""
        if self._pending is None:
            return ""
        (work, flag), self._pending = self._pending, None
        work.wait()
        return signal.Signals(int(flag)).name if int(flag) else ""


def leave_to_the_rank(_worker: int) -> None:
    """Of a loader's worker, which a signal to all processes of a job reaches as well: it ends with its rank."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end_workers() -> None:
    """A rank that an exception ends would wait for ever for workers that SIGTERM does not end."""
    for worker in multiprocessing.active_children():
        worker.kill()
