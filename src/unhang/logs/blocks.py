"""A log cut into blocks: each can be searched by itself, because what stands around it is read with it.

Plain files are read with pread and never mapped: a log that its writer cuts short while it is read would end a process that has mapped it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from unhang.logs.line import MAX_LINE_BYTES, Readable

BLOCK_BYTES = 1024 * 1024
# Read on both sides of a block, so that a line, its neighbours and a traceback that cross the edge are seen whole.
MARGIN_BYTES = MAX_LINE_BYTES


@dataclass(frozen=True)
class Block:
    """The block is window[begin:end] and begins at `offset` of the log; what stands around it belongs to its neighbours."""

    window: bytes
    begin: int
    end: int
    offset: int


@contextmanager
def blocks(log: Path | Readable, limit_bytes: int | None = None, span: range | None = None) -> Iterator[Iterator[Callable[[], Block]]]:
    """The blocks of a log, each to be read by whoever searches it; a file stays open until all of them are done. Raises OSError.

    `limit_bytes` cuts a file off; of the rest only the blocks that begin in `span` are given.
    """
    if not isinstance(log, Path):
        yield _of_stream(log)
        return
    fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        size = size if limit_bytes is None else min(size, limit_bytes)
        first, end = (0, size) if span is None else (span.start, min(size, span.stop))
        yield (partial(_pread, fd, offset, size) for offset in range(first, end, BLOCK_BYTES))
    finally:
        os.close(fd)


def _pread(fd: int, offset: int, size: int) -> Block:
    start = max(0, offset - MARGIN_BYTES)
    stop = min(size, offset + BLOCK_BYTES + MARGIN_BYTES)
    window = os.pread(fd, stop - start, start)
    # Fewer than asked for: a file system that gives less at once, or the file was cut short in the meantime.
    while len(window) < stop - start and (more := os.pread(fd, stop - start - len(window), start + len(window))):
        window += more
    return Block(window, min(offset - start, len(window)), min(offset + BLOCK_BYTES - start, len(window)), offset)


def _of_stream(stream: Readable) -> Iterator[Callable[[], Block]]:
    before, offset = b"", 0
    current = _fill(stream, b"", BLOCK_BYTES + MARGIN_BYTES)
    while current:
        rest = current[BLOCK_BYTES:]
        block = Block(before + current, len(before), len(before) + min(len(current), BLOCK_BYTES), offset)
        yield partial(_itself, block)
        if len(current) <= BLOCK_BYTES:
            return
        before = (before + current[:BLOCK_BYTES])[-MARGIN_BYTES:]
        offset += BLOCK_BYTES
        current = _fill(stream, rest, BLOCK_BYTES + MARGIN_BYTES)


def _itself(block: Block) -> Block:
    return block


def _fill(stream: Readable, have: bytes, size: int) -> bytes:
    parts, length = [have], len(have)
    while length < size and (data := stream.read(size - length)):
        parts.append(data)
        length += len(data)
    return b"".join(parts)
