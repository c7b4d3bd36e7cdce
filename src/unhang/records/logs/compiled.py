"""Hyperscan databases, kept between runs: compiling nine hundred literals takes a tenth of the time that a small log is answered in.

The engine refuses those of another version or processor; that not a bit has changed is for us to check.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unhang import files

# hashlib would load all of OpenSSL first.
try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

if TYPE_CHECKING:
    import hyperscan

_NAME = "needles-"
# Of other versions, and of rank prefixes beside the signatures.
_MOST_KEPT = 6
_DIGEST_BYTES = 16
_WRITABLE_BY_OTHERS = 0o022


def database(literals: Sequence[bytes], cache: Path | None) -> hyperscan.Database:
    """All literals, each told once for a scan; from the folder `cache` where they are kept there. Raises ImportError where there is no wheel."""
    import hyperscan

    if cache is None:
        return _compiled(tuple(literals))
    path = cache / (_NAME + _digest(b"\0".join((str(getattr(hyperscan, "__version__", "")).encode(), *literals))).hex())
    with contextlib.suppress(OSError, hyperscan.error):
        return hyperscan.loadb(_own(path), hyperscan.HS_MODE_BLOCK)
    made = _compiled(tuple(literals))
    # A full disk or a folder that cannot be written is no fault.
    with contextlib.suppress(OSError):
        _keep(path, hyperscan.dumpb(made))
    return made


# A database is never changed: whoever judges several times in one process, trial after trial, compiles once.
@functools.lru_cache(maxsize=_MOST_KEPT)
def _compiled(literals: tuple[bytes, ...]) -> hyperscan.Database:
    import hyperscan

    made = hyperscan.Database()
    # Once for each block is enough, and keeps the number of calls back into Python small.
    made.compile(expressions=list(literals), ids=list(range(len(literals))), flags=hyperscan.HS_FLAG_SINGLEMATCH, literal=True)
    return made


def _own(path: Path) -> bytes:
    """The database, if nobody but us could have written it, and nothing has changed it since. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as f:
        status = os.fstat(fd)
        if status.st_uid != os.getuid() or status.st_mode & _WRITABLE_BY_OTHERS:
            raise PermissionError(f"{path} could have been written by others")
        digest, data = f.read(_DIGEST_BYTES), f.read()
    if digest != _digest(_keyed(path, data)):
        raise OSError(f"{path} is damaged")
    return data


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _keyed(path: Path, data: bytes) -> bytes:
    """With the name, which tells what it was compiled from: one that was renamed, or copied over another, answers with that one's needles."""
    return path.name.encode() + b"\0" + data


def _keep(path: Path, data: bytes) -> None:
    files.make_directory(path.parent)
    files.write_atomically(path, _digest(_keyed(path, data)) + data)
    for old in sorted(path.parent.glob(f"{_NAME}*"), key=lambda p: p.stat().st_mtime)[:-_MOST_KEPT]:
        old.unlink(missing_ok=True)
