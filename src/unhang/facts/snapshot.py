"""The machine as one JSON document: what a verdict may need to know of it later, elsewhere."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from dataclasses import dataclass

from unhang.facts import memory
from unhang.facts.host import Host

SNAPSHOT_SCHEMA = "unhang/host/1"


@dataclass(frozen=True, kw_only=True)
class Filesystem:
    """Space of one place that a training needs, in bytes."""

    path: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One machine at one moment. A part that could not be read is None and named in `unread`."""

    schema: str = SNAPSHOT_SCHEMA
    host: str
    kernel: str
    machine: str
    cpus: int
    memory: memory.Memory | None
    filesystems: tuple[Filesystem, ...]
    unread: tuple[str, ...]


def take(host: Host, *, places: tuple[str, ...] = ("/dev/shm", "/tmp")) -> Snapshot:
    """Look at the machine; never raises."""
    unread: list[str] = []
    mem: memory.Memory | None = None
    try:
        mem = memory.collect(host)
    except (OSError, ValueError) as e:
        unread.append(f"memory: {e}")
    filesystems = []
    for place in places:
        try:
            usage = shutil.disk_usage(host.path(place))
            filesystems.append(Filesystem(path=place, total_bytes=usage.total, free_bytes=usage.free))
        except OSError as e:
            unread.append(f"{place}: {e.strerror or e}")
    return Snapshot(
        host=socket.gethostname(),
        kernel=platform.release(),
        machine=platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        memory=mem,
        filesystems=tuple(filesystems),
        unread=tuple(unread),
    )
