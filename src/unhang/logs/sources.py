"""Logs opened wherever they are: plain files by their path, everything else (compressed, archived, piped, UTF-16) as one sequential stream.

An archive is read once, from front to end: `walk` is a generator, and a stream is valid until the next item is asked for. What cannot be read is
reported and never raised; what stands before the damage has been handed out by then.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Set
from dataclasses import field
from pathlib import Path

from unhang.logs import tars
from unhang.logs.kinds import FLIGHT, Misses, is_binary, no_log
from unhang.logs.streams import (
    HEAD_BYTES,
    Budget,
    Bytes,
    Damaged,
    FileBytes,
    Limits,
    SpooledBytes,
    Stream,
    chunks,
    encoding,
    packing,
    unpacked,
    utf8,
    words,
)
from unhang.model import NotExamined, frozen
from unhang.printable import one_line

__all__ = ["Limits", "LogStream", "OpenLog", "Source", "again", "is_plain", "kind_of", "named", "walk"]

Missed = Callable[[NotExamined], None]
_LAYERS = 2


@frozen
class Source:
    """A log, or before it is walked, an archive of logs.

    `name` is what is shown ("job.tar.gz!logs/rank3.err"), safe to print. `path` is the file on disk that holds it, None for standard input.
    `seekable`: the bytes of `path` are the log, to be read at any place; otherwise it exists as a stream only. `size_bytes` is None while unknown.
    `kind` says what a file that was named looks like, if not like a log ("a model checkpoint").
    `named`: the file on disk was named, not found.
    """

    name: str
    size_bytes: int | None
    path: Path | None
    seekable: bool
    mtime: float | None
    kind: str | None = None
    named: bool = False
    spool: SpooledBytes | None = field(default=None, repr=False, compare=False)


class LogStream:
    """A log from its front to its end. Damage ends it like the end of the file; it is reported to `walk`'s callback, never raised."""

    def __init__(self, data: Stream, failed: Callable[[Damaged], None]) -> None:
        self._data: Stream | None = data
        self._failed = failed

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes (at least 1), fewer only at the end, none behind it or after the walk has gone on."""
        if self._data is None:
            return b""
        try:
            return self._data.read(size)
        except Damaged as e:
            self.close()
            self._failed(e)
            return b""

    def close(self) -> None:
        self._data = None


@frozen
class OpenLog:
    """A log to be read: at `path`, in any order, or else from `stream`, now."""

    source: Source
    path: Path | None
    stream: LogStream | None


def walk(sources: Iterable[Source], missed: Missed, *, limits: Limits | None = None) -> Iterator[OpenLog]:
    """Every log, archives taken apart, in order. `missed` is told what could not be read, at the latest when its file is done. Raises nothing itself.

    The consumer of a `path` still has to expect OSError: files vanish.
    """
    for source in sources:
        if source.seekable:
            yield OpenLog(source=source, path=source.path, stream=None)
        else:
            yield from _Walk(source, limits or Limits(), missed).run()


def named(source: Source, missed: Missed) -> Generator[tuple[str, OpenLog], None, None]:
    """Every log of one source as `walk` gives it, with a name of its own: `tar -r` appends a newer one of the same name."""
    names: dict[str, int] = {}
    for opened in walk([source], missed):
        name = opened.source.name
        names[name] = count = names.get(name, 0) + 1
        yield name if count == 1 else f"{name}#{count}", opened


def again(sources: Iterable[Source], sizes: Mapping[str, int], names: Set[str], *, at_most: int) -> Generator[tuple[str, LogStream], None, None]:
    """Of the logs that exist as streams only, those of these `names` once more, each valid until the next is asked for.

    `sizes` are those of all logs, in the order in which they were read. Of each source so many bytes are read `at_most`: what stands behind them is
    left out.
    """
    for source in sources:
        if source.seekable or not (names and _packed_bytes(source) <= at_most):
            continue
        within, left = set[str](), at_most
        for name, size in sizes.items():
            if name == source.name or name.startswith((f"{source.name}!", f"{source.name}#")):
                left -= size
                if left < 0:
                    break
                within.add(name)
        within &= names
        if not within:
            continue
        with contextlib.closing(named(source, lambda _: None)) as logs:
            for name, opened in logs:
                if name in within and opened.stream is not None:
                    within.discard(name)
                    yield name, opened.stream
                if not within:
                    break


def _packed_bytes(source: Source) -> int:
    if source.spool is not None or source.path is None:
        return 0 if source.spool is None else source.spool.size_bytes
    try:
        return source.path.stat().st_size
    except OSError:
        return 0


def is_plain(head: bytes) -> bool:
    """Whether a file that begins so is a log as it stands: not packed, no archive, no UTF-16."""
    return not (packing(head) or encoding(head) or is_zip(head) or tars.is_header(head))


def kind_of(name: str, head: bytes) -> str | None:
    """What a file is, by its name and first bytes, if it is plainly no log and nothing that holds one."""
    return no_log(name, head) or ("binary data" if is_plain(head) and is_binary(head) else None)


def is_zip(head: bytes) -> bool:
    """Whether a zip archive may begin so."""
    return head.startswith((b"PK\3\4", b"PK\5\6"))


def leads_out(name: str) -> bool:
    """Whether the name of a member leads out of its archive."""
    return bool(re.match(r"(?:[A-Za-z]:)?[/\\]", name) or re.search(r"\.\.(?<![^/\\]\.\.)(?![^/\\])", name))


class _Walk:
    """One file on disk (or standard input) taken apart."""

    def __init__(self, source: Source, limits: Limits, missed: Missed) -> None:
        self.source = source
        self.limits = limits
        self.missed = missed
        self.misses = Misses(source.name)
        self.budget = Budget(source.name, 0, limits)
        self.place = 0

    def run(self) -> Generator[OpenLog, None, None]:
        spool, path = self.source.spool, self.source.path
        archive: Bytes | None = None
        try:
            if spool is not None:
                archive = spool
            elif path is not None:
                archive = FileBytes(path, self.source.name)
            if archive is not None:
                self.budget = Budget(self.source.name, archive.size_bytes, self.limits)
                yield from self._expand(Stream(chunks(archive), self.source.name), self.source, whole=archive, depth=0, packed=0)
        except OSError as e:
            self.misses.add(self.source.name, f"it cannot be read: {words(e)}", unread=True)
        except Damaged as e:
            self._damaged(e, self.source.name)
        finally:
            if isinstance(archive, FileBytes):
                archive.close()
            self.misses.report(self.missed)

    def _expand(self, data: Stream, source: Source, *, whole: Bytes | None, depth: int, packed: int) -> Iterator[OpenLog]:
        """The logs in `data`: one, or those of an archive. `whole`: `data` at any place, if there is that. `packed`: layers of packing around it."""
        name, layers = source.name, 0
        while kind := packing(data.peek(HEAD_BYTES)):
            if layers == _LAYERS:
                self.misses.add(name, f"it is packed more than {_LAYERS} times over; it was not read", unread=True)
                return
            # gzip and bzip2 have small windows: they do not count.
            data = Stream(unpacked(kind, data, self.budget, inner=packed > 0), name)
            packed += kind in ("xz", "zstd")
            layers += 1
            whole = None
        head = data.peek(HEAD_BYTES)
        tarred, zipped = tars.is_header(head), is_zip(head)
        # An archive that was named is opened, whatever it looks like.
        if not (source.named and (tarred or zipped)) and (what := kind_of("" if source.named else re.split(r"[/!]", name)[-1], head)):
            self.misses.add(name, f"no log: {what}", unread=source.named or what == FLIGHT)
        elif (tarred or zipped) and depth == self.limits.depth:
            self.misses.add(name, f"an archive inside {depth} others; it was not opened", unread=True)
        elif tarred:
            yield from self._tar(data, source, depth=depth + 1, packed=packed)
        elif zipped:
            yield from self._zip(data, whole, source, depth=depth + 1, packed=packed)
        else:
            yield from self._log(data, head, source, unknown_size=bool(layers))

    def _log(self, data: Stream, head: bytes, source: Source, *, unknown_size: bool) -> Iterator[OpenLog]:
        if self.place >= self.limits.files:
            self.misses.add(source.name, f"more than {self.limits.files:,} files were found; these were not read", unread=True)
            return
        coding = encoding(head)
        if coding:
            data = Stream(utf8(data, coding), source.name)
        size = None if coding or unknown_size else source.size_bytes
        log = Source(
            name=source.name,
            size_bytes=size,
            path=self.source.path,
            seekable=False,
            mtime=source.mtime,
            kind=source.kind,
            named=self.source.named,
            spool=self.source.spool,
        )
        self.place += 1
        stream = LogStream(data, lambda e: self._damaged(e, source.name))
        try:
            yield OpenLog(source=log, path=None, stream=stream)
        finally:
            stream.close()

    def _tar(self, data: Stream, source: Source, *, depth: int, packed: int) -> Iterator[OpenLog]:
        for member, content in tars.members(data):

            def data_of(content: Stream = content) -> Stream:
                return content

            yield from self._member(source, member.name, member.kind, member.size_bytes, member.mtime, data_of, depth, packed)

    def _zip(self, data: Stream, whole: Bytes | None, source: Source, *, depth: int, packed: int) -> Iterator[OpenLog]:
        from unhang.logs import zips

        spooled = None
        if whole is None:
            whole = spooled = SpooledBytes(source.name, data.read, self.limits.spool_bytes)
            if spooled.stopped:
                self.misses.add(source.name, spooled.stopped, unread=True)
        try:
            for entry in zips.entries(whole, self.budget):

                def content(entry: zips.Entry = entry, archive: Bytes = whole) -> Stream:
                    raw = zips.packed(archive, entry)
                    name = one_line(f"{source.name}!{entry.name}")
                    if entry.packing is None:
                        return Stream(zips.checked(raw.chunks(), entry, name), name)
                    return Stream(zips.checked(unpacked(entry.packing, raw, self.budget, inner=packed > 0), entry, name), name)

                size = entry.packed_bytes if entry.packing is None else None
                wide = packed + (entry.packing == "zstd")
                yield from self._member(source, entry.name, entry.kind, size, entry.mtime, content, depth, wide)
        finally:
            if spooled is not None:
                spooled.close()

    def _member(
        self,
        archive: Source,
        name: str,
        kind: str | None,
        size_bytes: int | None,
        mtime: float | None,
        content: Callable[[], Stream],
        depth: int,
        packed: int,
    ) -> Iterator[OpenLog]:
        self.budget.take_member()
        if kind == "a directory":
            return
        full = one_line(f"{archive.name}!{name.removeprefix('./')}")
        if leads_out(name):
            self.misses.add(full, "its name leads out of the archive; it was not opened")
        elif kind is not None:
            from unhang.logs import zips

            unread = kind in (*zips.CLOSED, tars.SPARSE) and no_log(name) is None
            self.misses.add(full, f"a member of an archive that is not read: {kind}", unread=unread)
        elif what := no_log(name):
            self.misses.add(full, f"no log: {what}")
        else:
            member = Source(name=full, size_bytes=size_bytes, path=None, seekable=False, mtime=mtime)
            try:
                data = content()
                data.what = full
                yield from self._expand(data, member, whole=None, depth=depth, packed=packed)
            except Damaged as e:
                self._damaged(e, full)
        if self.budget.exceeded:
            raise self.budget.exceeded

    def _damaged(self, e: Damaged, name: str) -> None:
        if not e.reported:
            e.reported = True
            self.misses.add(e.what, e.why, unread=True)
        if name != e.what:
            self.misses.add(name, f"only a part of it was read: see {e.what}", unread=True)
