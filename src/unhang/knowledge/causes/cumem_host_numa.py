"""cumem-host-numa: ranks disagree about host-memory handles, and one reads the other's handle as a file name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause
from unhang.knowledge.text import Text, joined
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.numa import Device, Node
    from unhang.facts.snapshot import Snapshot


_IN_CONTAINERS = ("docker", "podman", "kubernetes", "container", "apptainer", "lxc")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, numa

    seen = host.get(numa.SUBJECT)
    # On Grace, nodes of a GPU's own memory have no CPUs, and those kept for MIG have nothing at all: what matters is at which node a GPU stands.
    if seen is None or len(seen.nodes) < 2 or len(seen.gpus) < 2 or seen.cumem_host_enable == "0":
        return
    nodes = {node.id: node for node in seen.nodes}
    empty = {g.address: g for g in seen.gpus if g.node in nodes and _lacks(nodes[g.node])}
    forbidden = [g for g in seen.gpus if g.address not in empty and g.node in nodes and g.node not in (seen.memory_allowed or nodes)]
    fine = len(seen.gpus) - len(empty) - len(forbidden)
    in_container = container.kind(host) in _IN_CONTAINERS
    if empty:
        lacking = sorted({g.node for g in empty.values() if g.node is not None})
        yield CAUSE.host_finding(
            area="numa",
            # Where all ranks are refused alike, they agree.
            severity="error" if fine else "note",
            says=Text("{gpus} of {all} at NUMA {nodes}, which {what}", "{all} 块 GPU 中有 {n} 块位于 NUMA 节点 {numbers}，{what}").fill(
                gpus=_gpus(len(empty)),
                n=len(empty),
                all=len(seen.gpus),
                nodes=f"node {lacking[0]}" if len(lacking) == 1 else f"nodes {', '.join(map(str, lacking))}",
                numbers="、".join(map(str, lacking)),
                what=_what(nodes[n] for n in lacking),
            ),
            leads_to=_LEADS_TO,
            evidence=(
                *(Evidence(source=f"/sys/devices/system/node/node{n}", text=_told(nodes[n])) for n in lacking[:2]),
                *(_at(gpu) for gpu in list(empty.values())[:2]),
            ),
            remedies=("cumem-host-off", "repair-numa", "see-numa"),
        )
    if forbidden and fine:
        allowed = numa.listed(seen.memory_allowed or ())
        yield CAUSE.host_finding(
            area="numa",
            severity="warning",
            says=Text(
                f"{_gpus(len(forbidden))} of {len(seen.gpus)} at NUMA nodes whose memory this process may not use (it may use node {allowed})",
                f"{len(seen.gpus)} 块 GPU 中有 {len(forbidden)} 块所在的 NUMA 节点，其内存本进程无权使用（可用的节点：{allowed}）",
            ),
            leads_to=Text("where a training uses those GPUs together with others: {what}", "训练同时使用这些 GPU 和其他 GPU 时：{what}").fill(
                what=_LEADS_TO
            ),
            evidence=(Evidence(source="/proc/self/status", text=f"Mems_allowed_list: {allowed}"), *(_at(gpu) for gpu in forbidden[:2])),
            remedies=("cumem-host-off", *(("cap-sys-nice",) if in_container else ()), "see-numa"),
        )


_LEADS_TO = Text(
    "NCCL from 2.24 on with driver 12.6 or newer: CUDA refuses host memory there, ranks at other nodes get it, and one reads the other's handle as a "
    "file name ('attaching to shared memory segment ... (size 0)')",
    "NCCL 2.24 及以后、驱动支持 CUDA 12.6 或更新时：CUDA 在那里拒绝分配主机内存，其他节点上的 rank 却能得到，于是一方把另一方的句柄当作文件名"
    "（'attaching to shared memory segment ... (size 0)'）",
)


def _lacks(node: Node) -> bool:
    return node.memory_bytes == 0 or node.cpu_count == 0


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _what(nodes: Iterable[Node]) -> Text:
    lacking = list(nodes)
    memory, cpus = Text("memory", "内存"), Text("CPUs", " CPU")
    what = [word for word, lack in ((memory, [n.memory_bytes == 0 for n in lacking]), (cpus, [n.cpu_count == 0 for n in lacking])) if any(lack)]
    return Text("{have} no {what}", "没有{what}").fill(have="has" if len(lacking) == 1 else "have", what=joined(what, Text(" and no ", "，也没有")))


def _told(node: Node) -> str:
    from unhang.facts.units import size

    return f"cpulist: {node.cpus or '(empty)'}; MemTotal: {size(node.memory_bytes)}"


def _at(gpu: Device) -> Evidence:
    return Evidence(source=f"/sys/bus/pci/devices/{gpu.address}/numa_node", text=str(gpu.node))


CAUSE = cause("cumem-host-numa", on_host=_on_host)
