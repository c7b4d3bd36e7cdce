"""gpu-busy-exclusive: the GPU does not let this process in, because somebody else has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    seen = host.get(gpu.SUBJECT)
    for mode in ("prohibited", "exclusive-process", "exclusive-thread"):
        found = [g for g in seen.gpus if g.compute_mode == mode] if seen is not None else []
        # The server of MPS is the one process that may compute there, for all its clients.
        taken = {g.index: [p for p in g.processes or () if p.kind == "compute" and "nvidia-cuda-mps-server" not in (p.name or "")] for g in found}
        busy = [g for g in found if taken[g.index]]
        for g in busy if mode != "prohibited" else ():
            pids = " ".join(str(p.pid) for p in taken[g.index])
            yield CAUSE.host_finding(
                area="gpu",
                severity="error",
                says=Text(
                    f"{gpu.label(g)} serves one process only ({mode}), and process {pids} has it",
                    f"{gpu.label(g)} 只服务一个进程（{mode}），已被进程 {pids} 占用",
                ),
                leads_to=Text(
                    "CUDA refuses every other process: all CUDA-capable devices are busy or unavailable",
                    "CUDA 拒绝其他所有进程：all CUDA-capable devices are busy or unavailable",
                ),
                evidence=tuple(Evidence(source="NVML", text=f"compute process {p.pid} {p.name or ''}".strip()) for p in taken[g.index]),
                remedies=("who-holds-it", "compute-mode"),
                commands={
                    "who-holds-it": command("ps -o pid,user,etime,args -p {pids:pid,}", pids=pids.split(" ")),
                    "compute-mode": command("sudo nvidia-smi -i {gpu:number} -c DEFAULT", gpu=g.index),
                },
            )
        rest = [g for g in found if g not in busy or mode == "prohibited"]
        if rest:
            closed = mode == "prohibited"
            yield CAUSE.host_finding(
                area="gpu",
                severity="error" if closed else "note",
                says=Text("{gpus}: {how}", "{gpus}：{how}").fill(
                    gpus=gpu.named(g.index for g in rest),
                    how=Text("closed to computing (prohibited)", "禁止计算（prohibited）")
                    if closed
                    else Text(f"one process each ({mode})", f"各只服务一个进程（{mode}）"),
                ),
                leads_to=Text("CUDA refuses every process", "CUDA 拒绝所有进程")
                if closed
                else Text(
                    "a second process of a rank that touches CUDA, such as a loader worker, is refused",
                    "同一 rank 中第二个使用 CUDA 的进程（例如 DataLoader worker）会被拒绝",
                ),
                evidence=(Evidence(source="NVML", text=f"compute mode {mode}"),),
                remedies=("compute-mode",),
                commands={"compute-mode": command("sudo nvidia-smi -i {gpus:number,} -c DEFAULT", gpus=[g.index for g in rest])},
            )


CAUSE = cause("gpu-busy-exclusive", on_host=_on_host)
