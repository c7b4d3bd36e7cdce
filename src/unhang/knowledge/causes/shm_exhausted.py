"""shm-exhausted: /dev/shm is full or too small."""

from __future__ import annotations

from unhang.knowledge.cause import STANDINGS, cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.knowledge.words import NOTHING, Text, msg
from unhang.text import OF_BYTES

CAUSE = cause("shm-exhausted")

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


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    if not hits:
        return None
    best = min(hits, key=lambda h: STANDINGS.index(h.signature.standing))
    if "size_bytes" not in best.groups:
        return CAUSE.of_hits(hits, view)
    size = int(best.groups["size_bytes"])
    segments = {h.groups["path"] for h in hits if "path" in h.groups}
    many = msg("; {n} segments failed so", n=len(segments)) if len(segments) > 1 else NOTHING
    mib = f"{size / _MIB:.1f} MiB"
    values: dict[str, Text | str] = {**best.groups, "size_bytes": msg("{mib} ({size}", mib=mib, size=size)}
    says = msg(best.signature.says, **values)
    says = says.edited(OF_BYTES, msg(" bytes)"))
    return CAUSE.of_hits(hits, view, says=says + many)


def on_host(host: HostView) -> Findings:
    seen = host.shm
    if seen.space is None:
        return
    total, free = seen.space.total_bytes, seen.space.free_bytes
    here = _FOR.get(host.kind, ("enlarge",))
    options = f"; mounted {','.join(seen.options)}" if seen.options is not None and seen.mounted else ""
    ours = any(s.of_trainings and s.abandoned is not False for s in seen.segments)
    if total <= _SMALL:
        yield Found(
            "small",
            severity="error" if total <= _DOCKERS else "warning",
            remedies=(*here, "fewer-workers"),
            default=seen.limit_from or ("runtime-default" if total == _DOCKERS else ""),
            seen=seen,
            options=options,
        )
    elif free < total // 10 or free < _DOCKERS:
        left, unseen = (sum(s.size_bytes for s in seen.segments if s.abandoned is gone) for gone in (True, None))
        yield Found(
            "full",
            severity="error" if free < _DOCKERS else "warning",
            remedies=("clear-leftovers", *here),
            ours=ours,
            dead="left" if left else "unseen" if unseen else "",
            left=left,
            unseen=unseen,
            seen=seen,
            options=options,
        )
    if seen.space.inodes and seen.space.free_inodes < 1000:
        yield Found("no-inodes", ours=ours, seen=seen, options=options)
