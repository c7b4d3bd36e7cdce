"""The memory of this host's GPUs, asked again and again beside everything else: a driver that hangs around a lost GPU keeps nobody waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from unhang.facts import nvml
from unhang.facts.host import Host

EVERY_S = 2.0
# An older answer says nothing about now.
OLD_S = 10.0
# The first answer is waited for; a driver without persistence wakes its GPUs first, but here they are in use.
FIRST_S = 1.0


class GpuMemory:
    """`of` answers at once, from the second time on. Where there is no NVML it is asked once."""

    def __init__(self, host: Host, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._monotonic = monotonic
        self._name = host.hostname()
        self._told: dict[str, tuple[int, int]] = {}
        self._told_at: float | None = None
        self._asked_at: float | None = None
        self._asking: threading.Thread | None = None
        self._library: object | None = None
        self._gives_up = False

    def of(self, host: str, address: str) -> tuple[int, int] | None:
        """Bytes used and in all of a GPU, whoever uses them; None where that is not known."""
        if host != self._name:
            return None
        self._ask()
        if self._told_at is None or self._monotonic() - self._told_at > OLD_S:
            return None
        return self._told.get(address)

    def _ask(self) -> None:
        now = self._monotonic()
        under_way = self._asking is not None and self._asking.is_alive()
        if self._gives_up or under_way or (self._asked_at is not None and now - self._asked_at < EVERY_S):
            return
        first, self._asked_at = self._asked_at is None, now
        self._asking = threading.Thread(target=self._look, name="unhang gpu memory", daemon=True)
        self._asking.start()
        if first:
            self._asking.join(FIRST_S)

    def _look(self) -> None:
        try:
            self._library = self._library or self._host.nvml()
            told = nvml.memory(self._library)
        except Exception:  # no library, or one that refuses; what it raises is nobody's promise
            self._gives_up = True
            return
        self._told, self._told_at = told, self._monotonic()
