"""NUMA: the nodes with their memory and CPUs, what of them this process may use, and at which of them GPUs and network adapters stand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from unhang.facts import pcie
from unhang.facts.host import Host, NotHere, Subject
from unhang.i18n import COMMA, NOTHING, Text, joined, msg
from unhang.model import frozen
from unhang.text import size

_NODES = "/sys/devices/system/node"


@frozen
class Node:
    """One node. `cpus` as the kernel lists them ("0-55,112-167"). Without memory `memory_bytes` is 0."""

    id: int
    cpus: str
    cpu_count: int
    memory_bytes: int
    free_bytes: int


@frozen
class Device:
    """A GPU (NVIDIA's) or a network adapter with its PCI address. `node` is None where the firmware names none; `names` as Linux calls it."""

    kind: Literal["gpu", "network"]
    address: str
    node: int | None
    names: tuple[str, ...] = ()


@frozen
class Numa:
    """`cpus_allowed` and `memory_allowed` are the CPUs and the nodes that this process, and what it starts, may use.

    `balancing` is whether the kernel moves pages by itself. `cumem_host_enable` is NCCL_CUMEM_HOST_ENABLE as it is set here.
    """

    nodes: tuple[Node, ...]
    cpus_allowed: str | None
    memory_allowed: tuple[int, ...] | None
    balancing: bool | None
    devices: tuple[Device, ...]
    cumem_host_enable: str | None
    unread: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[Device, ...]:
        return tuple(d for d in self.devices if d.kind == "gpu")


def collect(host: Host) -> Numa:
    """Raises NotHere where the kernel knows no nodes."""
    unread: list[str] = []
    try:
        numbers = sorted(int(name[4:]) for name in host.names(_NODES) if re.fullmatch(r"node[0-9]{1,6}", name))
    except FileNotFoundError as e:
        # Without /sys nothing is known.
        if not host.path("/sys/class").exists():
            raise
        raise NotHere(f"this kernel knows no NUMA nodes: there is no {_NODES}") from e
    if not numbers:
        raise NotHere(f"this kernel knows no NUMA nodes: none stands in {_NODES}")
    nodes = tuple(node for node in (_node(host, number) for number in numbers) if node is not None)
    if len(nodes) < len(numbers):
        unread.append(f"NUMA nodes {', '.join(str(n) for n in numbers if n not in {node.id for node in nodes})}")
    allowed = _allowed(host)
    balancing = host.number("/proc/sys/kernel/numa_balancing")
    return Numa(
        nodes=nodes,
        cpus_allowed=allowed.get("Cpus"),
        memory_allowed=numbered(allowed["Mems"]) if "Mems" in allowed else None,
        balancing=None if balancing is None else balancing != 0,
        devices=_devices(host, unread),
        cumem_host_enable=host.environ.get("NCCL_CUMEM_HOST_ENABLE"),
        unread=tuple(unread),
    )


def numbered(text: str) -> tuple[int, ...]:
    """A list as the kernel writes it: "0-2,8" is 0, 1, 2, 8. Raises ValueError."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if part:
            found += range(int(first), min(int(last or first), int(first) + (1 << 16)) + 1)
    return tuple(found)


def listed(numbers: Iterable[int]) -> str:
    """The opposite of `numbered`."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _node(host: Host, number: int) -> Node | None:
    directory = f"{_NODES}/node{number}"
    try:
        # Each line: "Node 0 MemTotal:       24684096 kB".
        memory = dict(re.findall(r"(\w+): +([0-9]+) kB", host.read(f"{directory}/meminfo")))
        cpus = host.read(f"{directory}/cpulist").strip()
        return Node(
            id=number,
            cpus=cpus,
            cpu_count=len(numbered(cpus)),
            memory_bytes=int(memory["MemTotal"]) * 1024,
            free_bytes=int(memory.get("MemFree", 0)) * 1024,
        )
    except (OSError, ValueError, KeyError):
        return None


def _allowed(host: Host) -> dict[str, str]:
    return dict(re.findall(r"^(Cpus|Mems)_allowed_list:\s*([0-9,-]+)$", host.text("/proc/self/status") or "", re.MULTILINE))


def _devices(host: Host, unread: list[str]) -> tuple[Device, ...]:
    try:
        addresses = host.names(pcie.DEVICES)
    except FileNotFoundError:
        return ()
    except OSError as e:
        unread.append(f"PCI devices: {e.strerror or e}")
        return ()
    found = []
    for address in addresses:
        kind = pcie.kind(host, address)
        if kind not in ("gpu", "nic"):
            continue
        directory = f"{pcie.DEVICES}/{address}"
        names = tuple(name for of in ("net", "infiniband") for name in host.listed(f"{directory}/{of}"))
        # Of adapters without a driver, virtual functions that are lent to others among them, nothing here makes use.
        if kind == "gpu" or names:
            node = host.number(f"{directory}/numa_node")
            node = node if node is not None and node >= 0 else None
            found.append(Device(kind="gpu" if kind == "gpu" else "network", address=address, node=node, names=names))
    return tuple(found)


def _summary(numa: Numa) -> Text:
    count = len(numa.nodes)
    told = msg(
        "{nodes} with {cpus} CPUs and {memory}",
        nodes="1 node" if count == 1 else f"{count} nodes",
        n=count,
        cpus=sum(n.cpu_count for n in numa.nodes),
        memory=size(sum(n.memory_bytes for n in numa.nodes)),
    )
    empty = [n.id for n in numa.nodes if n.memory_bytes == 0]
    if empty:
        told += msg("; without memory: {nodes}", nodes=listed(empty))
    at = [msg("{n} at node {node}", n=len(gpus), node=node) for node, gpus in _by_node(numa.gpus)]
    return told + (msg("; GPUs: {at}", at=joined(at, COMMA)) if at else NOTHING)


def _by_node(devices: Iterable[Device]) -> list[tuple[str, list[Device]]]:
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault("?" if device.node is None else str(device.node), []).append(device)
    return sorted(groups.items())


SUBJECT = Subject(id="numa", title=msg("NUMA nodes", "title"), facts=Numa, collect=collect, summary=_summary, volatile=("free_bytes",))
