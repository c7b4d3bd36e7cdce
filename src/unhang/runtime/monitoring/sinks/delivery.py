"""Carries messages one after the other, from a thread of its own: whoever sends never waits, and a network that hangs holds up nothing but this."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from unhang.diagnosis.redact import redact
from unhang.runtime.log import log

_QUEUED = 32
_ATTEMPTS = 3
_PAUSE_S = 2.0


class NotDelivered(Exception):
    """Why, without a secret. `again`: whether it may pass another time."""

    def __init__(self, says: str, *, again: bool = True) -> None:
        super().__init__(says)
        self.again = again


class Way(Protocol):
    """`name` is what it is called in a warning; `bound_s`, how long a delivery may take at most."""

    name: str
    bound_s: float

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Raises NotDelivered."""
        ...


class Delivery:
    """What cannot be delivered is in the training's log, with the reason."""

    def __init__(self, way: Way, *, pause_s: float = _PAUSE_S) -> None:
        self._way, self._pause_s = way, pause_s
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_QUEUED)
        self._closing = threading.Event()
        self._hangs: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name=f"unhang alerts {way.name}", daemon=True)
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Never waits."""
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            not_delivered(self._way, f"{_QUEUED} others wait before it", message["says"])

    def close(self, until: float) -> None:
        """What is queued is delivered by `until` (time.monotonic), or not at all."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=max(0.0, until - time.monotonic()))
        self._thread.join(max(0.0, until - time.monotonic()))
        while self._thread.is_alive():
            try:
                message = self._queue.get_nowait()
            except queue.Empty:
                return
            if message is not None:
                not_delivered(self._way, "the training has ended first", message["says"])

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            for left in reversed(range(_ATTEMPTS)):
                try:
                    self._attempt(message)
                    break
                except NotDelivered as e:
                    if not left or not e.again:
                        not_delivered(self._way, str(e), message["says"])
                        break
                # Nobody comes back to it later when the training ends now.
                self._closing.wait(self._pause_s)

    def _attempt(self, message: Mapping[str, Any]) -> None:
        """In another thread: neither looking a name up nor a server that sends a byte every second can be given a time."""
        if self._hangs is not None and self._hangs.is_alive():
            raise NotDelivered("an earlier attempt has not come back yet")
        raised: list[NotDelivered] = []

        def attempt() -> None:
            try:
                self._way.deliver(message)
            except NotDelivered as e:
                raised.append(e)
            except Exception as e:
                # Its text may hold anything.
                raised.append(NotDelivered(type(e).__name__, again=False))

        thread = threading.Thread(target=attempt, name=f"unhang alert by {self._way.name}", daemon=True)
        thread.start()
        thread.join(self._way.bound_s)
        if thread.is_alive():
            self._hangs = thread
            raise NotDelivered(f"no end within {self._way.bound_s:g} s")
        if raised:
            raise raised[0]


def not_delivered(way: Way, why: str, lost: str) -> None:
    log.warning("an alert was not delivered by the %s (%s): %s", way.name, redact(why), lost)
