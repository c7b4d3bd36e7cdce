"""gdr-peer-memory: GPUDirect RDMA cannot register or reach GPU memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import infiniband, network

    seen = host.get(infiniband.SUBJECT)
    if seen is None or not seen.gpus or seen.peer_memory is not None or seen.dmabuf is not False or not infiniband.active(seen):
        return
    # GPUDirect RDMA is for data centre and professional GPUs.
    if all("GeForce" in model for model in seen.gpus):
        return
    closed = "Open Kernel Module" not in (seen.gpu_driver or "")
    old = Text(f"kernel {seen.kernel} is older than 5.12", f"内核 {seen.kernel} 早于 5.12")
    why = Text("the GPU driver is the closed one", "GPU 驱动是闭源版") if closed else old
    yield CAUSE.host_finding(
        area="infiniband",
        severity="warning" if network.several_hosts(host) else "note",
        says=Text(
            "adapters cannot reach GPU memory: nvidia_peermem is not loaded, and there is no DMA-BUF ({why})",
            "网卡无法直接访问 GPU 显存：nvidia_peermem 没有加载，也没有 DMA-BUF（{why}）",
        ).fill(why=why),
        leads_to=Text(
            "traffic between hosts takes the detour through host memory: it works, at a half or a third of the speed",
            "主机间的流量绕经主机内存：能用，但速度只有一半或三分之一",
        ),
        evidence=(Evidence(source="/sys/module", text="nvidia_peermem and nv_peer_mem are not there"),),
        remedies=("load-the-module", "dmabuf-instead"),
    )


CAUSE = cause("gdr-peer-memory", on_host=_on_host)
