"""shm-permission: shared-memory segments may not be created or opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.shm import Shm
    from unhang.facts.snapshot import Snapshot


def _fails(error: str, error_zh: str = "") -> Text:
    makes = Text(
        "NCCL, torch's data loaders and Python's semaphores make files there: each of them fails with {error}",
        "NCCL、torch 的 DataLoader 和 Python 的信号量都要在其中创建文件：每一个都会失败：{error}",
    )
    return makes.fill(error=Text(error, error_zh or error))


_MEMORY = ("tmpfs", "devtmpfs", "ramfs")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import shm

    seen = host.get(shm.SUBJECT)
    if seen is None:
        return
    if seen.present is False:
        yield CAUSE.host_finding(
            area="shm",
            severity="error",
            says=Text("there is no /dev/shm", "没有 /dev/shm"),
            leads_to=_fails("'No such file or directory' or 'Function not implemented'", "'No such file or directory' 或 'Function not implemented'"),
            remedies=("mount-shm",),
        )
        return
    evidence = _evidence(seen)
    if seen.options is not None and "ro" in seen.options:
        yield CAUSE.host_finding(
            area="shm",
            severity="error",
            says=Text("/dev/shm is mounted read-only", "/dev/shm 以只读方式挂载"),
            leads_to=_fails("'Read-only file system'"),
            evidence=evidence,
            remedies=("mount-shm",),
            commands={"mount-shm": command("sudo mount -o remount,rw /dev/shm")} if seen.mounted else None,
        )
    elif seen.mode is not None and not _may_write(seen):
        yield CAUSE.host_finding(
            area="shm",
            severity="error",
            says=Text(
                f"/dev/shm has mode {seen.mode:04o} and belongs to user {seen.owner_uid}: this user ({seen.uid}) may not make files there",
                f"/dev/shm 的权限是 {seen.mode:04o}，属于用户 {seen.owner_uid}：当前用户（{seen.uid}）无权在其中创建文件",
            ),
            leads_to=_fails("'Permission denied'"),
            evidence=evidence,
            remedies=("mode-of-shm",),
            commands={"mode-of-shm": command("sudo chmod 1777 /dev/shm")},
        )
    elif seen.mode is not None and seen.uid == 0 and not seen.mode & 0o002:
        yield CAUSE.host_finding(
            area="shm",
            severity="note",
            says=Text(
                f"/dev/shm has mode {seen.mode:04o}: root may make files there, other users may not",
                f"/dev/shm 的权限是 {seen.mode:04o}：root 可以在其中创建文件，其他用户不行",
            ),
            leads_to=Text("trainings of other users fail with 'Permission denied'", "其他用户的训练会失败：'Permission denied'"),
            evidence=evidence,
            remedies=("mode-of-shm",),
            commands={"mode-of-shm": command("chmod 1777 /dev/shm")},
        )
    if seen.kind is not None and seen.kind not in _MEMORY:
        empty_dir = Text("; it is an emptyDir volume of the pod without `medium: Memory`", "；它是 pod 中没有 `medium: Memory` 的 emptyDir 卷")
        volume = empty_dir if seen.limit_from == "empty-dir" else NOTHING
        yield CAUSE.host_finding(
            area="shm",
            severity="warning",
            says=Text(f"/dev/shm is no tmpfs: it lies on {seen.kind}", f"/dev/shm 不是 tmpfs：它位于 {seen.kind}") + volume,
            leads_to=Text(
                "each batch of a data loader and each segment of NCCL goes to a disk, or is refused with 'Operation not supported'",
                "DataLoader 的每个 batch 和 NCCL 的每个段都写到磁盘，或被拒绝：'Operation not supported'",
            ),
            evidence=evidence,
            remedies=("mount-shm",),
        )


def _may_write(seen: Shm) -> bool:
    """Whether the mode allows it; what a group may do is taken for allowed, since we do not know our groups."""
    assert seen.mode is not None
    return seen.uid == 0 or bool(seen.mode & 0o022) or (seen.uid == seen.owner_uid and bool(seen.mode & 0o200))


def _evidence(seen: Shm) -> tuple[Evidence, ...]:
    mode = () if seen.mode is None else (Evidence(source="/dev/shm", text=f"mode {seen.mode:04o}, owner {seen.owner_uid}"),)
    if seen.kind is None or seen.options is None:
        return mode
    return (*mode, Evidence(source="/proc/mounts", text=f"{seen.kind} {','.join(seen.options)}"))


CAUSE = cause("shm-permission", on_host=_on_host)
