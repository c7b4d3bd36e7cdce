"""Run directories and flight-recorder dumps out of an archive, or out of a pipe: unpacked to a temporary directory that is gone afterwards.

Names of members lead nowhere: only the files that a run directory has, or what begins like a dump, are taken, as regular files. An archive inside
another one is looked into, too; a dump that is packed by itself is taken as it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from unhang import fsio
from unhang.errors import UnhangError
from unhang.logs import tars, zips
from unhang.logs.discovery import EMPTY
from unhang.logs.kinds import FLIGHT, Misses, no_log
from unhang.logs.sources import Source, is_zip, kind_of, leads_out
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
    packing,
    spool_folder,
    unpacked,
    words,
)
from unhang.model import NotExamined, frozen
from unhang.printable import one_line
from unhang.records.rundir import MEMBER, RUN_MARK, RUN_MARK_WITHIN_BYTES, RunDir, started

Held = Literal["runs", "dumps"]

# Archives of logs are large, and most hold nothing else: behind so much of anything else nothing is looked for.
_LOOK_BYTES = 32 * 1024**2
_LAYERS = 2
# What the first bytes of packed data stand in: a block of bzip2 has 900 kB.
_PACKED_HEAD_BYTES = 1024**2
_LONGEST_PART_BYTES = 200
_MOST_PARTS = 12
_MOST_RUNS = 1000


@frozen
class Run:
    """A run directory that was unpacked to `path`, and how it is called in its archive."""

    path: Path
    name: str


@frozen
class Unpacked:
    """What was taken out. `runs`: the oldest first. `others`: something else is there that may be a log; `blank`: where that would lie in which there
    is nothing.

    `place` begins the paths of what was unpacked, and `called` is what stands in its place where it is shown.
    """

    runs: tuple[Run, ...]
    dumps: tuple[Path, ...]
    others: bool
    place: str
    called: str
    not_examined: tuple[NotExamined, ...]
    blank: tuple[Path, ...] = ()


def held(given: Source, *, runs: bool = True) -> Held | None:
    """What an archive or standard input seems to hold: run directories (where asked for), or else dumps. What cannot be read holds nothing."""
    seen, foreign = 0, False
    found: Held | None = None
    begun: dict[str, set[str]] = {}
    try:
        with _members(given, Limits(spool_bytes=_LOOK_BYTES), lambda _: None) as members:
            for member in members:
                members.budget.take_member()
                own = MEMBER.fullmatch(member.name)
                if runs and own is not None and own["file"] in ("run.json", "events.jsonl") and member.kind is None:
                    begun.setdefault(own["run"], set()).add(own["file"])
                    if len(begun[own["run"]]) > 1 or (own["file"] == "run.json" and RUN_MARK in member.data.peek(RUN_MARK_WITHIN_BYTES)):
                        return "runs"
                elif found is None and _is_dump(member):
                    found = "dumps"
                foreign |= own is None and member.kind is None
                seen += member.cost_bytes
                if foreign and seen + members.spooled_bytes > _LOOK_BYTES:
                    break
                if found and not runs:
                    break
    except (OSError, Damaged):
        pass
    return found


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Where things are unpacked to, for as long as the context lasts. Raises UnhangError where there is no such place."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(fsio.temporary_directory(base=spool_folder()))
        except OSError as e:
            raise UnhangError(f"cannot unpack anything: {words(e)}", hint="set TMPDIR to a directory with room") from e
        yield made


def unpack(given: Source, holds: Held, into: Path, *, limits: Limits | None = None) -> Unpacked:
    """Take out what is held, into a part of the directory `into`. Raises UnhangError where there is no room."""
    limits = limits or Limits()
    # No more than is kept of a stream may come to lie on a disk.
    limits = replace(limits, unpacked_bytes=limits.spool_bytes)
    try:
        # Hosts are often told apart by the folders that archives lie in.
        home = _free(into, given.name, 2)
        home.mkdir(parents=True)
        return _Taker(given, holds, home).all(limits)
    except OSError as e:
        raise UnhangError(f"cannot unpack {given.name}: {words(e)}", hint="unpack it where there is room, or set TMPDIR") from e


class _Taker:
    def __init__(self, given: Source, holds: Held, home: Path) -> None:
        self._given = given
        self._holds = holds
        self._home = home
        self._misses = Misses(given.name)
        self._roots: dict[str, Path] = {}
        self._dumps: list[Path] = []
        self._blank: list[Path] = []
        self._others = False
        self._alone = False

    def all(self, limits: Limits) -> Unpacked:
        given = self._given
        try:
            with _members(given, limits, self._damaged) as members:
                for member in members:
                    members.budget.take_member()
                    try:
                        self._take(member)
                    except Damaged as e:
                        self._damaged(e)
                    except (FileExistsError, NotADirectoryError, IsADirectoryError):
                        self._misses.add(_called(f"{given.name}!{member.name}"), "it stands where another member stands", unread=True)
                    if members.budget.exceeded:
                        raise members.budget.exceeded
        except Damaged as e:
            self._damaged(e)
        name = given.name
        found = [Run(path=r, name=_called(f"{name}!{prefix.strip('./')}".rstrip("!"))) for prefix, r in self._roots.items() if RunDir.is_one(r)]
        not_examined: list[NotExamined] = []
        self._misses.report(not_examined.append)
        return Unpacked(
            runs=tuple(sorted(found, key=lambda r: (started(r.path), r.name))),
            dumps=tuple(self._dumps),
            others=self._others,
            place=str(self._dumps[0]) if self._alone else f"{self._home}/",
            called=name if self._alone else f"{name}!",
            not_examined=tuple(not_examined),
            blank=tuple(self._blank),
        )

    def _take(self, member: _Member) -> None:
        if self._holds == "runs":
            if (found := MEMBER.fullmatch(member.name)) is not None and self._may_be_taken(member):
                if found["run"] not in self._roots and len(self._roots) >= _MOST_RUNS:
                    what = f"{self._given.name}!{found['run']}".rstrip("/")
                    self._misses.add(_called(what), f"more than {_MOST_RUNS:,} run directories were found; these were not read", unread=True)
                    return
                root = self._roots.setdefault(found["run"], self._home / str(len(self._roots)))
                _write(member, root / found["file"])
        elif not _is_dump(member):
            if member.kind is None and member.name and not member.leads_out and not member.data.peek(1):
                self._blank.append(_free(self._home, member.name, 2))
                self._misses.add(_called(f"{self._given.name}!{member.name}"), EMPTY)
            else:
                self._others |= member.kind is None and no_log(member.name) is None
        elif self._may_be_taken(member):
            self._alone = not member.name
            target = _free(self._home, member.name or "dump", len(self._dumps) + 1)
            # Of one that is cut off, what there is is read.
            self._dumps.append(target)
            _write(member, target)

    def _may_be_taken(self, member: _Member) -> bool:
        why = "its name leads out of the archive; it was not opened" if member.leads_out else member.kind and f"it is not read: {member.kind}"
        if why:
            self._misses.add(_called(f"{self._given.name}!{member.name}"), why, unread=True)
        return not why

    def _damaged(self, e: Damaged) -> None:
        self._misses.add(e.what, e.why, unread=True)


@frozen
class _Member:
    """`name` is "" for what stands in no archive. `data` is valid until the next member is asked for."""

    name: str
    kind: str | None
    leads_out: bool
    cost_bytes: int
    mtime: float | None
    opened: Callable[[], Stream]

    @cached_property
    def data(self) -> Stream:
        return self.opened()


def _is_dump(member: _Member) -> bool:
    return member.kind is None and no_log("", _head(member.data)) == FLIGHT


def _head(data: Stream) -> bytes:
    """The first bytes, unpacked; all stay unread. Raises Damaged where there is nothing but damage."""
    head = data.peek(HEAD_BYTES)
    if (kind := packing(head)) is None:
        return head
    raw = data.peek(_PACKED_HEAD_BYTES)
    try:
        return Stream(unpacked(kind, Stream(iter((raw,)), data.what), Budget(data.what, len(raw), Limits())), data.what).peek(HEAD_BYTES)
    except Damaged:
        return head


@contextlib.contextmanager
def _members(given: Source, limits: Limits, damaged: Callable[[Damaged], None]) -> Iterator[_Members]:
    """What there is in an archive, or else the pipe's only content; nothing where a file is no archive. Raises OSError, Damaged."""
    archive: Bytes
    if given.spool is not None:
        archive = given.spool
    elif given.path is not None:
        archive = FileBytes(given.path, given.name)
    else:
        raise Damaged(given.name, "it is no file")
    try:
        yield _Members(archive, given, limits, damaged)
    finally:
        if archive is not given.spool:
            archive.close()


class _Members:
    """The members of an archive, and of archives in it. `spooled_bytes`: what had to be kept for that."""

    def __init__(self, archive: Bytes, given: Source, limits: Limits, damaged: Callable[[Damaged], None]) -> None:
        self.budget = Budget(given.name, archive.size_bytes, limits)
        self.spooled_bytes = 0
        self._archive = archive
        self._given = given
        self._damaged = damaged

    def __iter__(self) -> Iterator[_Member]:
        packed = Stream(chunks(self._archive), self._given.name)
        data = self._unpacked(packed, inner=False)
        if _is_archive(data.peek(HEAD_BYTES)):
            yield from self._of_archive(data, self._archive if data is packed else None, prefix="", left_out=False, depth=1)
        elif self._given.spool is not None:
            yield _Member(name="", kind=None, leads_out=False, cost_bytes=0, mtime=None, opened=lambda: data)

    def _unpacked(self, data: Stream, *, inner: bool) -> Stream:
        layers = 0
        while layers < _LAYERS and (kind := packing(data.peek(HEAD_BYTES))):
            data = Stream(unpacked(kind, data, self.budget, inner=inner or layers > 0), data.what)
            layers += 1
        return data

    def _of_archive(self, data: Stream, whole: Bytes | None, *, prefix: str, left_out: bool, depth: int) -> Iterator[_Member]:
        if tars.is_header(data.peek(HEAD_BYTES)):
            yield from self._expanded(self._of_tar(data, prefix, left_out=left_out), depth)
            return
        if whole is not None:
            yield from self._expanded(self._of_zip(whole, prefix, left_out=left_out), depth)
            return
        with contextlib.closing(SpooledBytes(data.what, data.read, self.budget.limits.spool_bytes)) as spooled:
            self.spooled_bytes += spooled.size_bytes
            if spooled.stopped:
                self._damaged(Damaged(data.what, spooled.stopped))
            yield from self._expanded(self._of_zip(spooled, prefix, left_out=left_out), depth)

    def _expanded(self, members: Iterator[_Member], depth: int) -> Iterator[_Member]:
        for member in members:
            try:
                head = _head(member.data) if member.kind is None and depth < self.budget.limits.depth else b""
                if not _is_archive(head) or kind_of(member.name, head):
                    yield member
                    continue
                data = self._unpacked(member.data, inner=True)
                yield from self._of_archive(data, None, prefix=f"{member.name}!/", left_out=member.leads_out, depth=depth + 1)
            except Damaged as e:
                if self.budget.exceeded:
                    raise
                self._damaged(e)

    def _of_tar(self, data: Stream, prefix: str, *, left_out: bool) -> Iterator[_Member]:
        for member, content in tars.members(data):
            yield self._member(prefix, member.name, member.kind, tars.BLOCK_BYTES + member.size_bytes, member.mtime, lambda c=content: c, left_out)  # type: ignore[misc]

    def _of_zip(self, archive: Bytes, prefix: str, *, left_out: bool) -> Iterator[_Member]:
        for entry in zips.entries(archive, self.budget):

            def content(entry: zips.Entry = entry) -> Stream:
                raw = zips.packed(archive, entry)
                data = raw.chunks() if entry.packing is None else unpacked(entry.packing, raw, self.budget)
                what = _called(f"{self._given.name}!{prefix}{entry.name}")
                return Stream(zips.checked(data, entry, what), what)

            # Its directory tells the names: nothing is read for them.
            yield self._member(prefix, entry.name, entry.kind, 0, entry.mtime, content, left_out)

    def _member(
        self, prefix: str, name: str, kind: str | None, cost: int, mtime: float | None, opened: Callable[[], Stream], left_out: bool
    ) -> _Member:
        return _Member(name=f"{prefix}{name}", kind=kind, leads_out=left_out or leads_out(name), cost_bytes=cost, mtime=mtime, opened=opened)


def _is_archive(head: bytes) -> bool:
    return tars.is_header(head) or is_zip(head)


def _called(name: str) -> str:
    """What a member is called where it is shown: those of an archive in an archive stand behind its name."""
    return one_line(name.replace("!/", "!"))


def _free(folder: Path, name: str, n: int) -> Path:
    """A place of that name below a folder, or below its folder `n`, at which there is nothing yet. What leads out, or can be no name, stays away."""
    parts = [_part(p) for p in name.split("/") if p not in ("", ".", "..")][-_MOST_PARTS:] or ["_"]
    target = folder.joinpath(*parts)
    while target.exists() or any(p.exists() and not p.is_dir() for p in target.parents if p.is_relative_to(folder)):
        target = folder.joinpath(str(n), *parts)
        n += 1
    return target


def _part(name: str) -> str:
    whole = one_line(name).encode("utf-8", "replace")
    return whole[-_LONGEST_PART_BYTES:].decode("utf-8", "ignore")


def _write(member: _Member, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as f:
        for chunk in member.data.chunks():
            f.write(chunk)
    if member.mtime is not None:
        with contextlib.suppress(OSError, OverflowError):
            os.utime(target, (member.mtime, member.mtime))
