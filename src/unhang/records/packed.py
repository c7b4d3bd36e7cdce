"""Run directories and flight-recorder dumps out of an archive: unpacked to a temporary directory that is gone afterwards.

Names of members lead nowhere: only the files that a run directory has, or what begins like a dump, are taken, as regular files, into directories that
are numbered here.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from unhang.errors import UnhangError
from unhang.model import NotExamined
from unhang.records.logs import tars, unpacking, zips
from unhang.records.logs.kinds import FLIGHT, Misses, no_log
from unhang.records.logs.opening import is_zip, leads_out, shown
from unhang.records.logs.streams import HEAD_BYTES, Budget, Damaged, FileBytes, Limits, Stream, chunks, spool_folder, words
from unhang.records.rundir import MEMBER, RunDir, started

# Archives of logs are large, and most hold no run directory: behind so much of anything else none is looked for.
_LOOK_BYTES = 32 * 1024**2
_LAYERS = 2


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run directory that was unpacked to `path`, and how it is called in its archive."""

    path: Path
    name: str


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """All that an archive holds, the oldest first; and what of it could not be read."""

    runs: tuple[Run, ...]
    not_examined: tuple[NotExamined, ...]


@dataclass(frozen=True, kw_only=True)
class Dumps:
    """The dumps of an archive, unpacked into `folder`. `others`: something else is in it that may be a log."""

    folder: Path
    paths: tuple[Path, ...]
    others: bool
    not_examined: tuple[NotExamined, ...]


@dataclass(frozen=True, kw_only=True)
class _Member:
    name: str
    kind: str | None
    cost_bytes: int
    mtime: float | None
    content: Callable[[], Stream]


def holds_run(path: Path) -> bool:
    """Whether a file is an archive that seems to hold a run directory. What cannot be read holds none."""
    return _holds(path, lambda member: (found := MEMBER.fullmatch(member.name)) is not None and found["file"] == "run.json")


def holds_dumps(path: Path) -> bool:
    """Whether a file is an archive that seems to hold flight-recorder dumps. What cannot be read holds none."""
    return _holds(path, _is_dump)


def _holds(path: Path, wanted: Callable[[_Member], bool]) -> bool:
    seen, foreign = 0, False
    try:
        with _members(path, Limits()) as (members, _):
            for member in members:
                if wanted(member):
                    return True
                foreign |= MEMBER.fullmatch(member.name) is None and member.kind is None
                seen += member.cost_bytes
                if foreign and seen > _LOOK_BYTES:
                    break
    except (OSError, Damaged):
        pass
    return False


def _is_dump(member: _Member) -> bool:
    return member.kind is None and no_log("", member.content().peek(HEAD_BYTES)) == FLIGHT


@contextlib.contextmanager
def unpacked(path: Path, *, limits: Limits | None = None) -> Iterator[Unpacked]:
    """The run directories in an archive, for as long as the context lasts. Raises UnhangError where there is no room for them."""
    limits = limits or Limits()
    # No more than is kept of a stream may come to lie on a disk.
    limits = Limits(members=limits.members, ratio=limits.ratio, always_bytes=limits.always_bytes, unpacked_bytes=limits.spool_bytes)
    with tempfile.TemporaryDirectory(prefix="unhang-", dir=spool_folder()) as folder:
        try:
            found = _unpack(path, Path(folder), limits)
        except OSError as e:
            raise UnhangError(
                f"cannot unpack {shown(str(path))}: {words(e)}", hint="unpack it where there is room, and give the run directory; or set TMPDIR"
            ) from e
        yield found


@contextlib.contextmanager
def unpacked_dumps(path: Path, *, limits: Limits | None = None) -> Iterator[Dumps]:
    """The flight-recorder dumps in an archive, for as long as the context lasts. Raises UnhangError where there is no room for them."""
    limits = limits or Limits()
    limits = Limits(members=limits.members, ratio=limits.ratio, always_bytes=limits.always_bytes, unpacked_bytes=limits.spool_bytes)
    with tempfile.TemporaryDirectory(prefix="unhang-", dir=spool_folder()) as folder:
        try:
            found = _unpack_dumps(path, Path(folder), limits)
        except OSError as e:
            raise UnhangError(f"cannot unpack {shown(str(path))}: {words(e)}", hint="unpack it where there is room; or set TMPDIR") from e
        yield found


def _unpack_dumps(path: Path, folder: Path, limits: Limits) -> Dumps:
    misses = Misses(shown(str(path)))
    paths, others = list[Path](), False
    try:
        with _members(path, limits) as (members, budget):
            for member in members:
                budget.take_member()
                if not _is_dump(member):
                    others |= member.kind is None and no_log(member.name) is None
                elif leads_out(member.name):
                    misses.add(shown(f"{path}!{member.name}"), "its name leads out of the archive; it was not opened", unread=True)
                else:
                    _write(member, folder / member.name)
                    paths.append(folder / member.name)
                if budget.exceeded:
                    raise budget.exceeded
    except Damaged as e:
        misses.add(e.what, e.why, unread=True)
    not_examined: list[NotExamined] = []
    misses.report(not_examined.append)
    return Dumps(folder=folder, paths=tuple(paths), others=others, not_examined=tuple(not_examined))


def _unpack(path: Path, folder: Path, limits: Limits) -> Unpacked:
    archive = shown(str(path))
    misses = Misses(archive)
    roots: dict[str, Path] = {}
    try:
        with _members(path, limits) as (members, budget):
            for member in members:
                budget.take_member()
                found = MEMBER.fullmatch(member.name)
                if found is None:
                    continue
                full = shown(f"{archive}!{member.name}")
                if leads_out(member.name):
                    misses.add(full, "its name leads out of the archive; it was not opened", unread=True)
                elif member.kind is not None:
                    misses.add(full, f"a member of an archive that is not read: {member.kind}", unread=True)
                else:
                    root = roots.setdefault(found["run"], folder / str(len(roots)))
                    try:
                        _write(member, root / found["file"])
                    except Damaged as e:
                        misses.add(full, e.why, unread=True)
                if budget.exceeded:
                    raise budget.exceeded
    except Damaged as e:
        misses.add(e.what, e.why, unread=True)
    runs = [Run(path=root, name=shown(f"{archive}!{prefix.strip('./')}".rstrip("!"))) for prefix, root in roots.items() if RunDir.is_one(root)]
    not_examined: list[NotExamined] = []
    misses.report(not_examined.append)
    return Unpacked(runs=tuple(sorted(runs, key=lambda r: (started(r.path), r.name))), not_examined=tuple(not_examined))


def _write(member: _Member, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as f:
        for chunk in member.content().chunks():
            f.write(chunk)
    if member.mtime is not None:
        with contextlib.suppress(OSError, OverflowError):
            os.utime(target, (member.mtime, member.mtime))


@contextlib.contextmanager
def _members(path: Path, limits: Limits) -> Iterator[tuple[Iterator[_Member], Budget]]:
    """What an archive holds, each valid until the next one is asked for; nothing where it is no archive. Raises OSError, Damaged."""
    name = shown(str(path))
    with contextlib.closing(FileBytes(path, name)) as archive:
        budget = Budget(name, archive.size_bytes, limits)
        data, layers = Stream(chunks(archive), name), 0
        while layers < _LAYERS and (kind := unpacking.packing(data.peek(HEAD_BYTES))):
            data = Stream(unpacking.unpacked(kind, data, budget, inner=layers > 0), name)
            layers += 1
        head = data.peek(HEAD_BYTES)
        if tars.is_header(head):
            yield _of_tar(data), budget
        elif is_zip(head) and not layers:
            yield _of_zip(archive, budget), budget
        else:
            yield iter(()), budget


def _of_tar(data: Stream) -> Iterator[_Member]:
    for member, content in tars.members(data):
        yield _Member(name=member.name, kind=member.kind, cost_bytes=member.size_bytes, mtime=member.mtime, content=lambda content=content: content)  # type: ignore[misc]


def _of_zip(archive: FileBytes, budget: Budget) -> Iterator[_Member]:
    for entry in zips.entries(archive, limit=budget.limits.members):

        def content(entry: zips.Entry = entry) -> Stream:
            raw = zips.packed(archive, entry)
            data = raw.chunks() if entry.packing is None else unpacking.unpacked(entry.packing, raw, budget)
            return Stream(zips.checked(data, entry, archive.what), archive.what)

        # Its directory tells the names: nothing is read for them.
        yield _Member(name=entry.name, kind=entry.kind, cost_bytes=0, mtime=entry.mtime, content=content)
