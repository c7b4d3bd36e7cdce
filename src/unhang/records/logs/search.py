"""Signatures searched in a log of any size: needle first, regex second.

A log is cut into blocks. In each block the engine tells which needles stand in it at all; only around those, lines are cut out, cleaned and matched
(`looking`). Of each signature the first and the last hits of a log are kept, and only so many lines are looked at in each block, so that memory and
time stay bounded whatever a log says a million times.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from unhang.errors import RecordError
from unhang.records.logs.blocks import Block, Readable, blocks
from unhang.records.logs.looking import Look, Looked
from unhang.records.logs.needles import TRACEBACK, Needles
from unhang.records.logs.owner import owner_of
from unhang.records.logs.signature import Hit, Signature
from unhang.records.logs.stamp import Stamp, resolve
from unhang.records.logs.tracebacks import Traceback, writer

Piece = TypeVar("Piece", Hit, Traceback)
Kept = TypeVar("Kept")

# Blocks of one log that are under way at once.
_AHEAD = 8
# An exception that led to another one stands this close before it.
CHAIN_LINES = 40


class Stopped(Exception):
    """The search was told to stop."""


@dataclass(frozen=True, kw_only=True)
class LogRead:
    """What one log holds.

    `ranks` are those that the beginning of some line names, and the log's owner; `attempt` is the
    one that its path names.
    """

    source: str
    bytes: int
    lines: int = 0
    hits: tuple[Hit, ...] = ()
    tracebacks: tuple[Traceback, ...] = ()
    ranks: frozenset[int] = frozenset()
    attempt: int | None = None


def read(
    log: Path | Readable,
    needles: Needles,
    *,
    source: str | None = None,
    limit_bytes: int | None = None,
    rank: int | None = None,
    latest_s: float | None = None,
    at_most: int | None = None,
    pool: ThreadPoolExecutor | None = None,
    progress: Callable[[int], None] = lambda n: None,
    stop: threading.Event | None = None,
) -> LogRead:
    """Search one log: a plain file (its first `limit_bytes`), or a stream from where it stands to its end.

    `rank` is the log's owner where that is known, `latest_s` the time (since the epoch) that no line is later than. `at_most` bounds the hits that
    are kept. `pool` searches the blocks of a large log in parallel; `progress` is told the bytes of each; `stop` ends the search with Stopped.
    Raises RecordError where a file cannot be read, and whatever the stream raises.
    """
    name = source or str(log)
    owner = owner_of(name)
    merged = _Merged(name, rank if rank is not None else owner.rank)

    def look(block: Callable[[], Block]) -> Looked:
        if stop is not None and stop.is_set():
            raise Stopped
        return Look(block(), needles, name, owner, rank, merged.full).done()

    try:
        with blocks(log, limit_bytes) as parts, closing(_in_order(parts, look, pool)) as looked_at:
            for looked in looked_at:
                merged.add(looked)
                progress(looked.bytes)
    except OSError as e:
        if not isinstance(log, Path):
            raise
        raise RecordError(f"cannot read {name}: {e.strerror or e}") from e
    return merged.read(latest_s, at_most, owner.attempt)


def scan(
    path: Path, signatures: Iterable[Signature], *, limit_bytes: int | None = None, source: str | None = None, rank: int | None = None
) -> list[Hit]:
    """The hits of signatures in one file, in its order. Raises RecordError."""
    return list(read(path, Needles(signatures), source=source, limit_bytes=limit_bytes, rank=rank).hits)


def _in_order(
    parts: Iterator[Callable[[], Block]], look: Callable[[Callable[[], Block]], Looked], pool: ThreadPoolExecutor | None
) -> Generator[Looked, None, None]:
    if pool is None:
        for block in parts:
            yield look(block)
        return
    under_way: deque[Future[Looked]] = deque()
    try:
        for block in parts:
            under_way.append(pool.submit(look, block))
            if len(under_way) >= _AHEAD:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        # The file is closed behind us: nobody may still be reading it.
        for future in under_way:
            if not future.cancel():
                future.exception()


class _Merged:
    """The blocks of one log, put together in their order."""

    def __init__(self, source: str, rank: int | None) -> None:
        self.source = source
        self.bytes = 0
        self.lines = 0
        self.ranks = set() if rank is None else {rank}
        # With each, the number of lines before its block.
        self.first: dict[Signature, list[tuple[Hit, Stamp | None, int]]] = {}
        self.last: dict[Signature, deque[tuple[Hit, Stamp | None, int]]] = {}
        self.first_backs: list[tuple[Traceback, Stamp | None, int]] = []
        self.last_backs: deque[tuple[Traceback, Stamp | None, int]] = deque(maxlen=TRACEBACK.keep // 2)

    def full(self, signature: Signature) -> bool:
        """Whether the first hits of a signature are all found: of the blocks that follow only the last ones count."""
        if signature == TRACEBACK:
            return len(self.first_backs) >= TRACEBACK.keep // 2
        return len(self.first.get(signature, ())) >= (signature.keep + 1) // 2

    def add(self, looked: Looked) -> None:
        for hit, time in looked.hits:
            if not self.full(hit.signature):
                self.first.setdefault(hit.signature, []).append((hit, time, self.lines))
            elif hit.signature.keep > 1:
                self.last.setdefault(hit.signature, deque(maxlen=hit.signature.keep // 2)).append((hit, time, self.lines))
        for back, time in looked.tracebacks:
            (self.last_backs if self.full(TRACEBACK) else self.first_backs).append((back, time, self.lines))
        self.lines += looked.newlines
        self.bytes += looked.bytes
        self.ranks |= looked.ranks

    def read(self, latest_s: float | None, at_most: int | None, attempt: int | None) -> LogRead:
        each = None if at_most is None else max(2, at_most // max(1, len(self.first)))
        hits = [h for s, kept in self.first.items() for h in _fewer([*kept, *self.last.get(s, ())], each)]
        hits.sort(key=lambda h: h[0].place)
        backs = _fewer([*self.first_backs, *self.last_backs], each)
        times = resolve([*(time for _, time, _ in hits), *(time for _, time, _ in backs)], latest_s=latest_s)
        return LogRead(
            source=self.source,
            bytes=self.bytes,
            lines=self.lines,
            hits=tuple(_timed(replace(h, line=(h.line or 0) + n + 1), t) for (h, _, n), t in zip(hits, times, strict=False)),
            tracebacks=_last_of_chains(
                [_timed(replace(b, line=b.line + n + 1, end=b.end + n + 1), t) for (b, _, n), t in zip(backs, times[len(hits) :], strict=True)]
            ),
            ranks=frozenset(self.ranks),
            attempt=attempt,
        )


def _fewer(kept: list[Kept], at_most: int | None) -> list[Kept]:
    """The first and the last ones."""
    if at_most is None or len(kept) <= at_most:
        return kept
    return [*kept[: (at_most + 1) // 2], *kept[len(kept) - at_most // 2 :]]


def _timed(piece: Piece, time: Stamp | None) -> Piece:
    if time is None or time.clock != "wall" or not time.has_year:
        return piece
    return replace(piece, at_s=time.seconds, utc_offset_s=time.offset_s)


def _last_of_chains(found: Sequence[Traceback]) -> tuple[Traceback, ...]:
    """Of chained exceptions the last one of each writer: the one that nothing caught."""
    kept: list[Traceback] = []
    for back in found:
        if back.chained:
            near = (i for i in range(len(kept) - 1, -1, -1) if writer(kept[i]) == writer(back) and back.line - kept[i].end < CHAIN_LINES)
            if (led := next(near, None)) is not None:
                del kept[led]
        kept.append(back)
    return tuple(kept)
