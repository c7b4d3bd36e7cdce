"""What the links between ranks should carry, as far as this host tells: the rates of NVLink, PCIe, InfiniBand and Ethernet, or its memory's."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from unhang.bench.collective_bench import Group
from unhang.facts import gpu, infiniband, network, pcie, snapshot
from unhang.facts.host import Host


@dataclass(frozen=True, kw_only=True)
class Limit:
    """GB/s (1e9 bytes) in one direction, and of what."""

    gbps: float
    what: str


def limit(group: Group, *, memory_gbps: float | None, host: Host | None = None) -> Limit | None:
    """The narrowest link on a ring of the ranks; None where that is not known, or other hosts than this one hold them."""
    several = len(set(group.hosts)) > 1
    if socket.gethostname() not in group.hosts:
        return None
    if group.backend == "gloo" and not several:
        # Over loopback the processor copies each byte.
        return None if memory_gbps is None else Limit(gbps=memory_gbps, what="a copy in memory")
    seen = snapshot.take(host or Host(), only=("gpu", "infiniband", "network", "pcie"))
    found: list[Limit | None] = []
    if several:
        found.append(_network(seen, group.backend))
    if group.backend == "nccl" and len(set(group.hosts)) < len(group.hosts):
        found.append(_gpus(seen))
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: one.gbps) if known and len(known) == len(found) else None


def _network(seen: snapshot.Snapshot, backend: str) -> Limit | None:
    adapters, nets = seen.get(infiniband.SUBJECT), seen.get(network.SUBJECT)
    if backend == "nccl" and adapters is not None and (rates := [port.rate_gbps for _, port in infiniband.active(adapters)]):
        return None if None in rates else Limit(gbps=sum(rate or 0 for rate in rates) / 8, what=f"{len(rates)} ports of InfiniBand or RoCE")
    choice = None if nets is None else nets.nccl if backend == "nccl" else nets.gloo
    speeds = [i.speed_mbps for name in (choice.interfaces or ()) if nets and (i := nets.interface(name))][:1] if choice is not None else []
    return Limit(gbps=speeds[0] / 8000, what="Ethernet") if speeds and speeds[0] else None


def _gpus(seen: snapshot.Snapshot) -> Limit | None:
    gpus, bus = seen.get(gpu.SUBJECT), seen.get(pcie.SUBJECT)
    if gpus is not None and gpus.pairs and all(pair.link and pair.link.startswith("NV") for pair in gpus.pairs):
        speeds = [[link.speed_mb_per_s for link in one.nvlinks if link.active] for one in gpus.gpus]
        if all(each and None not in each for each in speeds):
            return Limit(gbps=min(sum(speed or 0 for speed in each) for each in speeds) / 1000, what="NVLink")
        return None
    cards = [d for d in (bus.devices if bus is not None else ()) if d.kind == "gpu"]
    if not cards or any(d.width is None or d.speed_max_gt_s is None for d in cards):
        return None
    return Limit(gbps=min(pcie_gbps(d.width or 0, d.speed_max_gt_s or 0) for d in cards), what="PCIe")


def pcie_gbps(lanes: int, gt_s: float) -> float:
    """Payload of the line code in one direction: 8b/10b up to 5 GT/s, 128b/130b up to 32, 242 of 256 bytes at 64 (PCI Express Base Specification)."""
    return lanes * gt_s / 8 * (0.8 if gt_s <= 5 else 128 / 130 if gt_s <= 32 else 242 / 256)
