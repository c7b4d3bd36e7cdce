"""All logs of a job read: archives one after the other, plain files and the blocks of large ones on all cores, in bounded memory."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from unhang.errors import RecordError
from unhang.model import NotExamined
from unhang.records import logs
from unhang.records.logs import LogRead, Needles
from unhang.records.logs.opening import Opened, Source, walk

# Files up to this size are read whole by one thread; of larger ones the blocks are shared out.
SMALL_BYTES = 16 * 1024 * 1024
# Small files that are under way at once.
_AHEAD = 64
# Hits of all logs together, at about a kilobyte each; the more logs are still to come, the less one of them may take.
MAX_HITS = 120_000
_LEAST_HITS = 24
_MOST_OF_THE_REST = 32


def read_all(
    sources: Sequence[Source],
    needles: Needles,
    missed: Callable[[NotExamined], None],
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> list[LogRead]:
    """What every log holds, in order. `missed` is told what could not be read, `progress` the bytes done and, where that is known, of how many."""
    pool = ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)), thread_name_prefix="read")
    reading = _Reading(sources, needles, missed, progress, pool)
    try:
        return reading.all()
    finally:
        # Interrupted, nobody waits for logs that are still in the queue, and those under way end at their next block.
        reading.stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


class _Reading:
    def __init__(
        self,
        sources: Sequence[Source],
        needles: Needles,
        missed: Callable[[NotExamined], None],
        progress: Callable[[int, int | None], None],
        pool: ThreadPoolExecutor,
    ) -> None:
        self.sources = sources
        self.needles = needles
        self.missed = missed
        self.progress = progress
        self.pool = pool
        self.stop = threading.Event()
        self.reads: list[LogRead] = []
        self.under_way: deque[tuple[str, Future[LogRead]]] = deque()
        self.names: dict[str, int] = {}
        self.left_hits = MAX_HITS
        self.done = 0
        # How much a packed log will be is not known before it is read.
        sizes = [s.size_bytes if s.seekable else None for s in sources]
        self.total = None if None in sizes else sum(n for n in sizes if n is not None)

    def all(self) -> list[LogRead]:
        for opened in walk(self.sources, self.missed):
            name = self._name(opened.source.name)
            if opened.path is not None and (opened.source.size_bytes or 0) <= SMALL_BYTES:
                self.under_way.append((name, self.pool.submit(self._read, opened, name, self._share(), alone=False)))
                self._take(_AHEAD)
            else:
                self._take(0)
                try:
                    self._keep(self._read(opened, name, self._share(), alone=True))
                except RecordError as e:
                    self.missed(NotExamined(what=name, why=str(e)))
        self._take(0)
        return self.reads

    def _read(self, opened: Opened, name: str, at_most: int, *, alone: bool) -> LogRead:
        log = opened.path if opened.path is not None else opened.stream
        assert log is not None
        return logs.read(
            log,
            self.needles,
            source=name,
            latest_s=opened.source.mtime,
            at_most=at_most,
            pool=self.pool if alone else None,
            progress=self._tell if alone else (lambda n: None),
            stop=self.stop,
        )

    def _take(self, limit: int) -> None:
        while len(self.under_way) > limit:
            name, future = self.under_way.popleft()
            try:
                read = future.result()
            except RecordError as e:
                self.missed(NotExamined(what=name, why=str(e)))
                continue
            self._keep(read)
            self._tell(read.bytes)

    def _keep(self, read: LogRead) -> None:
        self.reads.append(read)
        self.left_hits -= len(read.hits) + 2 * len(read.tracebacks)

    def _share(self) -> int:
        """The hits that the next log may keep."""
        to_come = max(len(self.sources) - len(self.reads), _MOST_OF_THE_REST)
        return max(_LEAST_HITS, self.left_hits // to_come)

    def _name(self, name: str) -> str:
        """Told apart from others of the same name: `tar -r` appends a newer one."""
        self.names[name] = count = self.names.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _tell(self, size_bytes: int) -> None:
        self.done += size_bytes
        self.progress(self.done, self.total)
