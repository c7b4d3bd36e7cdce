"""gpu-busy-exclusive: the GPU does not let this process in, because somebody else has it."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView


def on_host(host: HostView) -> Findings:

    seen = host.gpu
    for mode in ("prohibited", "exclusive-process", "exclusive-thread"):
        found = [g for g in seen.gpus if g.compute_mode == mode]
        # The server of MPS is the one process that may compute there, for all its clients.
        taken = {g.index: [p for p in g.processes or () if p.kind == "compute" and "nvidia-cuda-mps-server" not in (p.name or "")] for g in found}
        busy = [g for g in found if taken[g.index]]
        for g in busy if mode != "prohibited" else ():
            pids = [p.pid for p in taken[g.index]]
            yield Found(
                "taken",
                g=g,
                mode=mode,
                pids=pids,
                shown=" ".join(map(str, pids)),
                each=[f"compute process {p.pid} {p.name or ''}".strip() for p in taken[g.index]],
            )
        rest = [g for g in found if g not in busy or mode == "prohibited"]
        if rest:
            yield Found("closed" if mode == "prohibited" else "one-process", rest=rest, mode=mode, index=[g.index for g in rest])
