"""Energy of this host's GPUs while a run goes on, by NVML, read in this process and not in the training's; and how they are joined."""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections.abc import Collection, Mapping

from unhang.facts import gpu, nvml
from unhang.facts.host import Host, NotHere

EVERY_S = 0.5
# A driver that hangs keeps nobody waiting.
_LAST_S = 2.0


class GpuCounters:
    """Reads them twice a second inside a `with`. Afterwards `over` answers for any time within."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._read: list[tuple[float, Mapping[str, float | None]]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unhang gpu counters", daemon=True)

    def __enter__(self) -> GpuCounters:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(_LAST_S)

    def _run(self) -> None:
        try:
            library = self._host.nvml()
            try:
                while True:
                    is_last = self._is_over.is_set()
                    found = nvml.energies(library)
                    self._read.append((time.monotonic(), found))
                    if is_last or not found:
                        return
                    self._is_over.wait(EVERY_S)
            finally:
                library.nvmlShutdown()
        except Exception:  # no library, or one that refuses: nothing is measured
            return

    def over(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Joules of each GPU, by its PCI address, between two times of CLOCK_MONOTONIC; without those whose energy is not known."""
        read = tuple(self._read)
        found = {}
        for address in read[0][1] if read else ():
            energy = [(at, joules) for at, of_all in read if (joules := of_all.get(address)) is not None]
            first, last = _at(energy, begin_s), _at(energy, end_s)
            if first is not None and last is not None:
                found[address] = last - first
        return found


def links(host: Host, addresses: Collection[str]) -> tuple[str, ...]:
    """How GPUs, by their PCI addresses, are joined, each kind once: "NV18" (so many NVLinks), PIX, PXB, PHB, NODE, SYS; () if unknown."""
    if len(addresses) < 2:
        return ()
    with contextlib.suppress(NotHere, OSError):
        gpus = gpu.collect(host)
        used = {one.index for one in gpus.gpus if one.address in addresses}
        found = {pair.link for pair in gpus.pairs if {pair.first, pair.second} <= used}
        return () if None in found else tuple(sorted(map(str, found)))
    return ()


def _at(values: list[tuple[float, float]], when: float) -> float | None:
    """Between the two readings around that time; None outside of all of them."""
    i = bisect.bisect_left(values, (when,))
    if not 0 < i < len(values):
        return None
    (before_s, before), (after_s, after) = values[i - 1], values[i]
    return before + (after - before) * (when - before_s) / (after_s - before_s)
