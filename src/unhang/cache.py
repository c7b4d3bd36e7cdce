"""Files that can be made again, in the user's cache directory. One that another user may have written, or that is damaged, is made anew."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

from unhang import fsio
from unhang.text import Text

# hashlib would load all of OpenSSL first.
try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

_DIGEST_BYTES, _CHECKSUM_BYTES = 16, 4
_WRITABLE_BY_OTHERS = 0o022
# Other versions and checkouts have files of their own.
_MOST_KEPT = 6


def directory() -> tuple[Path | None, Text | None]:
    """Return the user's cache directory; None if no variable names one, or, with the reason, if another user may have filled it."""
    root = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if (home := os.environ.get("HOME")) else "")
    if not root.startswith("/"):
        return None, None
    cache = Path(root) / "unhang"
    # One that is not there yet will be made.
    wrong = fsio.check_owner(cache) if os.path.lexists(cache) else None
    return (cache if wrong is None else None), wrong


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def read(path: Path) -> bytes:
    """What `write` wrote, if nobody but us could have written it, and nothing has changed it since. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as f:
        status = os.fstat(fd)
        if status.st_uid != os.getuid() or status.st_mode & _WRITABLE_BY_OTHERS:
            raise PermissionError(f"{path} could have been written by others")
        expected, data = f.read(_CHECKSUM_BYTES), f.read()
    if expected != _checksum(path, data):
        raise OSError(f"{path} is damaged")
    return data


def write(path: Path, data: bytes) -> None:
    """Keep data under a name, `KIND-KEY`, and only the newest of its kind. A full disk or a directory that cannot be written is no fault."""
    with contextlib.suppress(OSError):
        fsio.make_directory(path.parent)
        fsio.write_atomically(path, _checksum(path, data) + data)
        kind = path.name.partition("-")[0]
        for old in sorted(path.parent.glob(f"{kind}-*"), key=lambda p: p.stat().st_mtime)[:-_MOST_KEPT]:
            old.unlink(missing_ok=True)


def _checksum(path: Path, data: bytes) -> bytes:
    """With the name, which tells what it was made from: one that was renamed, or copied over another, is not taken for that one."""
    return zlib.crc32(data, zlib.crc32(path.name.encode())).to_bytes(_CHECKSUM_BYTES, "big")
