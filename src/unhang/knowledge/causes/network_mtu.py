"""network-mtu: small messages pass, large ones are lost: the path carries smaller packets than the hosts send."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView
from unhang.patterns import lazily

# The bridge of a network that `docker network create` or compose made is called after the first 12 digits of its id.
_NETWORK = lazily(r"br-(?P<id>[0-9a-f]{12})")
# What VXLAN adds to each packet, over IPv4.
_VXLAN_BYTES = 50


def on_host(host: HostView) -> Findings:
    from unhang.facts import network

    seen = host.network
    way = network.uplink(seen)
    for i in seen.interfaces:
        over = seen.interface(i.member_of)
        if over is not None and over.kind == "bond" and i.mtu_bytes and over.mtu_bytes and i.mtu_bytes < over.mtu_bytes:
            yield Found("bond", interface=i, over=over, mtu_bytes=over.mtu_bytes)
        if way is None or i.mtu_bytes is None or way.mtu_bytes is None or not i.running or i.name == way.name:
            continue
        if i.kind == "vxlan" and i.mtu_bytes > way.mtu_bytes - _VXLAN_BYTES:
            yield Found("overlay", interface=i, way=way, header=_VXLAN_BYTES, mtu_bytes=way.mtu_bytes - _VXLAN_BYTES)
        made = _NETWORK.fullmatch(i.name)
        if i.kind == "bridge" and (made is not None or i.name == "docker0") and i.mtu_bytes > way.mtu_bytes:
            yield Found("docker" if made is None else "docker-network", interface=i, way=way, mtu_bytes=way.mtu_bytes, network=made and made["id"])
