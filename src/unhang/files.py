"""Files and directories that only their owner can access, and removal of those that a killed process left.

Whatever holds arguments, an environment or stacks is created with 0600 or 0700, whatever the umask: before a later chmod others could open it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

PREFIX = "unhang-"
# Marks a directory that is deleted when its process ends; without a lock on it, it is a leftover.
MARK = ".unhang-temporary"
_BOOT = "/proc/sys/kernel/random/boot_id"
_swept: set[str] = set()
_kept: set[Path] = set()


def open_private(path: str, flags: int, mode: int = 0o600) -> int:
    """An `opener` for `open`: creates a file with this mode; an existing one keeps its own. No symlink is followed."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def make_directory(path: Path, mode: int = 0o700) -> None:
    """Create a directory and its missing parents. Raises OSError."""
    if not path.exists():
        if path.parent != path:
            make_directory(path.parent, mode)
        path.mkdir(mode, exist_ok=True)


def make_for_database(path: Path) -> None:
    """Create an empty file: a new database to SQLite, which gives its mode to the journal. Raises OSError."""
    make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically; replace a symlink, keep the mode of an existing file. Raises OSError."""
    temporary = path.with_name(f".{os.urandom(8).hex()}")
    try:
        with open(temporary, "xb", opener=open_private) as f:
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
    """Like `write_atomically`, for a path the user named: follows a symlink, writes to a pipe or device. Raises OSError."""
    if path.exists() and not path.is_file():
        # Raises IsADirectoryError for a directory.
        path.write_bytes(data)
    else:
        write_atomically(Path(os.path.realpath(path)), data)


@contextlib.contextmanager
def temporary_directory(kind: str = "", base: str | None = None) -> Iterator[Path]:
    """Create a directory in `base` (default: the system's) and delete it at the end, unless `keep` was called. Raises OSError.

    The first call for each `base` also removes what killed processes left there.
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
        # On NFS the directory of an open file cannot be removed.
        if lock is not None:
            os.close(lock)
        if made not in _kept:
            shutil.rmtree(made, ignore_errors=True)


def keep(made: Path) -> None:
    """Do not delete a temporary directory."""
    _kept.add(made)
    with contextlib.suppress(OSError):
        (made / MARK).unlink()


def sweep(base: str) -> None:
    """Remove this user's temporary directories in `base` whose processes are gone. Never raises."""
    with contextlib.suppress(OSError):
        for entry in [e for e in os.scandir(base) if e.name.startswith(PREFIX)]:
            with contextlib.suppress(OSError):
                _remove_left(Path(entry.path))


def _remove_left(directory: Path) -> None:
    """Raises OSError if it is in use or has no mark."""
    import shutil

    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return
    fd = os.open(directory / MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Locks of another machine that mounts this file system may be invisible here.
        if os.read(fd, 64) != Path(_BOOT).read_bytes():
            return
    finally:
        os.close(fd)
    shutil.rmtree(directory, ignore_errors=True)


def _mark(made: Path) -> int | None:
    """Lock the mark until this process ends; None if that fails. A pid would not do: it can be reused, or be one of another container."""
    lock = -1
    try:
        lock = os.open(made / f"{MARK}-", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, Path(_BOOT).read_bytes())
        # It gets its final name only once it is locked.
        (made / f"{MARK}-").rename(made / MARK)
    except OSError:
        if lock >= 0:
            os.close(lock)
        return None
    return lock
