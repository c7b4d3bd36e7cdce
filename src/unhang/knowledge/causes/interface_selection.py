"""interface-selection: NCCL or Gloo talks through the wrong network interface, or was told one that does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge.judge import Findings, Found, HostView
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.network import Interface


# Bridges and the ends of containers, which end on this host. A bridge that carries the default route is something else.
_BRIDGES = lazily(r"(?:docker|virbr|veth|cni|flannel|cali|lxc|podman)|br-[0-9a-f]{12}$")


def on_host(host: HostView) -> Findings:
    from unhang.facts import infiniband, network

    seen = host.network
    if seen.nccl.interfaces is None:
        return
    several, way = host.several, network.uplink(seen)
    to_others = way.name if way is not None else "NAME"
    with_address = ", ".join(i.name for i in seen.interfaces if network.usable(i)) or "none"
    nccl = seen.nccl.asked if seen.nccl.asked is not None and seen.nccl.asked.name == "NCCL_SOCKET_IFNAME" else None
    if nccl is not None and not seen.nccl.interfaces:
        yield Found("nccl-none", by=nccl.place, nccl=nccl, with_address=with_address, to_others=to_others)
    if seen.gloo.asked is not None:
        absent = [n for n in seen.gloo.asked.value.split(",") if n not in (seen.gloo.interfaces or ())]
        if absent and seen.gloo.interfaces is not None:
            yield Found(
                "gloo-none",
                remedies=("gloo-interface", "unset-gloo") if several else ("unset-gloo", "gloo-interface"),
                to_others=to_others,
                absent=", ".join(map(repr, absent)),
                with_address=with_address,
                seen=seen,
            )
    chosen = [i for name in seen.nccl.interfaces if (i := seen.interface(name)) is not None]
    if not chosen:
        return
    first, local = chosen[0], [i for i in chosen if _ends_here(i, way)]
    address = first.addresses[0] if first.addresses else "no-address"
    names = ", ".join(i.name for i in chosen)
    over_rdma = (rdma := host.get(infiniband.SUBJECT)) is not None and bool(infiniband.active(rdma))
    leave_out = ("name-one-that-exists",) if nccl is not None else ("keep-off-virtual", "name-one-that-exists")
    if first in local and (several or (nccl is None and first.kind != "tunnel" and len(local) < len(chosen))):
        yield Found(
            "unreachable",
            severity="error" if several else "warning",
            remedies=leave_out,
            to_others=to_others,
            first=first,
            address=address,
            chosen=names,
            seen=seen,
        )
    elif first.kind == "tunnel" and (several or (way is not None and way.name != first.name)):
        yield Found(
            "tunnel",
            to_others=to_others,
            first=first,
            address=address,
            chosen=names,
            seen=seen,
        )
    elif several and local and not over_rdma:
        yield Found(
            "spread",
            remedies=leave_out,
            to_others=to_others,
            local=", ".join(i.name for i in local),
            chosen=names,
            seen=seen,
        )
    elif (
        several and not over_rdma and seen.peer is not None and seen.peer.route is not None and seen.peer.route.interface not in seen.nccl.interfaces
    ):
        yield Found("other-route", seen=seen, first=first, chosen=names, to_others=to_others)
    if not first.virtual and ((first.speed_mbps is not None and first.speed_mbps <= 100) or first.duplex == "half"):
        yield Found(
            "slow",
            severity="warning" if several else "note",
            first=first,
            speed=first.speed_mbps or "unknown-speed",
            duplex=first.duplex or "unknown",
        )


def _ends_here(interface: Interface, way: Interface | None) -> bool:
    return interface.kind == "loopback" or (_BRIDGES.match(interface.name) is not None and (way is None or way.name != interface.name))
