"""A thread for each sink, and a short queue before it: a sink that raises or hangs is switched off with one warning, and nobody waits for it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Protocol

from unhang.runtime.monitoring.tally import Snapshot

_QUEUED = 4


class Sink(Protocol):
    """Called from one thread of its own, on rank 0 alone. What it raises switches it off."""

    def write(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None: ...


class Outlet:
    def __init__(self, sink: Sink, *, patience_s: float) -> None:
        self.name = type(sink).__name__
        self.dropped = 0
        self.off = False
        self._sink, self._patience_s = sink, patience_s
        self._queue: queue.Queue[Snapshot | None] = queue.Queue(_QUEUED)
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"unhang monitor {self.name}", daemon=True)
        self._thread.start()

    def offer(self, snapshot: Snapshot) -> None:
        """Never waits."""
        since = self._busy_since
        if not self.off and since is not None and time.monotonic() - since > self._patience_s:
            self._switch_off(f"it has not returned for {self._patience_s:g} s")
        if self.off:
            return
        try:
            self._queue.put_nowait(snapshot)
        except queue.Full:
            self.dropped += 1

    def close(self, until: float) -> None:
        """What is queued is written by `until` (time.monotonic), or not at all."""
        if not self.off:
            try:
                self._queue.put(None, timeout=max(0.0, until - time.monotonic()))
            except queue.Full:
                self.dropped += 1
            self._thread.join(max(0.0, until - time.monotonic()))
            if self._thread.is_alive():
                self._switch_off("it did not come to its end")

    def _run(self) -> None:
        while not self.off:
            snapshot = self._queue.get()
            self._busy_since = time.monotonic()
            try:
                if snapshot is None:
                    self._sink.close()
                    return
                self._sink.write(snapshot)
            except Exception as e:
                self._switch_off(f"{type(e).__name__}: {e}")
                return
            finally:
                self._busy_since = None

    def _switch_off(self, why: str) -> None:
        if not self.off:
            self.off = True
            logging.getLogger("unhang").warning("the monitor's %s is switched off, the training goes on: %s", self.name, why)
