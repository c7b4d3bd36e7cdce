"""Files and directories that only their owner can access, and removal of those that a killed process left; reading what users name and give.

Whatever holds arguments, an environment or stacks is created with 0600 or 0700, whatever the umask: before a later chmod others could open it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import pwd
import select
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from unhang.errors import UnhangError
from unhang.printable import one_line
from unhang.text import Text, msg

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
            # The mark last: what a signal leaves here is found by the next one.
            with contextlib.suppress(OSError):
                for entry in made.iterdir():
                    if entry.is_dir() and not entry.is_symlink():
                        shutil.rmtree(entry, ignore_errors=True)
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


class NotRegular(OSError):
    """A pipe, a socket or a device."""


def bounded_read(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The first `most_bytes` of a file. Raises OSError; of it NotRegular for what is no file.

    A named pipe has whoever opens it wait for a writer, who may never come, and what it gives is another's; a device may never end.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise NotRegular(errno.EINVAL, "it is no regular file", os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    with os.fdopen(fd, "rb") as f:
        return f.read(most_bytes)


_NAP_MS = 500


class _Piped(io.RawIOBase):
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # A signal that comes just before the system call is answered by Python only after it: that must come back by itself.
        while not self._poll.poll(_NAP_MS):
            pass
        return os.readv(self._fd, [buffer])


def read_stdin() -> IO[bytes]:
    """The bytes of standard input, none of which may have been read before. What stands in for it, and is no file, is taken as it is.

    A pipe with nothing in it keeps nobody from being interrupted.
    """
    stream = sys.stdin.buffer
    try:
        fd = stream.fileno()
    except OSError:
        return stream
    return io.BufferedReader(_Piped(fd))


# `Path.exists` and its kin do not answer for a path behind a directory that one may not enter: up to Python 3.13 they raise, later they deny that
# anything is there.
def exists(path: str | os.PathLike[str]) -> bool:
    """Raises UnhangError where that cannot be told."""
    return _mode_of(path) is not None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Raises UnhangError where that cannot be told."""
    mode = _mode_of(path)
    return mode is not None and stat.S_ISREG(mode)


def is_dir(path: str | os.PathLike[str]) -> bool:
    """Raises UnhangError where that cannot be told."""
    mode = _mode_of(path)
    return mode is not None and stat.S_ISDIR(mode)


def as_argument(path: str | os.PathLike[str]) -> str:
    """As a word of a command: quoted, and never one that looks like an option or stands for standard input."""
    name = os.fspath(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def _mode_of(path: str | os.PathLike[str]) -> int | None:
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG:
            # Nothing of that name can be there.
            return None
        raise UnhangError(f"cannot read {os.fspath(path)}: {e.strerror or e}") from e


# Paths, separated as in PATH, that are trusted whoever owns them: containers and NFS map owners.
TRUST = "UNHANG_TRUST"
_OTHER = msg("ignored {path}: it belongs to {owner}; run {command}, or set {trust}={path}")
_OPEN = msg("ignored {path}: anyone can write to it; run {command}")


def check_owner(path: str | os.PathLike[str]) -> Text | None:
    """Return None if a configuration, cache or plugin is to be trusted, else the reason and the command that mends it.

    A symlink is checked with its target. Raises OSError.
    """
    path = os.fspath(path)
    if os.path.realpath(path) in map(os.path.realpath, filter(None, os.environ.get(TRUST, "").split(os.pathsep))):
        return None
    # Under sudo the caller is trusted, who may do anything as root. Rules of git's safe.directory.
    trusted = {0, os.geteuid(), *([int(sudo)] if os.geteuid() == 0 and (sudo := os.environ.get("SUDO_UID", "")).isdecimal() else [])}
    for at, status in ((path, os.lstat(path)), (os.path.realpath(path), os.stat(path))):  # noqa: PTH116
        # A line feed in a name would begin a line that looks like a command.
        named = {"path": one_line(shlex.quote(path)), "trust": TRUST}
        # What a link leads to may be a device: that is not to be changed.
        is_own = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or at == path
        if status.st_uid not in trusted:
            command = f"{'sudo ' if os.geteuid() else ''}chown -h {os.geteuid()} {one_line(shlex.quote(at))}" if is_own else f"rm {named['path']}"
            return _OTHER.fill(**named, owner=_user_name(status.st_uid), command=command)
        if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
            return _OPEN.fill(**named, command=f"chmod o-w {one_line(shlex.quote(at))}" if is_own else f"rm {named['path']}")
    return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
