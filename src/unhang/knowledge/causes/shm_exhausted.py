"""shm-exhausted: /dev/shm is full or too small."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import STANDINGS, LogView, cause, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

_MIB = 1024 * 1024
_DOCKERS = 64 * _MIB
# NCCL for 8 GPUs with a handful of loader workers needs more than this.
_SMALL = 1024 * _MIB
_FOR = {
    "docker": ("docker-shm-size", "ipc-host"),
    "podman": ("docker-shm-size", "ipc-host"),
    "container": ("docker-shm-size", "ipc-host"),
    "kubernetes": ("kubernetes-memory-volume",),
}

_SET_BY = {
    "runtime-default": Text(", what a container gets unless somebody asks for more", "，这是容器的默认值"),
    "runtime-option": Text(", as this container was told", "，是此容器的启动参数指定的"),
    "empty-dir": Text(", the size of the pod's emptyDir volume", "，即 pod 的 emptyDir 卷的大小"),
    "mount-option": Text(", the size that it was mounted with", "，是挂载时指定的大小"),
    "half-of-memory": Text(", half of the memory", "，即内存的一半"),
}


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    if not hits:
        return None
    best = min(hits, key=lambda h: STANDINGS.index(h.signature.standing))
    if "size_bytes" not in best.groups:
        return CAUSE.of_hits(hits, view)
    size = int(best.groups["size_bytes"])
    segments = {h.groups["path"] for h in hits if "path" in h.groups}
    many = Text("; {n} segments failed so", "；共有 {n} 个段这样失败").fill(n=len(segments)) if len(segments) > 1 else NOTHING
    mib = f"{size / _MIB:.1f} MiB"
    values: dict[str, Text | str] = {**best.groups, "size_bytes": Text(f"{mib} ({size}", f"{mib}（{size}")}
    says = Text(best.signature.says, best.signature.says_zh).fill(**values)
    says = Text(says.en.replace(" bytes", " bytes)", 1), says.zh.replace(" 字节", " 字节）", 1))
    return CAUSE.of_hits(hits, view, says=says + many)


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, shm
    from unhang.facts.units import size

    seen = host.get(shm.SUBJECT)
    if seen is None or seen.space is None:
        return
    total, free = seen.space.total_bytes, seen.space.free_bytes
    here = _FOR.get(container.kind(host), ("enlarge",))
    options = f"; mounted {','.join(seen.options)}" if seen.options is not None and seen.mounted else ""
    evidence = (Evidence(source="/dev/shm", text=f"{size(total)} in all, {size(free)} free{options}"),)
    commands = (
        {"clear-leftovers": command("unhang doctor --fix --only shm")}
        if any(s.of_trainings and s.abandoned is not False for s in seen.segments)
        else None
    )
    if total <= _SMALL:
        default = _SET_BY.get(seen.limit_from or ("runtime-default" if total == _DOCKERS else ""), NOTHING)
        yield CAUSE.host_finding(
            area="shm",
            severity="error" if total <= _DOCKERS else "warning",
            says=Text(f"/dev/shm holds {size(total)} in all", f"/dev/shm 总共只有 {size(total)}") + default,
            leads_to=Text(
                "NCCL takes several MiB for each pair of GPUs and loader workers put whole batches there: a failed start, or a bus error later",
                "NCCL 为每对 GPU 占用几 MiB，DataLoader worker 把整个 batch 放在那里：启动失败，或之后出现总线错误",
            ),
            evidence=evidence,
            remedies=(*here, "fewer-workers"),
        )
    elif free < total // 10 or free < _DOCKERS:
        left = sum(s.size_bytes for s in seen.segments if s.abandoned)
        unseen = sum(s.size_bytes for s in seen.segments if s.abandoned is None)
        dead = NOTHING
        if left:
            dead = Text("; {size} of it belongs to no live process", "；其中 {size} 不属于任何存活的进程").fill(size=size(left))
        elif unseen:
            dead = Text("; {size} of it to no process seen here", "；其中 {size} 不属于这里看得到的进程").fill(size=size(unseen))
        yield CAUSE.host_finding(
            area="shm",
            severity="error" if free < _DOCKERS else "warning",
            says=Text("/dev/shm is full: {free} of {total} free{dead}", "/dev/shm 已满：{total} 中只剩 {free}{dead}").fill(
                free=size(free), total=size(total), dead=dead
            ),
            leads_to=Text(
                "the next segment that NCCL or a loader worker asks for is refused, or writing to it ends the process with a bus error",
                "NCCL 或 DataLoader worker 申请的下一个段会被拒绝，或写入时进程因总线错误结束",
            ),
            evidence=evidence,
            remedies=("clear-leftovers", *here),
            commands=commands,
        )
    if seen.space.inodes and seen.space.free_inodes < 1000:
        yield CAUSE.host_finding(
            area="shm",
            severity="error",
            says=Text(
                "/dev/shm has {free} of {all} inodes free: room, but not for one more file",
                "/dev/shm 的 {all} 个 inode 只剩 {free} 个：有空间，却放不下新文件",
            ).fill(free=seen.space.free_inodes, all=seen.space.inodes),
            leads_to=Text(
                "new segments are refused with 'No space left on device' although df shows room",
                "虽然 df 显示还有空间，新的段仍被拒绝：'No space left on device'",
            ),
            evidence=evidence,
            remedies=("clear-leftovers",),
            commands=commands,
        )


CAUSE = cause("shm-exhausted", in_logs=_in_logs, on_host=_on_host)
