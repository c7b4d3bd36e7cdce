"""The files of an environment and of sources beside it, as they go into an archive."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from unhang.errors import UnhangError
from unhang.facts.host import Host
from unhang.model import frozen
from unhang.pack.manifest import Entry, Kind, LeftOut, Source
from unhang.pack.relocate import THREADS, How, batches
from unhang.text import counted, size

# Called with the bytes that are done and the total.
OnProgress = Callable[[int, int], None]
_CHUNK_BYTES = 1 << 20
_TEXT_BYTES = 8192
_GIT_S = 120.0
# A script's first line, by itself or as pip and uv write it where it would be too long.
_OF_PYTHON = re.compile(rb"#![ \t]*/\S*(?:/env[ \t]+|/)python[\d.]*|#!/bin/sh\n'''exec' [\"']?/[^\n]*/python")
_VERSION_CONTROL = frozenset((".git", ".hg", ".svn", "__pycache__", "node_modules", ".tox", ".nox"))
# Left of builds, ignored by git, and needed: modules that were compiled in place, and the record of an old editable install.
_IGNORED_AND_NEEDED = ("*.so", "*.egg-info/*")
_IGNORED = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
_MOST_COUNTED = 100_000


@frozen
class Item:
    """One path of the archive, and where its content comes from. `inode` tells hard links."""

    path: str
    kind: Kind
    mode: int = 0
    size: int = 0
    target: str = ""
    source: str | None = None
    modified_ns: int = 0
    inode: tuple[int, int] | None = None

    @classmethod
    def of_file(cls, path: str, source: Path | os.DirEntry[str]) -> Item:
        seen, at = source.stat(), os.fspath(source)
        inode = (seen.st_dev, seen.st_ino) if seen.st_nlink > 1 else None
        return cls(path=path, kind="file", mode=seen.st_mode & 0o777, size=seen.st_size, source=at, modified_ns=seen.st_mtime_ns, inode=inode)


_Sized = TypeVar("_Sized", Item, Entry)


@frozen
class Summed:
    """The entries in their order, and the files that name one of the paths that were looked for."""

    entries: tuple[Entry, ...]
    places: dict[str, How]
    binaries: tuple[str, ...]


def walk(
    top: Path,
    below: str,
    *,
    inside: Path,
    without: frozenset[str] = frozenset(),
    skip: Callable[[os.DirEntry[str]], object] = lambda found: None,
    leave: Callable[[LeftOut], None] = lambda left: None,
    within: tuple[Path, ...] = (),
) -> Iterator[Item]:
    """All below `top`, as paths below `below`. Links that lead out of `inside` become what they lead to (uv can link packages from its cache)."""
    for found in sorted(os.scandir(top), key=lambda e: e.name):
        path = f"{below}/{found.name}".lstrip("/")
        if found.name in without or skip(found):
            continue
        # Nearly all are files, and a Path takes longer to make than all else here.
        if found.is_file(follow_symlinks=False):
            yield Item.of_file(path, found)
            continue
        at = Path(found.path)
        if found.is_symlink():
            # Not resolve, which raises for links that go round.
            real = Path(os.path.realpath(at))
            if not real.exists():
                leave(LeftOut(path=path, why=f"a link that leads nowhere, to {at.readlink()}"))
                continue
            if (target := _target(at, inside)) is not None:
                yield Item(path=path, kind="link", target=target)
                continue
            if real.is_dir() and real in within:
                continue
            if real in inside.parents:
                leave(LeftOut(path=path, why=f"a symlink to {real}, which contains this directory"))
                continue
            at = real
        if at.is_dir():
            yield Item(path=path, kind="dir", mode=at.stat().st_mode & 0o777)
            more = {"without": without, "skip": skip, "leave": leave, "within": (*within, at)}
            yield from walk(at, path, inside=inside if inside in at.parents else at, **more)  # type: ignore[arg-type]
        elif at.is_file():
            yield Item.of_file(path, at)
        else:
            leave(LeftOut(path=path, why="neither a file nor a directory nor a link"))


def _target(link: Path, inside: Path) -> str | None:
    """Where one link leads, not where all that follow lead, unless these leave `inside` and come back. None if it leads out."""
    # As the kernel sees it: directories above either may be links.
    own, real = link.parent.resolve(), link.resolve()
    at = own / link.readlink()
    at = at.parent.resolve() / at.name
    if inside not in (real, *real.parents):
        return None
    return os.path.relpath(at if inside in (at, *at.parents) else real, own)


def sources(
    name: str, top: Path, below: str, *, host: Host, without: Path | None, include: Sequence[str] = ()
) -> tuple[Source, tuple[Item, ...], tuple[LeftOut, ...]]:
    """A project: what git has or would take, what builds left that it needs, and what `include` (pathspecs of git) names of the files that git
    ignores; then those that it leaves out. Outside a checkout all but other environments and one file. Raises UnhangError.
    """
    commit = _git(host, top, "rev-parse", "HEAD")
    no_caches = ":(exclude,glob)**/__pycache__/**"
    excluded = (no_caches, *([f":(exclude,literal){without.relative_to(top)}"] if without is not None and top in without.parents else ()))
    listed = _git(host, top, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".", *excluded)
    if listed is None:
        items = tuple(walk(top, below, inside=top, without=_VERSION_CONTROL, skip=lambda e: e.path == str(without) or _is_environment(e)))
        return Source(name=name, path=below, origin=str(top)), items, ()
    taken = _git(host, top, *_IGNORED, "--", *_IGNORED_AND_NEEDED, *include, *excluded)
    if taken is None:
        raise UnhangError(
            f"git does not take --include {shlex.join(include)} in {top}", hint="name files as in .gitignore, from the top of the project"
        )
    is_environment = cache(lambda path: _is_environment(top / path))
    names = [n for n in sorted({*listed.split("\0"), *taken.split("\0")} - {""}) if not any(map(is_environment, Path(n).parents[:-1]))]
    items = tuple(_of_names(top, below, names))
    changed = bool(_git(host, top, "status", "--porcelain", "--", ".", *excluded))
    # With --directory, so that an environment of the project's own is one name.
    others = (_git(host, top, *_IGNORED, "--directory", "--", ".", *excluded) or "").split("\0")
    left = filter(None, (_left_out(top, below, n, frozenset(names)) for n in sorted({*others} - {"", *names})))
    return Source(name=name, path=below, origin=str(top), commit=commit.strip() if commit else None, changed=changed), items, tuple(left)


def check_include(include: Sequence[str], tops: Sequence[str], host: Host) -> None:
    """Raises UnhangError for one that names nothing which git ignores in any of these projects; "." names all that there is."""
    for pattern in include:
        if pattern != "." and not any(_git(host, Path(top), *_IGNORED, "--", pattern) for top in tops):
            where = f" in {', '.join(tops)}" if tops else ": no project is taken along"
            hint = "name files from the top of the project; outside a git checkout all are taken along without it"
            raise UnhangError(f"--include {shlex.quote(pattern)} names no file that git ignores{where}", hint=hint)


def _left_out(top: Path, below: str, name: str, taken: Collection[str]) -> LeftOut | None:
    """What git ignores under a name, with its size; None for what can be made again, for environments, and if all of it is taken."""
    name = name.rstrip("/")
    sizes = list(islice((size for path, size in _sizes(top / name, name) if path not in taken), _MOST_COUNTED + 1))
    many = f"{counted(len(sizes), 'file')}, {size(sum(sizes))}" if len(sizes) <= _MOST_COUNTED else f"more than {_MOST_COUNTED:,} files"
    return LeftOut(path=f"{below}/{name}", why=f"git ignores it ({many})") if sizes else None


def _sizes(at: Path | os.DirEntry[str], name: str) -> Iterator[tuple[str, int]]:
    """Of all that lies there; a link, which may lead to a whole file system, is one as such."""
    if at.name in _VERSION_CONTROL or _is_environment(at):
        return
    if at.is_symlink() or not at.is_dir():
        yield name, os.lstat(at).st_size
        return
    with os.scandir(at) as within:
        for found in within:
            yield from _sizes(found, f"{name}/{found.name}")


def _is_environment(at: Path | os.DirEntry[str]) -> bool:
    return at.is_dir() and ((Path(at) / "pyvenv.cfg").is_file() or (Path(at) / "conda-meta").is_dir())


def _of_names(top: Path, below: str, names: Sequence[str]) -> Iterator[Item]:
    for name in names:
        at = top / name
        if at.is_symlink() and at.exists() and (target := _target(at, top)) is not None:
            yield Item(path=f"{below}/{name}", kind="link", target=target)
        elif at.is_file():
            yield Item.of_file(f"{below}/{name}", at.resolve())
        elif at.is_dir() and at.resolve() not in top.parents:
            # A submodule or a link to a directory elsewhere.
            yield from walk(at.resolve(), f"{below}/{name}", inside=at.resolve(), without=_VERSION_CONTROL, skip=_is_environment)


def _git(host: Host, top: Path, *words: str) -> str | None:
    try:
        ran = host.run(["git", "-C", str(top), *words], timeout_s=_GIT_S)
    except OSError:
        return None
    return ran.out if ran.exitcode == 0 else None


def complete(items: Iterable[Item]) -> tuple[Item, ...]:
    """With the directories above each path, and hard links as such; ordered. The first item of a path is the one that counts."""
    by_path: dict[str, Item] = {}
    for item in items:
        by_path.setdefault(item.path, item)
    for path in tuple(by_path):
        while (path := path.rpartition("/")[0]) and path not in by_path:
            by_path[path] = Item(path=path, kind="dir", mode=0o755)
    ordered = sorted(by_path.values(), key=lambda i: i.path.split("/"))
    first: dict[tuple[int, int], str] = {}
    for n, item in enumerate(ordered):
        if item.inode is not None and (known := first.setdefault(item.inode, item.path)) != item.path:
            ordered[n] = replace(item, kind="hard", target=known, size=0)
    return tuple(sorted(ordered, key=lambda i: i.kind == "hard"))


def summed(items: Sequence[Item], paths: Sequence[str], on_progress: OnProgress) -> Summed:
    """Read every file once: its sum, and whether it names one of `paths`. Raises UnhangError for one that changes meanwhile."""
    needles = tuple(map(os.fsencode, sorted(paths, key=len)))
    # A path that contains another one is found with it.
    needles = tuple(n for i, n in enumerate(needles) if not any(other in n for other in needles[:i]))
    files = [i for i in items if i.kind == "file"]
    with ThreadPoolExecutor(THREADS) as pool:
        read = chain.from_iterable(pool.map(lambda batch: [_read(i, needles) for i in batch], batches(files)))
        found = {i.path: said for i, said in zip(with_progress(files, on_progress), read, strict=True)}
    entries, binaries = list[Entry](), list[str]()
    places: dict[str, How] = {}
    for item in items:
        total, how = found.get(item.target if item.kind == "hard" else item.path, ("", None))
        entries.append(
            Entry(item.path, item.kind, item.mode if item.kind != "hard" else 0, item.size, total if item.kind == "file" else "", item.target)
        )
        if how == "binary":
            binaries.append(item.path)
        elif how is not None and not item.path.startswith((".editable/", ".project/", ".wheels/")):
            places[item.path] = how
    return Summed(entries=tuple(entries), places=places, binaries=tuple(binaries))


def no_progress(done: int, total: int) -> None:
    """Whom nobody watches."""


def with_progress(items: Sequence[_Sized], on_progress: OnProgress) -> Iterator[_Sized]:
    """Each in turn; `on_progress` is called after it."""
    done, total = 0, sum(i.size for i in items)
    for item in items:
        yield item
        done += item.size
        on_progress(done, total)


def _read(item: Item, needles: Sequence[bytes]) -> tuple[str, How | None]:
    assert item.source is not None
    total, tail, hit, start = sha256(), b"", False, b""
    # Searching takes longer than the sum, for each needle anew.
    shared = os.path.commonprefix(needles) or b""  # noqa: RUF071  # Any bytes will do, whole components or not.
    longest = max(map(len, needles), default=1)
    size = 0
    with open(item.source, "rb") as file:  # noqa: PTH123  # As in archive._member.
        while chunk := file.read(_CHUNK_BYTES):
            start = start or chunk[:_TEXT_BYTES]
            total.update(chunk)
            # What lies across two chunks: to put all of them together takes longer than to search.
            for window in (tail + chunk[:longest], chunk):
                hit = hit or (shared in window and any(n in window for n in needles))
            tail = chunk[-longest:]
            size += len(chunk)
        if size != item.size:
            raise changed(item)
    if item.path.startswith("bin/") and _OF_PYTHON.match(start):
        return total.hexdigest(), "script"
    if item.path == "pyvenv.cfg":
        return total.hexdigest(), "pyvenv"
    return total.hexdigest(), None if not hit else "binary" if b"\0" in start else "text"


def changed(item: Item) -> UnhangError:
    return UnhangError(
        f"{item.source} changed while it was packed", cause="something is installed or trained there", hint="pack it again once that is done"
    )
