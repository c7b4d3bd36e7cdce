"""Files and directories that are their owner's alone, and what a killed process left of them.

What holds arguments, an environment or stacks is made 0600 or 0700, whatever the umask grants: what is narrowed later could be opened before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

PREFIX = "unhang-"
# In a directory that ends with its process: only one that has it, unlocked, is a leftover.
MARK = ".unhang-temporary"
_BOOT = "/proc/sys/kernel/random/boot_id"
_swept: set[str] = set()
_kept: set[Path] = set()


def private(path: str, flags: int, mode: int = 0o600) -> int:
    """The `opener` of `open` for such a file; one that is there keeps its mode. No link is followed: a stranger may have put it there."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def make_directory(path: Path, mode: int = 0o700) -> None:
    """A directory, and those above it that are missing. Raises OSError."""
    if not path.exists():
        if path.parent != path:
            make_directory(path.parent, mode)
        path.mkdir(mode, exist_ok=True)


def make_for_database(path: Path) -> None:
    """An empty file, which SQLite takes for a new database and whose mode it gives to its journal. Raises OSError."""
    make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; a link is replaced, not followed. Whom its owner lets read it may read the new one. Raises OSError."""
    temporary = path.with_name(f".{path.name[:200]}.{os.urandom(6).hex()}")
    try:
        with open(temporary, "xb", opener=private) as f:
            with contextlib.suppress(FileNotFoundError):
                there = path.lstat()
                if stat.S_ISREG(there.st_mode) and there.st_uid == os.geteuid():
                    os.fchmod(f.fileno(), stat.S_IMODE(there.st_mode) & ~0o022)
            f.write(data)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_named(path: Path, data: bytes) -> None:
    """As `write`, where the user said: a link is followed, a pipe or a device written to. Raises OSError."""
    if path.exists() and not path.is_file():
        # A directory says so itself.
        path.write_bytes(data)
    else:
        write(Path(os.path.realpath(path)), data)


@contextlib.contextmanager
def temporary_directory(kind: str = "", base: str | None = None) -> Iterator[Path]:
    """A directory for as long as the context lasts, in `base` or the usual place, where the first call removes what killed processes left.

    `keep` leaves it to the user. Raises OSError.
    """
    import shutil
    import tempfile

    base = base or tempfile.gettempdir()
    if base not in _swept:
        _swept.add(base)
        sweep(base)
    made = Path(tempfile.mkdtemp(prefix=PREFIX + kind, dir=base))
    lock = _mark(made)
    try:
        yield made
    finally:
        if made not in _kept:
            shutil.rmtree(made, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def keep(made: Path) -> None:
    """Leave a temporary directory to the user."""
    _kept.add(made)
    with contextlib.suppress(OSError):
        (made / MARK).unlink()


def sweep(base: str) -> None:
    """Remove the temporary directories of this user in `base` whose processes are gone; never raises."""
    with contextlib.suppress(OSError):
        for entry in [e for e in os.scandir(base) if e.name.startswith(PREFIX)]:
            with contextlib.suppress(OSError):
                _remove_left(Path(entry.path))


def _remove_left(directory: Path) -> None:
    """Raises OSError for one that is in use, or has no mark."""
    import shutil

    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return
    fd = os.open(directory / MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Of another machine, in a folder that both mount, locks may not be seen here.
        if os.read(fd, 64) == Path(_BOOT).read_bytes():
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(fd)


def _mark(made: Path) -> int | None:
    """A lock that ends with this process; None if none can be had. A pid would not do: it may be another's by now, or one of another container."""
    fd = -1
    try:
        fd = os.open(made / f"{MARK}-", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, Path(_BOOT).read_bytes())
        # Under its name it is never seen unlocked.
        (made / f"{MARK}-").rename(made / MARK)
    except OSError:
        if fd >= 0:
            os.close(fd)
        return None
    return fd
