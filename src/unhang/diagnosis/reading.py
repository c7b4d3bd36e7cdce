"""All logs of a job read: on all cores where that pays, in bounded memory, each with its own name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unhang import logs
from unhang.errors import RecordError
from unhang.logs import LogRead, Needles
from unhang.logs.line import MAX_LINE_BYTES
from unhang.logs.readers import Readers, cores
from unhang.logs.search import Part, read_part
from unhang.logs.sources import Source, named
from unhang.logs.streams import HEAD_BYTES, packing
from unhang.model import NotExamined

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

# Of a plain file that is larger the parts are read side by side.
SPAN_BYTES = 32 * 1024 * 1024
# Less than this is read by ourselves before others have started. A file costs about as much as so many bytes of it.
_ALONE_BYTES = 24 * 1024 * 1024
_FILE_BYTES = 256 * 1024
# A packed log is so many times larger than its file.
_PACKED = 4
# Files and parts that are under way at once. Of those whose unpacking may need a large window, only so many.
_AHEAD = 64
_WIDE = 2
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
    work = sum(_FILE_BYTES + _bytes(s) for s in sources)
    with Readers(needles, parallel=work > _ALONE_BYTES and not (len(sources) == 1 and not _has_parts(sources[0]))) as readers:
        return _Reading(sources, readers, missed, progress).all()


def _bytes(source: Source) -> int:
    """About how much there is to read."""
    if source.size_bytes is not None or source.path is None:
        return source.size_bytes or 0
    try:
        return _PACKED * source.path.stat().st_size
    except OSError:
        return 0


def _has_parts(source: Source) -> bool:
    return source.seekable and (source.size_bytes or 0) > SPAN_BYTES


def _is_wide(source: Source) -> bool:
    """Whether unpacking may need a window of a hundred megabytes: gzip and bzip2 do not; what stands in an archive is not known before."""
    if source.seekable or source.path is None:
        return False
    try:
        with source.path.open("rb") as f:
            return packing(f.read(HEAD_BYTES)) not in ("gzip", "bzip2")
    except OSError:
        return False


class _Read(NamedTuple):
    """What came of one source."""

    logs: list[LogRead]
    missed: list[NotExamined]
    bytes: int


class _Reading:
    def __init__(
        self, sources: Sequence[Source], readers: Readers[Needles], missed: Callable[[NotExamined], None], progress: Callable[[int, int | None], None]
    ) -> None:
        self.sources = sources
        self.readers = readers
        self.missed = missed
        self.progress = progress
        self.reads: list[LogRead] = []
        self.under_way: deque[tuple[Future[_Read], bool]] = deque()
        self.kept = 0
        self.left_hits = MAX_HITS
        self.done = 0
        # How much a packed log will be is not known before it is read.
        sizes = [s.size_bytes if s.seekable else None for s in sources]
        self.total = None if None in sizes else sum(n for n in sizes if n is not None)

    def all(self) -> list[LogRead]:
        for source in self.sources:
            if _has_parts(source):
                self._take(0)
                self._keep(self._large(source))
            elif len(self.sources) == 1 or source.spool is not None:
                self._take(0)
                self._keep(self._here(source))
            else:
                wide = _is_wide(source)
                while wide and sum(w for _, w in self.under_way) >= _WIDE:
                    self._take(len(self.under_way) - 1)
                self.under_way.append((self.readers.submit(_read_source, source, self._share()), wide))
                self._take(_AHEAD)
        self._take(0)
        return self.reads

    def _large(self, source: Source) -> _Read:
        """A plain file, its parts side by side. What stands before one that cannot be read counts."""
        assert source.path is not None and source.size_bytes is not None
        whole = Part(source=source.name)
        under_way: deque[Future[Part]] = deque()
        starts = iter(range(0, source.size_bytes, SPAN_BYTES))
        missed: list[NotExamined] = []
        try:
            while True:
                for start in islice(starts, _AHEAD - len(under_way)):
                    under_way.append(self.readers.submit(_read_span, source.path, source.name, range(start, start + SPAN_BYTES)))
                if not under_way:
                    break
                part = self.readers.result(under_way.popleft())
                whole.append(part)
                self._tell(part.bytes)
            missed += _shorter(source, whole.bytes)
        except RecordError as e:
            for future in under_way:
                future.cancel()
            missed.append(NotExamined(what=source.name, why=f"{e}; read up to byte {whole.bytes}", unread=True))
        logs = [whole.as_log(latest_s=source.mtime, at_most=_most(self._share()))] if whole.bytes else []
        return _Read(logs, [*missed, *(n for log in logs for n in _sampled(log))], 0)

    def _here(self, source: Source) -> _Read:
        """The only source, or one that cannot be handed over. The blocks of a stream are searched side by side."""
        if source.seekable:
            return _read_source(self.readers.needles, self.readers.stopped, source, self._share(), progress=self._tell)
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=cores(), thread_name_prefix="read") as pool:
            return _read_source(self.readers.needles, self.readers.stopped, source, self._share(), pool=pool, progress=self._tell)

    def _take(self, limit: int) -> None:
        while len(self.under_way) > limit:
            read = self.readers.result(self.under_way.popleft()[0])
            self._keep(read)
            self._tell(read.bytes)

    def _keep(self, read: _Read) -> None:
        for miss in read.missed:
            self.missed(miss)
        self.kept += 1
        self.reads += read.logs
        self.left_hits -= sum(len(log.hits) + 2 * len(log.tracebacks) for log in read.logs)

    def _share(self) -> int:
        """The hits that the logs of the next source may keep."""
        return self.left_hits // (len(self.sources) - self.kept)

    def _tell(self, size_bytes: int) -> None:
        self.done += size_bytes
        self.progress(self.done, self.total)


def _read_span(needles: Needles, stop: Callable[[], bool], path: Path, name: str, span: range) -> Part:
    return read_part(path, needles, source=name, span=span, stop=stop)


def _read_source(
    needles: Needles,
    stop: Callable[[], bool],
    source: Source,
    hits: int,
    *,
    pool: ThreadPoolExecutor | None = None,
    progress: Callable[[int], None] = lambda n: None,
) -> _Read:
    """All logs of one source: itself, or those packed in it, which share `hits`."""
    read = _Read([], [], 0)
    for name, opened in named(source, read.missed.append):
        log = opened.path if opened.path is not None else opened.stream
        assert log is not None
        at_most = _most(hits // _MOST_OF_THE_REST if read.logs else hits)
        try:
            found = logs.read(log, needles, source=name, latest_s=opened.source.mtime, at_most=at_most, pool=pool, progress=progress, stop=stop)
        except RecordError as e:
            read.missed.append(NotExamined(what=name, why=str(e), unread=True))
        else:
            read.logs.append(found)
            hits -= len(found.hits)
            read.missed.extend(_sampled(found))
            if opened.path is not None:
                read.missed.extend(_shorter(opened.source, found.bytes))
    return read._replace(bytes=sum(log.bytes for log in read.logs))


def _most(hits: int) -> int:
    """How many of them one log may keep."""
    return max(_LEAST_HITS, min(hits, MAX_HITS // _MOST_OF_THE_REST))


def _sampled(log: LogRead) -> Iterator[NotExamined]:
    """Report a log with lines that were not all matched."""
    if log.sampled:
        why = f"lines longer than {MAX_LINE_BYTES // 1024} KiB, or that take long to match, were only sampled"
        yield NotExamined(what=log.source, why=why, unread=True)


def _shorter(source: Source, read_bytes: int) -> Iterator[NotExamined]:
    """Says where less was there than had been found."""
    if read_bytes < (source.size_bytes or 0):
        yield NotExamined(what=source.name, why=f"it was cut short: {read_bytes} of {source.size_bytes} bytes were there", unread=True)
