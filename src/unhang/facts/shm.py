"""Shared memory: the room in /dev/shm and who limits it, the segments that stand in it and whose they are.

NCCL, torch's loaders and Gloo use files in /dev/shm. System V segments concern other programs.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import Literal

from unhang.facts import processes, storage
from unhang.facts.host import Host, Space, Subject
from unhang.i18n import NOTHING, Text, msg
from unhang.model import frozen
from unhang.text import size

_OURS = re.compile(r"(?:nccl-|torch_|sem\.|psm|pym-|vader_segment|sm_segment|ucx_shm)")
# Of other semaphores nobody knows: one that is kept while no process has it open is what some programs mean to do. So with psm_, the prefix that
# Python gives every SharedMemory without a name, in whatever program; PSM2's have a 2.
_TRAININGS = re.compile(r"(?:nccl-|torch_|sem\.(?:mp|loky)-|psm2_|pym-|vader_segment|sm_segment|ucx_shm)")
# Who made it, as torch names it. With the file_system strategy a batch that waits in a queue is such a file, and nobody has it open; the manager
# removes it once all who knew the name have ended.
_BY_NAME = re.compile(r"torch_(\d{1,9})_")
_MANAGER = "torch_shm_manag"
_MAX_SEGMENTS = 10_000
_PATIENCE_S = 2.0

# "runtime-default": 64 MiB, Docker's, Podman's and containerd's; "runtime-option": --shm-size; "empty-dir": a volume of a pod; "mount-option": size=;
# "half-of-memory": the kernel's default.
LimitFrom = Literal["runtime-default", "runtime-option", "empty-dir", "mount-option", "half-of-memory"]
RUNTIME_DEFAULT_BYTES = 64 * 1024 * 1024


@frozen
class Segment:
    """A file in /dev/shm of a kind that trainings make, though others may make it, too (`of_trainings` tells).

    `mapped_by` are live processes that have it mapped or open; None where none was seen and not all could be looked at: those of other users, those
    that /proc hides, those outside of our PID namespace, which may share this /dev/shm, and those for which time was too short. `kept_by` are live
    processes that hand it over by its name or will remove it, whether they have it open or not; None where they may be hidden. `owner` is None where
    /etc/passwd does not name the user.
    """

    name: str
    size_bytes: int
    uid: int
    owner: str | None
    mode: int
    age_s: float
    mapped_by: tuple[int, ...] | None
    kept_by: tuple[int, ...] | None = ()

    @property
    def abandoned(self) -> bool | None:
        """Whether no live process has or needs it; None where that cannot be told, and a kernel that is asked for the file could tell."""
        if self.mapped_by or self.kept_by or self.kept_by is None:
            return False
        return None if self.mapped_by is None else True

    @property
    def of_trainings(self) -> bool:
        """Whether only trainings make such files, and none outlives its makers on purpose."""
        return _TRAININGS.match(self.name) is not None


@frozen
class Shm:
    """`space` of /dev/shm, None where it is not there or cannot be asked. `present` is None where that cannot be told.

    `kind` and `options` are those of the file system that it lies on; it is `mounted` where that one stands at /dev/shm itself. `limit_from` says
    who set its size, None where that cannot be told. `mode` and `owner_uid` are those of the directory, `uid` is who looked.
    """

    present: bool | None
    space: Space | None
    mounted: bool
    kind: str | None
    options: tuple[str, ...] | None
    limit_from: LimitFrom | None
    mode: int | None
    owner_uid: int | None
    segments: tuple[Segment, ...]
    uid: int
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Shm:
    """Raises OSError where there is no /dev/shm and no /proc to say so."""
    unread: list[str] = []
    mounts = storage.mounts(host)
    point = storage.mount_of("/dev/shm", mounts)
    mount = mounts[point] if point is not None else None
    space: Space | None = None
    status: os.stat_result | None = None
    present: bool | None = True
    try:
        status = host.path("/dev/shm").stat()
        space = host.space("/dev/shm")
    except FileNotFoundError:
        if status is None:
            present = False
        else:
            unread.append("the space of /dev/shm")
    except OSError as e:
        present = None if status is None else True
        unread.append(f"/dev/shm: {e.strerror or e}")
    return Shm(
        present=present,
        space=space,
        mounted=point == "/dev/shm",
        kind=mount.kind if mount else None,
        options=mount.options if mount else None,
        limit_from=_limit_from(host, mount, space) if status is not None and mount is not None and point == "/dev/shm" else None,
        mode=stat.S_IMODE(status.st_mode) if status is not None else None,
        owner_uid=status.st_uid if status is not None else None,
        segments=_segments(host, unread) if status is not None else (),
        uid=_uid(host),
        unread=tuple(unread),
    )


def _uid(host: Host) -> int:
    return os.geteuid() if host.is_live else 0


def _limit_from(host: Host, mount: storage.Mount, space: Space | None) -> LimitFrom | None:
    if mount.kind != "tmpfs":
        return "empty-dir" if "kubernetes.io~empty-dir" in _root_of_mount(host) else None
    if not any(option.startswith("size=") for option in mount.options):
        return "half-of-memory"
    # Container runtimes name the source of the mount so; a volume of a pod and an administrator's mount have another.
    if mount.device == "shm":
        return "runtime-default" if space is not None and space.total_bytes == RUNTIME_DEFAULT_BYTES else "runtime-option"
    return "empty-dir" if "KUBERNETES_SERVICE_HOST" in host.environ else "mount-option"


def _root_of_mount(host: Host) -> str:
    """Which directory of its file system stands at /dev/shm: of a volume on disk that tells whose it is."""
    rows = [line.split() for line in host.lines("/proc/self/mountinfo")]
    return next((row[3] for row in reversed(rows) if len(row) > 4 and row[4] == "/dev/shm"), "")


def _segments(host: Host, unread: list[str]) -> tuple[Segment, ...]:
    kept: list[tuple[str, os.stat_result]] = []
    try:
        names = host.names("/dev/shm")
    except OSError as e:
        unread.append(f"what stands in /dev/shm: {e.strerror or e}")
        return ()
    for name in names:
        try:
            status = host.path(f"/dev/shm/{name}").lstat()
        except OSError:
            # Gone since.
            continue
        if _OURS.match(name) and stat.S_ISREG(status.st_mode) and len(kept) < _MAX_SEGMENTS:
            kept.append((name, status))
    users, missed = _users(host) if kept else ({}, [])
    hidden = _hidden(host) if kept else ""
    if hidden and any(_in_maps(name) not in users for name, _ in kept):
        missed.append(hidden)
    unread += [f"whether {processes} have segments mapped" for processes in missed]
    by_name = any(_BY_NAME.match(name) for name, _ in kept)
    managers = tuple(pid for pid, name in processes.names(host).items() if name == _MANAGER) if by_name else ()
    names_of = _owners(host) if kept else {}
    now = host.now_s()
    return tuple(
        Segment(
            name=name,
            size_bytes=s.st_size,
            uid=s.st_uid,
            owner=names_of.get(s.st_uid),
            mode=stat.S_IMODE(s.st_mode),
            age_s=round(max(0.0, now - s.st_mtime), 1),
            mapped_by=users.get(_in_maps(name)) or (None if missed else ()),
            kept_by=_keepers(host, name, managers, hidden=bool(hidden)),
        )
        for name, s in kept
    )


def _hidden(host: Host) -> str:
    """The processes that /proc does not even list; "" where it lists all."""
    try:
        if host.link("/proc/self/ns/pid") != processes.FIRST_PID_NAMESPACE:
            return "processes outside of this container"
    except OSError:
        return "processes outside of this container"
    # Mounted with hidepid=2 it lists our own only. Init and kthreadd (2) are never ours unless we see all.
    return "" if host.path("/proc/1").exists() and host.path("/proc/2").exists() else "processes that /proc hides"


def _owners(host: Host) -> dict[int, str]:
    rows = [line.split(":") for line in host.lines("/etc/passwd")]
    return {int(row[2]): row[0] for row in reversed(rows) if len(row) > 2 and row[2].isdecimal()}


def _users(host: Host) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Processes that have each file of /dev/shm (as `_in_maps` writes it) mapped or open, and, in words, those that could not be looked into."""
    users: dict[str, set[int]] = {}
    blind: list[str] = []
    late = False
    until = time.monotonic() + _PATIENCE_S
    for pid in host.names("/proc"):
        if not pid.isdigit():
            continue
        if late := time.monotonic() > until:
            break
        try:
            maps = host.read(f"/proc/{pid}/maps")
            texts = [line.partition("/dev/shm/")[2] for line in maps.splitlines() if "/dev/shm/" in line] if "/dev/shm/" in maps else []
            texts += [_in_maps(target[len("/dev/shm/") :]) for target in _open_files(host, pid) if target.startswith("/dev/shm/")]
        except (FileNotFoundError, ProcessLookupError):
            # Ended since.
            continue
        except OSError:
            blind.append(pid)
            continue
        for text in texts:
            if not text.endswith(" (deleted)"):
                users.setdefault(text, set()).add(int(pid))
    missed = [f"{_some(blind)} that may not be looked into{'' if _uid(host) == 0 else ' without root'}"] if blind else []
    if late:
        missed.append(f"processes that {_PATIENCE_S:g} s were too short for")
    return {name: tuple(sorted(pids)) for name, pids in users.items()}, missed


def _some(pids: list[str]) -> str:
    return f"processes ({', '.join(pids[:3])}{f' and {len(pids) - 3} more' if len(pids) > 3 else ''})"


def _keepers(host: Host, name: str, managers: tuple[int, ...], *, hidden: bool) -> tuple[int, ...] | None:
    if (made := _BY_NAME.match(name)) is None:
        return ()
    maker = int(made[1])
    found = (maker, *managers) if host.path(f"/proc/{maker}").exists() else managers
    return None if hidden and not found else found


def _in_maps(name: str) -> str:
    """A name as it stands in the text of /proc/PID/maps once that has been read."""
    return name.replace("\n", "\\012").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _open_files(host: Host, pid: str) -> Iterator[str]:
    for fd in host.names(f"/proc/{pid}/fd"):
        # Those that are closed while we look are no longer open.
        with contextlib.suppress(FileNotFoundError):
            yield host.link(f"/proc/{pid}/fd/{fd}")


_FROM = {
    "runtime-default": msg(" (what a container gets by default)"),
    "runtime-option": msg(" (set for this container)"),
    "empty-dir": msg(" (an emptyDir volume of the pod)"),
    "mount-option": msg(" (set when it was mounted)"),
    "half-of-memory": msg(" (half of the memory, the kernel's default)"),
}


def _summary(shm: Shm) -> Text:
    if shm.present is False:
        return msg("there is no /dev/shm")
    segments = sum(s.of_trainings for s in shm.segments)
    count = (
        msg("{n} {segments} of trainings", n=segments, segments="segment" if segments == 1 else "segments")
        if segments
        else msg("no segments of trainings")
    )
    if shm.space is None:
        return count
    used = shm.space.total_bytes - shm.space.free_bytes
    return msg(
        "{all}{set}, {percent} % used; {count}",
        all=size(shm.space.total_bytes),
        set=_FROM.get(shm.limit_from or "", NOTHING),
        percent=f"{100 * used / max(1, shm.space.total_bytes):.0f}",
        count=count,
    )


SUBJECT = Subject(
    id="shm",
    title=msg("shared memory", "title"),
    facts=Shm,
    collect=collect,
    summary=_summary,
    volatile=("free_bytes", "free_inodes", "age_s", "mapped_by", "kept_by"),
)
