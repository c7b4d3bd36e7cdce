"""device-mapping: a rank asks for a GPU that it does not have, or works on another one than its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Command, LogView, cause, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, Finding, HostFinding, Severity

if TYPE_CHECKING:
    from unhang.facts.gpu import Gpus
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit

_AGAIN: Mapping[str, Command | None] = MappingProxyType(
    {
        "podman": command("podman restart CONTAINER"),
        "kubernetes": command("kubectl delete pod POD"),
        "apptainer": command("apptainer exec --nv IMAGE nvidia-smi -L"),
    }
)


# A log that ends so soon behind a line of somebody who still asks Ray for more: nothing more came, as it seems.
_LAST_LINES = 2
# A barrier over NCCL is an all-reduce of one element, and here one of the first collectives.
_FIRST_COLLECTIVES = 3
# What the others raise when a collective does not end.
_CONSEQUENCES = frozenset(("DistBackendError", "DistNetworkError", "DistStoreError", "ChildFailedError", "SignalException"))


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    real = [h for h in hits if "guessed" not in h.groups]
    if real:
        gpus = _gpus(real, view)
        start = command("nvidia-smi -L; torchrun --standalone --nproc-per-node {gpus:number} train.py", gpus=gpus)
        last = max(real, key=lambda h: h.place)
        ended = all(h.signature.standing == "possible" for h in real) and view.lines.get(last.source, 0) - (last.line or 0) <= _LAST_LINES
        return CAUSE.of_hits(real, view, standing="likely" if ended else None, commands={"fewer-ranks": start} if gpus else None)
    return CAUSE.of_hits(hits, view) if hits and _hung_at_a_barrier(view) else None


def _gpus(hits: Sequence[Hit], view: LogView) -> int | None:
    """How many GPUs a host has, where lines tell: by number, or because the ranks from that one on all asked for one that is not there."""
    told = next((count for h in hits if (count := h.groups.get("count", "")).isdigit() and "wanted" in h.groups), None)
    if told is not None:
        return int(told) or None
    beyond = {h.rank for h in hits if h.rank is not None and "ordinal" in h.text}
    first = min(beyond, default=0)
    one_host = len({h.host for h in hits if h.host is not None}) < 2
    return first if first and one_host and view.world_size is not None and beyond == set(range(first, view.world_size)) else None


def _hung_at_a_barrier(view: LogView) -> bool:
    """Several ranks hang in one and the same early barrier, or in the start of its communicator, and nothing else is in evidence.

    Healthy jobs print torch's guess too, and a lone watchdog tells that somebody else is missing.
    """
    if any(h.signature.role == "root" for cause, hits in view.hits.items() if cause != CAUSE.id for h in hits):
        return False
    if any(t.type.rpartition(".")[2] not in _CONSEQUENCES for t in view.tracebacks):
        return False
    if view.timeouts:
        calls = {(t.group, t.seq, t.op, t.numel_in) for t in view.timeouts}
        barriers = all(
            t.seq is not None and t.seq <= _FIRST_COLLECTIVES and (t.op == "BARRIER" or (t.op == "ALLREDUCE" and t.numel_in == 1))
            for t in view.timeouts
        )
        return barriers and len(calls) == 1 and len({t.at.rank for t in view.timeouts}) > 1
    return len({i.rank for i in view.nccl.inits if not i.completed}) > 1


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, gpu

    seen = host.get(gpu.SUBJECT)
    if seen is None:
        return
    yield from _visible(seen)
    kind = container.kind(host)
    confined = kind not in ("bare", "slurm", "systemd", "wsl")
    around = host.get(container.SUBJECT)
    closed = [d.path for d in around.devices if d.path.startswith("/dev/nvidia") and not d.usable] if around is not None else []
    # In a container those are the container's own affair (container-capability).
    closed = [path for path in closed if not confined and re.fullmatch(r"/dev/nvidia(?:ctl|-uvm|\d+)", path)]
    if closed:
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text("{paths} may not be opened by this user", "当前用户无权打开 {paths}").fill(paths=", ".join(closed[:4])),
            leads_to=Text("CUDA finds no GPU, or does not start", "CUDA 找不到 GPU，或无法启动"),
            evidence=(Evidence(source="/dev", text=f"no right to read and write {', '.join(closed[:4])}"),),
            remedies=("device-files",),
        )
    # The device control group refuses what the file's own rights allow.
    if confined and seen.driver and seen.nvml_error in ("Unknown Error", "Insufficient Permissions"):
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text(f"the container has lost its GPUs: NVML says {seen.nvml_error}", f"容器已经失去 GPU：NVML 报告 {seen.nvml_error}"),
            leads_to=Text("CUDA does not start in new processes; those that run go on", "新进程里 CUDA 无法启动；已在运行的不受影响"),
            evidence=(Evidence(source="NVML", text=seen.nvml_error),),
            remedies=("start-the-container-again",),
            commands={"start-the-container-again": _AGAIN[kind]} if kind in _AGAIN else None,
        )


def _visible(seen: Gpus) -> Iterable[HostFinding]:
    """CUDA takes the GPUs of CUDA_VISIBLE_DEVICES up to the first that does not exist."""
    if seen.visible is None or seen.nvml_error is not None or not seen.gpus:
        return
    number = len(seen.gpus)

    def found(says: Text, leads_to: Text, severity: Severity) -> HostFinding:
        return CAUSE.host_finding(
            area="gpu",
            severity=severity,
            says=Text(f"CUDA_VISIBLE_DEVICES={seen.visible}: ", f"CUDA_VISIBLE_DEVICES={seen.visible}：") + says,
            leads_to=leads_to,
            evidence=(Evidence(source="environment", text=f"CUDA_VISIBLE_DEVICES={seen.visible}"),),
            remedies=("visible-before-start",) if severity != "note" else ("numbers-not-uuids",),
            commands={"visible-before-start": command("unset CUDA_VISIBLE_DEVICES")},
        )

    named = [n.strip() for n in seen.visible.split(",") if n.strip()]
    if not named or named[0] in ("-1", "NoDevFiles"):
        hides = Text(f"it hides all {number} GPUs", f"它隐藏了全部 {number} 块 GPU")
        yield found(hides, Text("a training started from here sees no GPU", "从这里启动的训练看不到任何 GPU"), "warning")
        return
    if any(n.startswith("MIG-") for n in named) or any(g.mig for g in seen.gpus):
        return
    uuids = [g.uuid for g in seen.gpus]
    for place, name in enumerate(named):
        by_uuid = name.startswith("GPU-")
        if by_uuid and None in uuids:
            return
        if (by_uuid and not any((u or "").startswith(name) for u in uuids)) or (name.isdecimal() and int(name) >= number) or name.startswith("-"):
            says = Text(
                f"there is no GPU {name} among the {number} here; CUDA shows the {place} before it",
                f"本机 {number} 块 GPU 中没有 {name}；CUDA 只显示它之前的 {place} 块",
            )
            leads_to = Text("ranks that take a later one fail with 'invalid device ordinal'", "使用其后各块的 rank 会报 'invalid device ordinal'")
            yield found(says, leads_to, "error")
            return
    if named[0].startswith("GPU-"):
        named_so = Text("GPUs are named by UUID", "用 UUID 指定 GPU")
        yield found(named_so, Text("frameworks that expect numbers there stop with a ValueError", "要求写编号的框架会以 ValueError 停止"), "note")


CAUSE = cause("device-mapping", in_logs=_in_logs, on_host=_on_host)
