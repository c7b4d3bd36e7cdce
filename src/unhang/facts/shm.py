"""Shared memory: the room in /dev/shm, the segments that stand in it and whose they are, and System V's limits and segments.

NCCL, torch's loaders and Gloo use files in /dev/shm. System V segments concern other programs.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from unhang.facts.host import Host, Space
from unhang.facts.subject import Subject
from unhang.facts.units import size

_OURS = re.compile(r"(?:nccl-|torch_|sem\.|psm|wnsm_|vader_segment|ucx_shm)")
_MAX_SEGMENTS = 10_000


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A file in /dev/shm of a kind that trainings make.

    `mapped_by` are live processes that have it mapped or open; None where none was seen and not all could be looked at.
    """

    name: str
    size_bytes: int
    uid: int
    mode: int
    age_s: float
    mapped_by: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class SystemV:
    """Segments and limits of System V shared memory (shmmax in bytes, shmall in pages)."""

    segments: int
    size_bytes: int
    shmmni: int
    shmmax: int
    shmall: int


@dataclass(frozen=True, kw_only=True)
class Shm:
    """`space` of /dev/shm, None where it is not there or cannot be asked; `options` as mounted, None where nothing is mounted on it."""

    space: Space | None
    kind: str | None
    options: tuple[str, ...] | None
    mode: int | None
    segments: tuple[Segment, ...]
    other_files: int
    other_bytes: int
    system_v: SystemV | None
    uid: int
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Shm:
    """Raises OSError where there is no /dev/shm and no /proc to say so."""
    unread: list[str] = []
    mount = _mount(host)
    space: Space | None = None
    mode: int | None = None
    try:
        mode = stat.S_IMODE(host.path("/dev/shm").stat().st_mode)
        space = host.space("/dev/shm")
    except FileNotFoundError:
        if host.path("/dev/shm").exists():
            unread.append("the space of /dev/shm")
    except OSError as e:
        unread.append(f"/dev/shm: {e.strerror or e}")
    segments, files, size = _segments(host, unread) if mode is not None else ((), 0, 0)
    return Shm(
        space=space,
        kind=mount[0] if mount else None,
        options=mount[1] if mount else None,
        mode=mode,
        segments=segments,
        other_files=files,
        other_bytes=size,
        system_v=_system_v(host, unread),
        uid=os.geteuid() if host.is_live else 0,
        unread=tuple(unread),
    )


def _mount(host: Host) -> tuple[str, tuple[str, ...]] | None:
    found = None
    for line in host.read("/proc/mounts").splitlines():
        fields = line.split()
        # The last one covers those before.
        if len(fields) >= 4 and fields[1] == "/dev/shm":
            found = fields[2], tuple(fields[3].split(","))
    return found


def _segments(host: Host, unread: list[str]) -> tuple[tuple[Segment, ...], int, int]:
    kept: list[tuple[str, os.stat_result]] = []
    files = size = 0
    try:
        names = host.names("/dev/shm")
    except OSError as e:
        unread.append(f"what stands in /dev/shm: {e.strerror or e}")
        return (), 0, 0
    for name in names:
        try:
            status = host.path(f"/dev/shm/{name}").lstat()
        except OSError:
            # Gone since.
            continue
        if _OURS.match(name) and stat.S_ISREG(status.st_mode) and len(kept) < _MAX_SEGMENTS:
            kept.append((name, status))
        else:
            files += 1
            size += status.st_size
    users, blind = _users(host) if kept else ({}, False)
    if blind:
        unread.append("which processes of other users have segments mapped (that needs root)")
    now = host.now_s()
    segments = (
        Segment(
            name=name,
            size_bytes=s.st_size,
            uid=s.st_uid,
            mode=stat.S_IMODE(s.st_mode),
            age_s=round(max(0.0, now - s.st_mtime), 1),
            mapped_by=users.get(name) or (None if blind else ()),
        )
        for name, s in kept
    )
    return tuple(segments), files, size


def _users(host: Host) -> tuple[dict[str, tuple[int, ...]], bool]:
    """Processes that have each file of /dev/shm mapped or open, and whether some process could not be looked into."""
    users: dict[str, set[int]] = {}
    blind = False
    for pid in host.names("/proc"):
        if not pid.isdigit():
            continue
        try:
            texts = [line.partition("/dev/shm/")[2] for line in host.read(f"/proc/{pid}/maps").splitlines() if "/dev/shm/" in line]
            texts += [target[len("/dev/shm/") :] for target in _open_files(host, pid) if target.startswith("/dev/shm/")]
        except (FileNotFoundError, ProcessLookupError):
            # Ended since.
            continue
        except OSError:
            blind = True
            continue
        for text in texts:
            if not text.endswith(" (deleted)"):
                users.setdefault(text, set()).add(int(pid))
    return {name: tuple(sorted(pids)) for name, pids in users.items()}, blind


def _open_files(host: Host, pid: str) -> Iterator[str]:
    for fd in host.names(f"/proc/{pid}/fd"):
        # Those that are closed while we look are no longer open.
        with contextlib.suppress(FileNotFoundError):
            yield host.link(f"/proc/{pid}/fd/{fd}")


def _system_v(host: Host, unread: list[str]) -> SystemV | None:
    try:
        limits = [int(host.read(f"/proc/sys/kernel/{name}")) for name in ("shmmni", "shmmax", "shmall")]
        rows = [line.split() for line in host.read("/proc/sysvipc/shm").splitlines()[1:]]
    except (OSError, ValueError):
        unread.append("System V shared memory")
        return None
    return SystemV(segments=len(rows), size_bytes=sum(int(r[3]) for r in rows if len(r) > 3), shmmni=limits[0], shmmax=limits[1], shmall=limits[2])


def _summary(shm: Shm) -> str:
    if shm.mode is None:
        return "there is no /dev/shm"
    count = f"{len(shm.segments)} segments of trainings" if shm.segments else "no segments of trainings"
    if shm.space is None:
        return count
    used = shm.space.total_bytes - shm.space.free_bytes
    return f"{size(shm.space.total_bytes)}, {100 * used / max(1, shm.space.total_bytes):.0f} % used; {count}"


SUBJECT = Subject(id="shm", title="shared memory", title_zh="共享内存", facts=Shm, collect=collect, summary=_summary)
