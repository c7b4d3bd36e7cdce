"""Removing shared-memory segments that dead trainings left in /dev/shm: our own ones, and only those that nobody uses any more.

/proc does not show processes of other PID namespaces, and containers may share one /dev/shm. So the kernel has the last word: a write lease on a
file is granted only while no other process anywhere has it open or mapped. Of files that wait to be opened by their name it knows nothing: those go
only where their maker is seen to be dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from unhang.facts.shm import Segment, Shm
from unhang.model import frozen

SHM = "/dev/shm"
# A job that is starting makes a segment, and tells its name to its peers afterwards.
YOUNG_S = 60.0

Outcome = Literal["proposed", "left", "removed", "refused"]


@frozen
class Step:
    """One segment. "left" and "refused" say `why`: the former before anybody was asked, the latter when it was tried."""

    path: str
    size_bytes: int
    owner: str
    age_s: float
    outcome: Outcome
    why: str = ""


def propose(shm: Shm) -> tuple[Step, ...]:
    """Every segment of a kind that only trainings make: those that may go, and why the others stay."""
    return tuple(_step(segment, shm.uid) for segment in shm.segments if segment.of_trainings)


def apply(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Remove what was proposed. What has changed in the meantime is refused; never raises for one of them."""
    with _no_signals_of_leases():
        return tuple(_removed(step) if step.outcome == "proposed" else step for step in steps)


def _step(segment: Segment, uid: int) -> Step:
    if segment.mapped_by:
        why = f"in use by {_pids(segment.mapped_by)}"
    elif segment.kept_by:
        why = f"{_pids(segment.kept_by)} may still hand it over, or will remove it"
    elif segment.kept_by is None:
        why = "its maker may live where we cannot see it, and hand it over"
    elif segment.uid != uid:
        why = "it belongs to another user, who can remove it"
    elif segment.age_s < YOUNG_S:
        why = f"younger than {YOUNG_S:.0f} s: a job may be starting"
    else:
        why = ""
    return Step(
        path=f"{SHM}/{segment.name}",
        size_bytes=segment.size_bytes,
        owner=segment.owner or str(segment.uid),
        age_s=segment.age_s,
        outcome="left" if why else "proposed",
        why=why,
    )


def _pids(pids: tuple[int, ...]) -> str:
    shown = ", ".join(str(pid) for pid in pids[:3])
    return f"process {shown}" if len(pids) == 1 else f"processes {shown}{f' and {len(pids) - 3} more' if len(pids) > 3 else ''}"


def _removed(step: Step) -> Step:
    refused = replace(step, outcome="refused")
    try:
        file = os.open(step.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return replace(refused, why="it is gone already")
    except OSError as e:
        return replace(refused, why=f"cannot open it: {e.strerror}")
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return replace(refused, why="it is no file of ours")
        if time.time() - status.st_mtime < YOUNG_S:
            return replace(refused, why="it was written to just now")
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return replace(refused, why=_in_use_or_not_known())
        except OSError as e:
            return replace(refused, why=f"whether a process uses it is not known: the kernel grants no lease ({e.strerror})")
        # From here on nobody can open it without waiting for us.
        named = Path(step.path).lstat()
        if (named.st_dev, named.st_ino) != (status.st_dev, status.st_ino):
            return replace(refused, why="another file has its name now")
        Path(step.path).unlink()
    except OSError as e:
        return replace(refused, why=f"cannot remove it: {e.strerror}")
    finally:
        os.close(file)
    return replace(step, outcome="removed")


def _in_use_or_not_known() -> str:
    return "a process has it open or mapped" if _leases_tell() else "whether a process uses it is not known: this kernel grants no leases in /dev/shm"


def _leases_tell() -> bool:
    """Kernels before 5.3 refuse every write lease on tmpfs: tried on a file of our own that nobody else can have."""
    path = Path(SHM, f"unhang-{os.getpid()}-{threading.get_ident()}")
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    else:
        return True
    finally:
        path.unlink()
        os.close(file)


@contextlib.contextmanager
def _no_signals_of_leases() -> Iterator[None]:
    """Who opens a file on which we hold a lease has SIGIO sent to us, which would end us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGIO, before)
