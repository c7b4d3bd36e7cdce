"""gdr-peer-memory: GPUDirect RDMA cannot register or reach GPU memory."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView


def on_host(host: HostView) -> Findings:
    from unhang.facts import infiniband

    seen = host.infiniband
    if not seen.gpus or seen.peer_memory is not None or seen.dmabuf is not False or not infiniband.active(seen):
        return
    # GPUDirect RDMA is for data centre and professional GPUs.
    if all("GeForce" in model for model in seen.gpus):
        return
    yield Found("no-peer-memory", seen=seen, closed="Open Kernel Module" not in (seen.gpu_driver or ""))
