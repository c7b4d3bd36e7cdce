"""A thread for each sink, and a short queue before it: a sink that raises or hangs is switched off with one warning, and nobody waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from unhang.runtime import log
from unhang.runtime.monitoring.counters import Snapshot

_QUEUED = 4
_SHORT = 40


class Sink(Protocol):
    """Called from one thread of its own, on rank 0 alone. What it raises switches it off; `close` is called then as well.

    One that has a text `where` (a path, a host; no secret) is named with it in warnings, and without it where that raises.
    """

    def write(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None: ...


def checked(sinks: Any) -> list[Sink]:
    """Those of a list. Raises TypeError for what is no list of sinks: a path in their place would be a sink for each of its letters."""
    if isinstance(sinks, str | bytes) or not isinstance(sinks, Iterable):
        such = (
            f"[unhang.JSONL({sinks!r})]" if isinstance(sinks, str) else f"[{sinks.__class__.__name__}(...)]" if _writes(sinks) else "[unhang.JSONL()]"
        )
        raise TypeError(f"sinks is a list of sinks, such as {such}, not {_short(sinks)}")
    found = list(sinks)
    for one in found:
        if isinstance(one, type):
            raise TypeError(f"sinks holds the class {one.__name__}: what it makes is a sink, {one.__name__}(...)")
        if not _writes(one):
            raise TypeError(f"sinks holds {_short(one)}, which is no sink: a sink has write(snapshot) and close(), as unhang.JSONL() has")
    return found


def named(sinks: Sequence[Sink]) -> list[str]:
    """What warnings call them: by their place in the list where nothing else tells them apart."""
    names = [type(one).__name__ + (f" ({where})" if (where := _where(one)) else "") for one in sinks]
    return [name if names.count(name) == 1 else f"{name}, sinks[{i}]," for i, name in enumerate(names)]


def _where(one: Any) -> str:
    try:
        where = getattr(one, "where", None)
    except Exception:
        # Rank 0 alone asks for it: raised, it would end the training there, and the other ranks would wait.
        return ""
    return where if isinstance(where, str) else ""


def _writes(one: Any) -> bool:
    return callable(getattr(one, "write", None)) and callable(getattr(one, "close", None))


def _short(one: Any) -> str:
    # What else there is may be long, or hold a secret.
    return repr(one) if isinstance(one, str) and len(one) < _SHORT else type(one).__name__


class SinkWorker:
    def __init__(self, sink: Sink, *, name: str, patience_s: float) -> None:
        self.name = name
        self.dropped = 0
        self.off = False
        self._sink, self._patience_s = sink, patience_s
        self._queue: queue.Queue[Snapshot | None] = queue.Queue()
        self._busy_since: float | None = None
        self._switching = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"unhang monitor {self.name}", daemon=True)
        self._thread.start()

    def offer(self, snapshot: Snapshot) -> None:
        """Never waits."""
        since = self._busy_since
        if not self.off and since is not None and time.monotonic() - since > self._patience_s:
            self._switch_off(f"it has not returned for {self._patience_s:g} s")
        if self.off:
            return
        if self._queue.qsize() >= _QUEUED:
            self.dropped += 1
            return
        self._queue.put(snapshot)

    def end(self) -> None:
        """Nothing comes any more. Never waits: all outlets are told before one of them is waited for."""
        self._queue.put(None)

    def wait(self, until: float) -> None:
        """What is queued is written by `until` (time.monotonic), or not at all."""
        # Whoever still hangs in a snapshot for which it was switched off is not waited for.
        if not self.off or self._ending.is_set():
            self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._switch_off("it did not come to its end")

    def _run(self) -> None:
        for step in (self._write, self._end):
            try:
                step()
            except BaseException as e:
                # sys.exit, too: it would end this thread without a word.
                self._switch_off(f"{type(e).__name__}: {e}")
            finally:
                self._busy_since = None

    def _write(self) -> None:
        while not self.off and (snapshot := self._queue.get()) is not None:
            self._busy_since = time.monotonic()
            self._sink.write(snapshot)
            self._busy_since = None

    def _end(self) -> None:
        """Of one that is switched off, too: it may hold a port, or a run of its own that would go on for ever."""
        self._ending.set()
        self._busy_since = time.monotonic()
        self._sink.close()

    def _switch_off(self, why: str) -> None:
        with self._switching:
            if not self.off:
                # Before anybody who waits sees that it is off, and ends the process.
                log.warning("the monitor's %s is switched off, the training goes on: %s", self.name, why)
                self.off = True
