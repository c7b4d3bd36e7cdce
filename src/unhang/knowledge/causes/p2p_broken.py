"""p2p-broken: direct copies between GPUs hang, fail or damage data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import LogView, cause, command
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.model import Evidence, Finding, HostFinding

if TYPE_CHECKING:
    from unhang.facts.gpu import Gpus, Pair
    from unhang.facts.pcie import Pcie
    from unhang.facts.snapshot import Snapshot

# The first collectives of a job: broadcasts of parameters and checks of shapes, before anything of the training itself runs.
_FIRST_COLLECTIVES = 3
_ADVICE = "from kernel command line which can lead to"


def _in_logs(view: LogView) -> Finding | None:
    # RCCL prints its advice on every machine without the option, in healthy jobs too: it counts only where something hung.
    hung = bool(view.timeouts or view.statuses or view.hits_of("collective-timeout"))
    hits = [h for h in view.hits_of(CAUSE.id) if hung or _ADVICE not in h.text]
    return CAUSE.of_hits(hits, view) or _first_collective_hung(view)


def _first_collective_hung(view: LogView) -> Finding | None:
    """Broken P2P prints nothing: all ranks of one host enter the very first collective, over P2P, and none leaves it."""
    direct = {name: at for name, at in view.nccl.transports.items() if name.startswith("P2P/")}
    if not direct or any(name.startswith("NET/") for name in view.nccl.transports) or not view.timeouts:
        return None
    if any(t.seq is None or t.seq > _FIRST_COLLECTIVES for t in view.timeouts):
        return None
    ranks = {t.at.rank for t in view.timeouts if t.at.rank is not None}
    expected = view.world_size or max((i.nranks for i in view.nccl.inits), default=0)
    if expected < 2 or ranks != set(range(expected)) or len({(t.seq, t.op) for t in view.timeouts}) > 1:
        return None
    first = view.timeouts[0]
    name, places = next(iter(direct.items()))
    return CAUSE.finding(
        standing="possible",
        says=Text(
            "all {n} ranks entered the first collective ({op}) and none left it, and NCCL had connected their GPUs by {name}",
            "全部 {n} 个 rank 都进入了第一次集合通信（{op}），没有一个出来，而 NCCL 以 {name} 连接它们的 GPU",
        ).fill(n=expected, op=first.op, name=name),
        ranks=tuple(sorted(ranks)),
        evidence=(first.at.evidence(), places[0].evidence()),
        remedies=("prove-it", "iommu-and-acs", "host-memory"),
    )


_REASONS_ZH = {
    "chipset not supported": "芯片组不支持",
    "GPU not supported": "GPU 不支持",
    "topology not supported": "拓扑不支持",
    "disabled by registry key": "被驱动参数禁用",
    "not supported": "不支持",
}


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu, kernel_log, pcie

    seen, bus, log = host.get(gpu.SUBJECT), host.get(pcie.SUBJECT), host.get(kernel_log.SUBJECT)
    if seen is not None:
        yield from _refused(seen)
    if seen is not None and bus is not None and seen.nvml_error is None and bus.virtual == "":
        # In a virtual machine the hypervisor needs access control and the IOMMU.
        yield from _redirected(seen, bus)
        yield from _translated(seen, bus)
    gpus = {g.address for g in seen.gpus} if seen is not None else set()
    # Adapters that reach into the memory of GPUs (GPUDirect RDMA) are refused in the same way.
    nics = {d.address for d in bus.devices if d.kind == "nic"} if gpus and bus is not None else set()
    for e in log.events if log is not None else ():
        if e.kind == "iommu-fault" and e.device in gpus | nics and (e.last_age_s is None or e.last_age_s < 86400):
            adapter = e.device in nics
            yield CAUSE.host_finding(
                area="kernel",
                severity="warning",
                says=Text(
                    "the IOMMU refused accesses of {what} {device} ({ago}, {n} times)", "IOMMU 拒绝了{what} {device} 的访问（{ago}，共 {n} 次）"
                ).fill(
                    what=Text("adapter", "网卡") if adapter else Text("GPU", " GPU"),
                    device=str(e.device),
                    ago=Text(kernel_log.ago(e.last_age_s), kernel_log.ago_zh(e.last_age_s)),
                    n=e.count,
                ),
                leads_to=Text("copies between {what} hang or bring wrong data", "{what}之间的拷贝会挂起，或数据出错").fill(
                    what=Text("GPUs and the adapter (GPUDirect RDMA)", "GPU 与网卡（GPUDirect RDMA）") if adapter else Text("GPUs", "GPU ")
                ),
                evidence=(Evidence(source="kernel log", text=e.text),),
                remedies=("iommu-and-acs",) if adapter else ("iommu-and-acs", "host-memory", "prove-it"),
            )


def _refused(seen: Gpus) -> Iterable[HostFinding]:
    # In MIG mode none may, which mig-slices tells.
    sliced = {g.index for g in seen.gpus if g.mig}
    refused = [p for p in seen.pairs if p.p2p not in (None, "ok", "unknown") and not {p.first, p.second} & sliced]
    for reason in dict.fromkeys(p.p2p for p in refused):
        alike = [p for p in refused if p.p2p == reason]
        by_nvlink = any((p.link or "").startswith("NV") for p in alike)
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning" if by_nvlink else "note",
            says=Text("{who} cannot read each other's memory: {reason}", "{who}无法互相读取显存：{reason}").fill(
                who=_who(alike), reason=Text(str(reason), _REASONS_ZH.get(str(reason), str(reason)))
            ),
            leads_to=(
                Text("NVLink between them is not used", "它们之间的 NVLink 没有用上")
                if by_nvlink
                else Text(
                    "NCCL copies through host memory, which works; what insists on peer-to-peer fails",
                    "NCCL 经主机内存拷贝，可以工作；必须使用 peer-to-peer 的程序会失败",
                )
            ),
            evidence=tuple(Evidence(source="NVML", text=f"P2P read, GPU {p.first} and GPU {p.second}: {p.p2p}") for p in alike[:3]),
            remedies=("prove-it", "host-memory") if by_nvlink else ("host-memory",),
        )


def _who(pairs: list[Pair]) -> Text:
    """ "GPUs 0 to 7" only where that is so of any two of them."""
    from unhang.facts import gpu

    members = {i for p in pairs for i in (p.first, p.second)}
    if len(pairs) == len(members) * (len(members) - 1) // 2:
        return gpu.named(members) + Text("", " ")
    shown = joined((Text(f"{p.first} and {p.second}", f"{p.first} 与 {p.second}") for p in pairs[:3]), COMMA)
    more = Text(" and more", " 等") if len(pairs) > 3 else NOTHING
    return Text("{n} pairs of GPUs ({shown}{more})", "{n} 对 GPU（{shown}{more}）").fill(n=len(pairs), shown=shown, more=more)


def _redirected(seen: Gpus, bus: Pcie) -> Iterable[HostFinding]:
    from unhang.facts import pcie

    devices = {d.address: d for d in bus.devices}
    # Pairs of GPUs that have NVLink.
    address = {g.index: g.address for g in seen.gpus}
    joined = [{address.get(p.first), address.get(p.second)} for p in seen.pairs if (p.link or "").startswith("NV")]
    between_gpus: dict[str, tuple[str, ...]] = {}
    to_nics: dict[str, tuple[str, ...]] = {}
    for b in bus.between:
        first, second = devices.get(b.first), devices.get(b.second)
        if first is None or second is None:
            continue
        if second.kind == "gpu" and {b.first, b.second} in joined:
            continue
        # Only Mellanox's are sure to read GPU memory themselves.
        if second.kind == "nic" and second.vendor != "0x15b3":
            continue
        found = between_gpus if second.kind == "gpu" else to_nics
        found.update(
            {p: devices[p].acs or () for p in pcie.ports_between(first, second) if p in devices and "request-redirect" in (devices[p].acs or ())}
        )
    found = between_gpus | to_nics
    if found:
        who = Text("GPUs", "GPU") if between_gpus else Text("GPUs and NICs", "GPU 与网卡")
        ports = sorted(found)
        shown = same(", ".join(ports[:4])) + (Text(" and more", " 等") if len(ports) > 4 else NOTHING)
        yield CAUSE.host_finding(
            area="pcie",
            severity="warning",
            says=Text(
                "{n} PCIe bridges between {who} send their traffic around through the processor (ACS request redirect): {shown}",
                "{who}之间有 {n} 个 PCIe 桥把流量绕经处理器（ACS request redirect）：{shown}",
            ).fill(n=len(ports), who=who, shown=shown),
            leads_to=(
                Text("copies between GPUs are slow, hang or bring wrong data", "GPU 之间的拷贝变慢、挂起或数据出错")
                if between_gpus
                else Text("NICs reach GPU memory (GPUDirect RDMA) slowly or not at all", "网卡访问 GPU 显存（GPUDirect RDMA）很慢，或无法访问")
            ),
            evidence=tuple(Evidence(source=f"/sys/bus/pci/devices/{p}/config", text=f"ACS: {', '.join(found[p])}") for p in ports[:3]),
            remedies=("iommu-and-acs", "prove-it", "host-memory") if between_gpus else ("iommu-and-acs", "prove-it"),
            commands={"iommu-and-acs": command("for bridge in {ports:pci*}; do sudo setpci -s $bridge ECAP_ACS+0x6.w=0000; done", ports=ports)},
        )


def _translated(seen: Gpus, bus: Pcie) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    kinds = {d.address: d.iommu_type for d in bus.devices if d.kind == "gpu"}
    address = {g.index: g.address for g in seen.gpus}
    pairs = [
        p
        for p in seen.pairs
        if p.p2p == "ok"
        and not (p.link or "").startswith("NV")
        and any((kinds.get(address.get(i) or "") or "").startswith("DMA") for i in (p.first, p.second))
    ]
    if pairs:
        one = address.get(pairs[0].first) or ""
        yield CAUSE.host_finding(
            area="pcie",
            severity="warning",
            says=Text("{gpus} copy to each other over PCIe, and the IOMMU translates addresses", "{gpus} 经 PCIe 互相拷贝，而 IOMMU 在转换地址").fill(
                gpus=gpu.named(i for p in pairs for i in (p.first, p.second))
            ),
            leads_to=Text(
                "CUDA does not support that on bare metal: the first collective may hang, or data arrives wrong",
                "CUDA 在裸机上不支持这种情况：第一次集合通信可能挂起，或数据出错",
            ),
            evidence=(Evidence(source="/sys/kernel/iommu_groups", text=f"{one}: type {kinds.get(one)}"),),
            remedies=("iommu-and-acs", "prove-it", "host-memory"),
        )


CAUSE = cause("p2p-broken", in_logs=_in_logs, on_host=_on_host)
