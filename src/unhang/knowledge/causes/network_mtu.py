"""network-mtu: small messages pass, large ones are lost: the path carries smaller packets than the hosts send."""

from __future__ import annotations

from unhang.facts.network import Interface
from unhang.knowledge.cause import Command, command
from unhang.knowledge.judge import Findings, Found, HostView
from unhang.knowledge.text import Text, msg
from unhang.model import Severity
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
            yield _finding(
                i,
                msg(
                    "{name} sends packets of {mtu_bytes} bytes, its member {carrier} carries {carried_bytes}",
                    name=over.name,
                    mtu_bytes=over.mtu_bytes,
                    carrier=i.name,
                    carried_bytes=i.mtu_bytes,
                ),
                "warning",
                over.mtu_bytes,
                "one-mtu",
            )
        if way is None or i.mtu_bytes is None or way.mtu_bytes is None or not i.running or i.name == way.name:
            continue
        if i.kind == "vxlan" and i.mtu_bytes > way.mtu_bytes - _VXLAN_BYTES:
            yield _finding(
                i,
                msg(
                    "the overlay {name} sends packets of {mtu_bytes} bytes, {carrier} carries {carried_bytes} with {header_bytes} of header",
                    name=i.name,
                    mtu_bytes=i.mtu_bytes,
                    carrier=way.name,
                    carried_bytes=way.mtu_bytes,
                    header_bytes=_VXLAN_BYTES,
                ),
                "warning",
                way.mtu_bytes - _VXLAN_BYTES,
                "one-mtu",
            )
        made = _NETWORK.fullmatch(i.name)
        if i.kind == "bridge" and (made is not None or i.name == "docker0") and i.mtu_bytes > way.mtu_bytes:
            yield _finding(
                i,
                msg(
                    "containers on {name} send packets of {mtu_bytes} bytes, {carrier} carries {carried_bytes}",
                    name=i.name,
                    mtu_bytes=i.mtu_bytes,
                    carrier=way.name,
                    carried_bytes=way.mtu_bytes,
                ),
                "note",
                way.mtu_bytes,
                "docker-mtu" if made is None else "docker-network-mtu",
                network=made["id"] if made is not None else "NETWORK",
            )


def _finding(interface: Interface, says: Text, severity: Severity, mtu_bytes: int, remedy: str, *, network: str = "NETWORK") -> Found:
    return Found(
        "too-large",
        severity=severity,
        remedies=(remedy, "find-the-mtu"),
        commands={
            "one-mtu": command("sudo ip link set dev {name:interface} mtu {mtu:number}", name=interface.name, mtu=mtu_bytes),
            "docker-mtu": _docker(mtu_bytes),
            "docker-network-mtu": _network(network, mtu_bytes),
        },
        says=says,
        interface=interface,
        mtu_bytes=mtu_bytes,
    )


def _network(network: str, mtu_bytes: int) -> Command | None:
    """Docker removes no network that a container is in, so that nothing ends by it. The daemon's `mtu` is that of docker0 alone."""
    return command(
        "name=$(docker network inspect -f '{{{{.Name}}}}' {network:name}) && docker network rm \"$name\" && "
        'docker network create -o com.docker.network.driver.mtu={mtu:number} "$name"',
        network=network,
        mtu=mtu_bytes,
    )


def _docker(mtu_bytes: int) -> Command | None:
    """What else stands in the file stays: without its runtimes.nvidia no container has a GPU."""
    return command(
        "sudo sh -c 'mkdir -p /etc/docker && cd /etc/docker && touch daemon.json && "
        'jq -s "add + {{mtu: {mtu:number}}}" daemon.json > daemon.json.new && mv daemon.json.new daemon.json\' && '
        "sudo systemctl restart docker   # ends all containers",
        mtu=mtu_bytes,
    )
