"""shm-permission: shared-memory segments may not be created or opened."""

from __future__ import annotations

from unhang.facts.shm import Shm
from unhang.knowledge.judge import Findings, Found, HostView
from unhang.model import Evidence

_MEMORY = ("tmpfs", "devtmpfs", "ramfs")


def on_host(host: HostView) -> Findings:

    seen = host.shm
    if seen.present is False:
        yield Found("absent")
        return
    evidence = _evidence(seen)
    if seen.options is not None and "ro" in seen.options:
        yield Found("read-only", evidence=evidence, by="here" if seen.mounted else "")
    elif seen.mode is not None and not _may_write(seen):
        yield Found("not-permitted", evidence=evidence, seen=seen)
    elif seen.mode is not None and seen.uid == 0 and not seen.mode & 0o002:
        yield Found("root-only", evidence=evidence, seen=seen)
    if seen.kind is not None and seen.kind not in _MEMORY:
        yield Found("no-tmpfs", evidence=evidence, seen=seen, volume="it-is-an-emptydir" if seen.limit_from == "empty-dir" else "")


def _may_write(seen: Shm) -> bool:
    """Whether the mode allows it; what a group may do is taken for allowed, since we do not know our groups."""
    assert seen.mode is not None
    return seen.uid == 0 or bool(seen.mode & 0o022) or (seen.uid == seen.owner_uid and bool(seen.mode & 0o200))


def _evidence(seen: Shm) -> tuple[Evidence, ...]:
    mode = () if seen.mode is None else (Evidence(source="/dev/shm", text=f"mode {seen.mode:04o}, owner {seen.owner_uid}"),)
    if seen.kind is None or seen.options is None:
        return mode
    return (*mode, Evidence(source="/proc/mounts", text=f"{seen.kind} {','.join(seen.options)}"))
