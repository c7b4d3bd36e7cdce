"""interface-selection: NCCL or Gloo talks through the wrong network interface, or was told one that does not exist."""

from __future__ import annotations

from unhang.facts import infiniband, network
from unhang.facts.network import Interface
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.logs.log_facts import At
from unhang.patterns import lazily

CAUSE = cause("interface-selection")
_NONE_FOUND, _BAD_FAMILY = CAUSE.signature("none-found"), CAUSE.signature("bad-family")

# Interfaces that no other host can reach, however healthy they look on their own.
_LOCAL_ONLY = lazily(
    r"^(?:Bootstrap|NET/Socket)?\s*(?:\[0\])?(?P<name>(?:lo|docker\w*|veth\w*|virbr\w*|br-\w+|cni\w*|flannel[\w.]*|cali\w*|lxc\w*|podman\w*)(?=:|$)"
    r"|[\w.@-]+(?=:(?:fe80:|169\.254\.)))"
)
# What tells that the ranks did not reach each other.
_FAILED = ("network-blocked", "gloo-connect", "peer-lost", "store-disconnect", "collective-timeout", "unhandled-generic")
# Bridges and the ends of containers, which end on this host. A bridge that carries the default route is something else.
_BRIDGES = lazily(r"(?:docker|virbr|veth|cni|flannel|cali|lxc|podman)|br-[0-9a-f]{12}$")


def in_logs(view: LogView) -> Answer:
    asked = next((s.partition("=")[2] for s in view.nccl.settings if s.startswith("NCCL_SOCKET_IFNAME=")), None)
    if not (hits := view.hits_of(CAUSE.id)):
        return _chosen(view, asked)
    best = min(hits, key=lambda h: h.signature.standing != "established")
    return CAUSE.of_hits(hits, view, Found("no-such-interface", asked=asked) if asked and best.signature in (_NONE_FOUND, _BAD_FAMILY) else None)


def _chosen(view: LogView, asked: str | None) -> Found | None:
    """NCCL said which interface it took: one that reaches no other host, in a job that failed to communicate."""
    local = {found["name"]: at for text, at in view.nccl.interfaces.items() if (found := _LOCAL_ONLY.match(text))}
    if not local or not (view.timeouts or any(view.hits_of(c) for c in _FAILED)):
        return None
    places: tuple[At, ...] = tuple(at for found in view.nccl.interfaces.values() for at in found)
    hosts = {at.host for at in places if at.host}
    if len(hosts) < 2:
        # On one host every interface will do.
        return None
    name, at = next(iter(local.items()))
    theirs = sorted({a.host for a in at if a.host})
    connected = any(view.hits_of(c) for c in ("network-blocked", "gloo-connect"))
    remedies = ("name-one-that-exists",) if asked else ("keep-off-virtual", "name-one-that-exists")
    return Found(
        "chosen",
        standing="likely" if connected else "possible",
        evidence=at[:3],
        remedies=("keep-off-link-local",) if ":169.254." in at[0].text else remedies,
        hosts=theirs,
        name=name,
        n=len(theirs) or 1,
        of=len(hosts),
    )


def on_host(host: HostView) -> Findings:
    seen = host.network
    several, way = host.several, network.uplink(seen)
    to_others = way.name if way is not None else "NAME"
    with_address = ", ".join(i.name for i in seen.interfaces if network.usable(i)) or "none"
    nccl = seen.nccl.asked if seen.nccl.asked is not None and seen.nccl.asked.name == "NCCL_SOCKET_IFNAME" else None
    if nccl is not None and seen.nccl.interfaces == ():
        yield Found("nccl-none", nccl=nccl, with_address=with_address, to_others=to_others)
    if seen.gloo.asked is not None:
        absent = [n for n in seen.gloo.asked.value.split(",") if n not in (seen.gloo.interfaces or ())]
        if absent and seen.gloo.interfaces is not None:
            yield Found(
                "gloo-none-of-several" if several else "gloo-none",
                to_others=to_others,
                absent=", ".join(map(repr, absent)),
                with_address=with_address,
                seen=seen,
            )
    chosen = [i for name in seen.nccl.interfaces or () if (i := seen.interface(name)) is not None]
    if not chosen:
        return
    first, local = chosen[0], [i for i in chosen if _ends_here(i, way)]
    over_rdma = (rdma := host.get(infiniband.SUBJECT)) is not None and bool(infiniband.active(rdma))
    route = seen.peer.route if seen.peer is not None else None
    key = ""
    if first in local and (several or (nccl is None and first.kind != "tunnel" and len(local) < len(chosen))):
        key = "unreachable"
    elif first.kind == "tunnel" and (several or (way is not None and way.name != first.name)):
        key = "tunnel"
    elif several and not over_rdma:
        key = "spread" if local else "other-route" if route is not None and route.interface not in [i.name for i in chosen] else ""
    if key:
        yield Found(
            key,
            remedies=("keep-off-virtual", "name-one-that-exists") if nccl is None and key in ("unreachable", "spread") else None,
            to_others=to_others,
            first=first,
            address=first.addresses[0] if first.addresses else "no-address",
            local=[i.name for i in local],
            chosen=[i.name for i in chosen],
            seen=seen,
        )
    if not first.virtual and ((first.speed_mbps is not None and first.speed_mbps <= 100) or first.duplex == "half"):
        yield Found(
            "slow",
            first=first,
            speed=first.speed_mbps or "unknown-speed",
            duplex=first.duplex or "unknown",
        )


def _ends_here(interface: Interface, way: Interface | None) -> bool:
    return interface.kind == "loopback" or (_BRIDGES.match(interface.name) is not None and (way is None or way.name != interface.name))
