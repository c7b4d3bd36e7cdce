"""Turns the files, directories, patterns and "-" of the command line into sources. Reads only the first bytes of each file."""

from __future__ import annotations

import difflib
import glob
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO

from unhang.errors import UnhangError
from unhang.fsio import as_argument, read_stdin
from unhang.logs.kinds import FLIGHT, NO_LOG_DIRECTORIES, OWN_RECORD, SOURCE_CODE, Misses, no_log
from unhang.logs.sources import Limits, Source, is_plain, kind_of
from unhang.logs.streams import HEAD_BYTES, Budget, Damaged, FileBytes, SpooledBytes, Stream, chunks, packing, unpacked, words
from unhang.model import NotExamined, frozen
from unhang.patterns import lazily
from unhang.printable import one_line

STDIN = "stdin"
# Names looked at in directories and patterns.
_MOST_ENTRIES = 1_000_000


# Counts as examined: ranks often have an empty log.
EMPTY = "it is empty"
LEADS_OUT = "a symlink out of the directory, not followed; name it to read it"
CUT = "it is JSON without its end: it was read as it stands"
# A failed download leaves an HTML page, a checkout without Git LFS a pointer.
_PACKED_NAME = lazily(r"\.(gz|tgz|tar|zip|xz|txz|zst|bz2|tbz2?)$", re.IGNORECASE)


@frozen
class Discovered:
    """The sources in order, each file once, and what is left out. `dumps` are flight-recorder dumps, `closed` unreadable files, `blank` empty ones in
    archives."""

    sources: tuple[Source, ...]
    not_examined: tuple[NotExamined, ...]
    dumps: tuple[Path, ...] = ()
    closed: tuple[Path, ...] = ()
    blank: tuple[Path, ...] = ()


def find(paths: Sequence[str], *, wanted: str = "log", limits: Limits | None = None, stdin: IO[bytes] | None = None) -> Discovered:
    """Find the sources that `paths` name; messages call them `wanted`. Raises UnhangError if a path is missing, unreadable or empty.

    A named file is taken unless it is source code, or every file is empty or binary; if it is no log, `not_examined` says so. In directories and
    patterns, files that are clearly no logs are left out and counted in `not_examined`.
    """
    finder = _Finder(limits or Limits(), stdin, wanted)
    finder.typed = tuple(map(_followed, paths))
    for path in paths:
        finder.add(path)
    if not finder.dumps:
        _refuse_nothing(finder.sources, finder.programs)
    finder.programs.report(finder.not_examined.append)
    without = (NotExamined(what=s.name, why=why, unread=why != EMPTY) for s in finder.sources if s.named and (why := _no_line(s)))
    misnamed = Misses("what was given")
    for source in finder.sources:
        if source.seekable and source.size_bytes and (ending := _PACKED_NAME.search(source.name)):
            misnamed.add(source.name, f"its name ends in .{ending[1]}, and it is nothing packed: it was read as it stands", unread=True)
        elif source.seekable and source.size_bytes and source.path and source.name.endswith(".json") and _is_cut(source.path):
            misnamed.add(source.name, CUT, unread=True)
    misnamed.report(finder.not_examined.append)
    return Discovered(
        sources=tuple(finder.sources), not_examined=(*finder.not_examined, *without), dumps=tuple(sorted(finder.dumps)), closed=tuple(finder.closed)
    )


class _Finder:
    def __init__(self, limits: Limits, stdin: IO[bytes] | None, wanted: str) -> None:
        self.limits = limits
        self.wanted = wanted
        self.stdin = stdin
        self.sources: list[Source] = []
        self.dumps: list[Path] = []
        self.closed: list[Path] = []
        # A program holds the very messages that are searched for.
        self.programs = Misses("what was given")
        self.not_examined: list[NotExamined] = []
        self.seen: set[tuple[int, int]] = set()
        # Symlinks are followed only within these: the logs' author may aim them at other files of the reader.
        self.typed: tuple[str, ...] = ()
        self.left_files = limits.files
        self.left_entries = _MOST_ENTRIES

    def add(self, path: str) -> None:
        if path == "-":
            self._stdin()
            return
        try:
            status = os.stat(path)  # noqa: PTH116
        except (OSError, ValueError) as e:
            if glob.has_magic(path) and "\0" not in path:
                self._pattern(path)
                return
            raise _missing(path, e) from e
        if stat.S_ISDIR(status.st_mode):
            self._directory(path)
        elif not stat.S_ISREG(status.st_mode):
            hint = f"unhang why - < {as_argument(path)}" if stat.S_ISFIFO(status.st_mode) else None
            raise UnhangError(f"{one_line(path)} is {_special(status.st_mode)}, not a file", hint=hint)
        elif no_log(path) == SOURCE_CODE:
            self.programs.add(one_line(path), f"no log: {SOURCE_CODE}")
        elif self._new(status):
            try:
                self._keep(_source(path, path, named=True))
            except OSError as e:
                raise UnhangError(f"cannot read {one_line(path)}: {words(e)}") from e

    def _stdin(self) -> None:
        if any(s.spool for s in self.sources):
            return
        if self.stdin is None and sys.stdin is None:
            raise UnhangError("standard input is closed")
        spool = SpooledBytes(STDIN, (self.stdin or read_stdin()).read, self.limits.spool_bytes)
        if spool.stopped:
            self.not_examined.append(NotExamined(what=STDIN, why=spool.stopped, unread=True))
        self.sources.append(Source(name=STDIN, size_bytes=spool.size_bytes, path=None, seekable=False, mtime=None, named=True, spool=spool))

    def _directory(self, path: str) -> None:
        try:
            os.scandir(path).close()
        except OSError as e:
            raise UnhangError(f"cannot read {one_line(path)}: {words(e)}") from e
        misses = Misses(one_line(path))
        found = self._walk(path, misses)
        if not found:
            raise UnhangError(
                f"there is no {self.wanted} in {one_line(path)}",
                cause=str(misses) or EMPTY,
                hint="name a run directory (it holds run.json) or a log file" if self.wanted == "log" else None,
            )
        misses.report(self.not_examined.append)

    def _pattern(self, pattern: str) -> None:
        misses = Misses(one_line(pattern))
        found = False
        stars, magic = _STARS.search(pattern), _MAGIC.search(pattern)
        # Links that a pattern matches may lead no farther up than it begins.
        inside = _followed(pattern[: pattern.rfind("/", 0, magic.start()) + 1] or ".") if magic else "\0"
        paths = sorted(islice(_matches(pattern), _MOST_ENTRIES))
        if stars:
            self.typed += tuple(filter(lambda real: real.startswith(inside), map(_followed, glob.glob(pattern[: stars.start()] or "."))))  # noqa: PTH207
        paths = [p for p in paths if not self._leads_out(p, misses, () if stars else (inside,))]
        self.typed += tuple(_followed(p) for p in paths if os.path.isdir(p))  # noqa: PTH112
        for path in paths:
            if os.path.isdir(path):  # noqa: PTH112
                found |= self._walk(path, misses)
            else:
                found |= self._take(path, path, misses)
        closed = _closed(pattern)
        for folder, why in closed:
            misses.add(one_line(folder), f"it cannot be read: {why}", unread=True)
        if not found:
            raise _missing(pattern, None, str(misses), closed[0][1] if closed else "")
        misses.report(self.not_examined.append)

    def _walk(self, root: str, misses: Misses) -> bool:
        """Take the files of a directory by name. Returns whether it has a log, already taken or not."""
        found = False
        first = len(self.sources)
        folders, links = ([], [root]) if os.path.islink(root.rstrip("/")) else ([root], list[str]())  # noqa: PTH114
        # A symlink's target is often in the same directory ("latest"): real names come first, and nothing is read twice.
        while folders or links:
            is_link = not folders
            folder = folders.pop() if folders else links.pop()
            if is_link and self._leads_out(folder, misses):
                continue
            try:
                status = os.stat(folder)  # noqa: PTH116
                if stat.S_ISDIR(status.st_mode):
                    if self._new(status):
                        inner, linked, here = self._entries(folder, root, misses)
                        folders += reversed(inner)
                        links = linked[::-1] + links
                        for path in here:
                            found |= self._take(path, os.path.relpath(path, root), misses)
                    else:
                        found |= folder == root
                else:
                    found |= self._take(folder, os.path.relpath(folder, root), misses)
            except OSError as e:
                misses.add(one_line(folder), f"it cannot be read: {words(e)}", unread=True)
        self.sources[first:] = sorted(self.sources[first:], key=lambda s: s.path.parts if s.path else ())
        return found

    def _entries(self, folder: str, root: str, misses: Misses) -> tuple[list[str], list[str], list[str]]:
        """Returns the directories, symlinks and files in one directory."""
        folders, links, files = list[str](), list[str](), list[str]()
        with os.scandir(folder) as entries:
            for entry in entries:
                self.left_entries -= 1
                if self.left_entries < 0:
                    misses.add(one_line(folder), f"more than {_MOST_ENTRIES:,} names were found; the rest was not looked at", unread=True)
                    break
                if entry.is_symlink():
                    links.append(entry.path)
                elif not entry.is_dir(follow_symlinks=False):
                    files.append(entry.path)
                elif kind := NO_LOG_DIRECTORIES.get(entry.name):
                    misses.add(one_line(entry.path), f"no logs: {kind}")
                else:
                    folders.append(entry.path)
        return sorted(folders), sorted(links), sorted(files)

    def _leads_out(self, path: str, misses: Misses, inside: tuple[str, ...] = ()) -> bool:
        real = _real(path)
        if real.startswith((*self.typed, *inside)) or not (os.path.isdir(path) or os.path.isfile(path)):  # noqa: PTH112, PTH113
            return False
        misses.add(f"{one_line(path)} -> {one_line(real[:-1] or '/')}", LEADS_OUT, unread=True)
        return True

    def _take(self, path: str, name: str, misses: Misses) -> bool:
        """Take a file that was not named. Returns whether it is a log, already taken or not."""
        try:
            if (what := no_log(name)) and not _may_be_dump(name):
                misses.add(one_line(path), f"no log: {what}")
                return False
            if self.left_files <= 0:
                misses.add(one_line(path), f"more than {self.limits.files:,} files were found; these were not read", unread=True)
                return True
            status = os.stat(path)  # noqa: PTH116
            if not stat.S_ISREG(status.st_mode):
                misses.add(one_line(path), f"no log: {_special(status.st_mode)}")
                return False
            if not self._new(status):
                return True
            source = _source(path, name, named=False)
        except OSError as e:
            if isinstance(e, PermissionError):
                self.closed.append(Path(path))
            misses.add(one_line(path), f"it cannot be read: {words(e)}", unread=True)
            return False
        if source.kind and source.kind != FLIGHT:
            misses.add(source.name, f"no log: {source.kind}")
            return False
        self.left_files -= 1
        self._keep(source)
        return True

    def _keep(self, source: Source) -> None:
        if source.kind == FLIGHT and source.path is not None:
            self.dumps.append(source.path)
        else:
            self.sources.append(source)

    def _new(self, status: os.stat_result) -> bool:
        key = (status.st_dev, status.st_ino)
        if not status.st_ino:  # a file system without inode numbers
            return True
        new = key not in self.seen
        self.seen.add(key)
        return new


def _source(path: str, name: str, *, named: bool) -> Source:
    """Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        head = os.read(fd, HEAD_BYTES)
        status = os.fstat(fd)
    finally:
        os.close(fd)
    plain = is_plain(head)
    # Files in /proc and on some network file systems are longer than st_size.
    seekable = plain and (status.st_size > 0 or not head)
    return Source(
        name=one_line(path),
        size_bytes=status.st_size if seekable else None,
        path=Path(path),
        seekable=seekable,
        mtime=status.st_mtime,
        kind=kind_of(name, head) if plain else _packed_kind(path, name, head),
        named=named,
    )


def _may_be_dump(name: str) -> bool:
    """Whether a file whose name says "no log" may be a flight-recorder dump, to be decided by its first bytes."""
    if (what := no_log(name)) == FLIGHT:
        return True
    return re.search(r"\.(?:pkl|pickle|bin|json)(?:\.(?:gz|zst|xz|bz2))?$", name) is not None and what != OWN_RECORD


def _packed_kind(path: str, name: str, head: bytes) -> str | None:
    """The kind of a packed file's content. Archives are opened later."""
    if (how := packing(head)) is None:
        return kind_of(name, head)
    file = FileBytes(Path(path), name)
    try:
        inner = Stream(unpacked(how, Stream(chunks(file), name), Budget(name, file.size_bytes, Limits())), name).peek(HEAD_BYTES)
    except Damaged:
        inner = b""
    finally:
        file.close()
    return FLIGHT if no_log("", inner) == FLIGHT else kind_of(name, head)


def _refuse_nothing(sources: Sequence[Source], programs: Misses) -> None:
    """Raises UnhangError if there is not one line: that must not pass for a healthy log."""
    if not sources and programs:
        raise UnhangError("nothing was read: no log was given", cause=str(programs), hint="unhang why - < FILE reads whatever it is")
    misses = Misses("")
    why = ""
    for source in sources:
        if not (why := _no_line(source) or ""):
            return
        misses.add(source.name, why)
    piped = any(s.spool for s in sources)
    cause = "the command in front of the pipe printed nothing, or only errors, which do not pass through it" if piped else None
    if len(sources) == 1:
        raise UnhangError(f"nothing was read: {sources[0].name} {why.removeprefix('it ')}", cause=cause)
    if sources:
        raise UnhangError(f"nothing was read: none of the {len(sources)} files holds a log", cause=str(misses))


def _no_line(source: Source) -> str | None:
    if (source.spool.size_bytes if source.spool else source.size_bytes) == 0:
        return EMPTY
    if source.seekable and source.kind and source.path and (kind := kind_of("", _head(source.path))):
        return f"it is no log: {kind}"
    return None


def _is_cut(path: Path) -> bool:
    """Whether a file is a truncated JSON document. One document per line is a log, whose last line may still be growing."""
    head = _head(path).lstrip()
    if head[:1] not in (b"{", b"[") or head.split(b"\n", 1)[0].rstrip()[-1:] in (b"}", b"]"):
        return False
    try:
        with path.open("rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - HEAD_BYTES))
            return f.read().rstrip()[-1:] not in (b"}", b"]")
    except OSError:
        return False


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as f:
            return f.read(HEAD_BYTES)
    except OSError:
        return b""


def _special(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "a special file")


def _real(path: str) -> str:
    try:
        return os.path.realpath(path).rstrip("/") + "/"
    except (OSError, ValueError):
        return "\0"


def _followed(path: str) -> str:
    """Where symlinks found under `path` may lead; nowhere (NUL) for a link to / or the kernel's files, which a star may have matched."""
    real = _real(path)
    return "\0" if real in ("/", "/dev/", "/proc/", "/sys/") and os.path.islink(path.rstrip("/")) else real  # noqa: PTH114


_MAGIC = lazily(r"[*?[]")
_STARS = lazily(r"(?:^|(?<=/))\*\*(?:/+\*\*)*(?:/+|$)")


def _matches(pattern: str) -> Iterator[str]:
    """Expand a pattern. Unlike in glob, `**` follows no symlinks, which may lead to /."""
    if not (stars := _STARS.search(pattern)):
        yield from glob.iglob(pattern)  # noqa: PTH207
        return
    for top in glob.iglob(pattern[: stars.start()] or "."):  # noqa: PTH207
        if _followed(top) == "\0":
            yield top
            continue
        closed: list[OSError] = []
        for folder, names, _ in chain(os.walk(top, onerror=closed.append), ((e.filename, [], []) for e in closed)):
            names[:] = [n for n in names if not n.startswith(".")]
            yield from _matches(os.path.join(glob.escape(folder), pattern[stars.end() :]).removeprefix("./") or ".")  # noqa: PTH118


def _closed(pattern: str) -> list[tuple[str, str]]:
    """The directories in a pattern that cannot be read, each with the reason; `glob` skips them silently."""
    found: dict[str, str] = {}
    above, part = os.path.split(pattern)
    while above and part:
        for folder in islice(_matches(f"{above}/"), _MOST_ENTRIES):
            try:
                if glob.has_magic(part):
                    os.scandir(folder).close()
                else:
                    os.stat(os.path.join(folder, part))  # noqa: PTH116, PTH118
            except PermissionError as e:
                found[folder.rstrip("/") or "/"] = words(e)
            except OSError:
                continue
        above, part = os.path.split(above)
    return sorted(found.items())


def _missing(path: str, error: OSError | ValueError | None, skipped: str = "", closed: str = "") -> UnhangError:
    if isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return UnhangError(f"cannot read {one_line(path)}: {words(error)}")
    if error is not None and os.path.islink(path):  # noqa: PTH114
        return UnhangError(f"{one_line(path)} is a symbolic link to {one_line(os.readlink(path))}, which does not exist")  # noqa: PTH115
    if closed:
        return UnhangError(f"cannot read {one_line(path)}: {closed}", cause=skipped)
    message = f"there is no {one_line(path)}" if error else f"no log matches {one_line(path)}"
    if skipped:
        return UnhangError(message, cause=skipped)
    folder, wanted = os.path.split(path.replace("\0", ""))
    while folder and not os.path.isdir(folder):  # noqa: PTH112
        folder, wanted = os.path.split(folder)
    try:
        with os.scandir(folder or ".") as entries:
            names = sorted(e.name for e in islice(entries, 10_000))
    except OSError:
        names = []
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5) or names[:3]
    there = ", ".join(one_line(os.path.join(folder, n)) for n in near)  # noqa: PTH118
    if there:
        return UnhangError(message, hint=f"the nearest names that exist: {there}")
    return UnhangError(message, cause=f"{one_line(folder) or '.'} is empty")
