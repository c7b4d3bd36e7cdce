"""Socket directories of supervisors that were killed outright: each is marked with the process that it belongs to, and the next run takes away those
whose process has ended for certain.

Only what lies in a directory that no other user may enter is believed, and only the very files that a supervisor makes are removed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import msgspec

from unhang import encoding
from unhang.facts import processes
from unhang.facts.host import Host
from unhang.model import ProcessId
from unhang.records import whole

PREFIX = "unhang-"
SOCKET = "socket"
OWNER = "owner.json"
_MOST_BYTES = 4096


def mark(directory: Path, host: Host) -> None:
    """Say whose it is. Without that (a full disk, a kernel that tells too little) it is never taken for a leftover."""
    if (owner := processes.identity(host, os.getpid())) is not None:
        with contextlib.suppress(OSError):
            (directory / OWNER).write_bytes(encoding.encode(owner))


def remove(directory: Path) -> None:
    """What a supervisor has made there; never raises. Something else in it stays, and the directory with it."""
    # The mark last: what cannot be finished now is found again.
    for name in (SOCKET, OWNER):
        with contextlib.suppress(OSError):
            (directory / name).unlink()
    with contextlib.suppress(OSError):
        directory.rmdir()


def sweep(base: Path, host: Host) -> None:
    """Remove what dead supervisors of this user have left in `base`; never raises."""
    with contextlib.suppress(OSError):
        for entry in [e for e in os.scandir(base) if e.name.startswith(PREFIX)]:
            if _is_left(Path(entry.path), host):
                remove(Path(entry.path))


def _is_left(directory: Path, host: Host) -> bool:
    try:
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return False
        owner = msgspec.json.decode(whole.read(directory / OWNER, _MOST_BYTES), type=ProcessId)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return False
    # None: of another machine, or another container.
    return processes.is_alive(host, owner) is False
