"""cumem-host-numa: ranks disagree about host-memory handles, and one reads the other's handle as a file name."""

from __future__ import annotations

from unhang.facts.numa import Device, Node
from unhang.knowledge.judge import Findings, Found, HostView
from unhang.model import Evidence

_IN_CONTAINERS = ("docker", "podman", "kubernetes", "container", "apptainer", "lxc")


def on_host(host: HostView) -> Findings:
    from unhang.facts import numa

    seen = host.numa
    # On Grace, nodes of a GPU's own memory have no CPUs, and those kept for MIG have nothing at all: what matters is at which node a GPU stands.
    if len(seen.nodes) < 2 or len(seen.gpus) < 2 or seen.cumem_host_enable == "0":
        return
    nodes = {node.id: node for node in seen.nodes}
    empty = {g.address: g for g in seen.gpus if g.node in nodes and 0 in (nodes[g.node].memory_bytes, nodes[g.node].cpu_count)}
    forbidden = [g for g in seen.gpus if g.address not in empty and g.node in nodes and g.node not in (seen.memory_allowed or nodes)]
    fine = len(seen.gpus) - len(empty) - len(forbidden)
    if empty:
        lacking = [nodes[n] for n in sorted({g.node for g in empty.values() if g.node is not None})]
        memory, cpus = any(n.memory_bytes == 0 for n in lacking), any(n.cpu_count == 0 for n in lacking)
        yield Found(
            "lacking-node",
            severity="error" if fine else "note",
            evidence=(
                *(Evidence(source=f"/sys/devices/system/node/node{n.id}", text=_told(n)) for n in lacking[:2]),
                *(_at(gpu) for gpu in list(empty.values())[:2]),
            ),
            empty=empty,
            seen=seen,
            lacking=[n.id for n in lacking],
            what="both" if memory and cpus else "memory" if memory else "cpus",
        )
    if forbidden and fine:
        allowed = numa.listed(seen.memory_allowed or ())
        yield Found(
            "forbidden-node",
            remedies=("cumem-host-off", *(("cap-sys-nice",) if host.kind in _IN_CONTAINERS else ()), "see-numa"),
            evidence=(Evidence(source="/proc/self/status", text=f"Mems_allowed_list: {allowed}"), *(_at(gpu) for gpu in forbidden[:2])),
            forbidden=forbidden,
            seen=seen,
            allowed=allowed,
        )


def _told(node: Node) -> str:
    from unhang.text import size

    return f"cpulist: {node.cpus or '(empty)'}; MemTotal: {size(node.memory_bytes)}"


def _at(gpu: Device) -> Evidence:
    return Evidence(source=f"/sys/bus/pci/devices/{gpu.address}/numa_node", text=str(gpu.node))
