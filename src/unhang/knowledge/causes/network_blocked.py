"""network-blocked: a host cannot open a connection to another: firewall, no route, dropped or refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.knowledge.words import Text, msg, same
from unhang.logs import Hit
from unhang.model import Finding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.firewall import Packet
    from unhang.facts.network import Network

CAUSE = cause("network-blocked")

# A rank on the same host is never behind a firewall.
_SELF = lazily(r"^(?:127\.|::1$|localhost$|\[?::ffff:127\.)")
# torch 2.13 prints an address that it has already freed in "The client socket has failed to connect to".
_GARBAGE = lazily(r"^\d+\.\d+\.0\.0$|^\[?[0-9a-f]+:0:[0-9a-f]+:0:")
_TRY = "nc -vz -w 5 {host:host} {port:port}; ip route get {host:host}"
_LOOK = "ip -s -s link show {name:interface}; ethtool {name:interface}; dmesg -T | grep -i '{name:interface}.*link'"
# Of a link that was seen to go, and of nothing else.
_STEADY = Remedy(
    id="steady-the-link",
    says=msg("See how often the link of the interface went, and exchange its cable, transceiver or switch port."),
)
_HARD = "No route to host|Network is unreachable|Connection timed out|Host is down|Destination Host Unreachable"


def in_logs(view: LogView) -> Answer:
    reached_for = tuple(h for h in view.hits_of(CAUSE.id) if not _SELF.match(h.groups.get("peer", "")))
    hits = tuple(h for h in reached_for if not _GARBAGE.match(h.groups.get("peer", "")))
    if not hits:
        return _of_garbage(reached_for, view) or _store_unreached(view)
    peer = next((h.groups["peer"] for h in _by_weight(hits) if "peer" in h.groups), None)
    port = next((h.groups["port"] for h in _by_weight(hits) if "port" in h.groups and h.groups.get("peer") == peer), None)
    commands = {"try-the-port": command(_TRY, host=peer, port=port or 29500)} if peer else None
    tried = sorted({h.groups["peer"] for h in hits if "peer" in h.groups})
    found = CAUSE.of_hits(_by_weight(hits), view, commands=commands)
    if found is None or len(tried) < 2:
        return found
    return CAUSE.of_hits(_by_weight(hits), view, Found("several", commands=commands, n=len(tried), shown=tried[:4], why=_why(hits)))


def _of_garbage(hits: tuple[Hit, ...], view: LogView) -> Finding | None:
    return CAUSE.of_hits(_by_weight(hits), view, Found("garbage", why=_why(hits))) if hits else None


def _store_unreached(view: LogView) -> Found | None:
    """One rank's attempts to reach the store timed out, and the store itself tells that it waited: it runs, and the way to it is closed."""
    said = view.hits_of("store-disconnect")
    tried = next((h for h in said if "client socket has timed out" in h.text and "peer" in h.groups and not _SELF.match(h.groups["peer"])), None)
    waited = next((h for h in said if "expected" in h.groups and 0 < int(h.groups.get("joined", "0")) < int(h.groups["expected"])), None)
    if tried is None or waited is None:
        return None
    return Found(
        "store-unreached",
        ranks=(tried,),
        hosts=(tried,),
        evidence=(tried, waited),
        waited=waited,
        host=tried.groups["peer"],
        port=tried.groups["port"],
    )


def _by_weight(hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
    """What names a missing route before what was only refused."""
    return tuple(sorted(hits, key=lambda h: re.search(_HARD, h.text, re.IGNORECASE) is None))


def _why(hits: tuple[Hit, ...]) -> Text:
    return next((same(h.groups["error"]) for h in _by_weight(hits) if "error" in h.groups), msg("no connection"))


def on_host(host: HostView) -> Findings:
    from unhang.facts import firewall

    seen = host.network
    yield from _fell(host, seen)
    if seen.peer is not None and not seen.peer.here and seen.peer.route is None:
        yield Found("no-route", seen=seen)
    rules = host.firewall
    alone = firewall.Packet(hook="input", interface="lo", peer="127.0.0.1", own="127.0.0.1", port=_port(host))
    if (by := firewall.dropped(rules, alone)) is not None:
        yield Found("loopback-dropped", drop=by)
        return
    if seen.job.hosts == 1:
        return
    for packet, net in _from_peers(host, seen):
        if (by := firewall.dropped(rules, packet)) is not None:
            yield Found(
                "dropped",
                packet=packet,
                inbound=packet.hook == "input",
                drop=by,
                net=net,
            )
            return


def _fell(host: HostView, seen: Network) -> Findings:
    """The link towards the other hosts, where it went down in the last hours; of a job on this host alone that is only worth knowing."""
    from unhang.facts import kernel_log, network

    towards = network.uplink(seen)
    if towards is None or not towards.running:
        return
    for event in (e for e in host.events if e.kind == "link-down" and e.interface == towards.name and kernel_log.recent(e)):
        look = command(_LOOK, name=towards.name)
        yield Found("link-fell", remedies=(_STEADY,), commands={"steady-the-link": look}, towards=towards, event=event)


def _from_peers(host: HostView, seen: Network) -> Iterable[tuple[Packet, str]]:
    """A new connection in each direction, with another host of the net in which NCCL meets the other ranks."""
    import ipaddress

    from unhang.facts import network
    from unhang.facts.firewall import Hook, Packet

    interface = seen.interface((seen.nccl.interfaces or ("",))[0]) or network.uplink(seen)
    if interface is None or interface.kind == "loopback" or not interface.addresses:
        return
    try:
        own = ipaddress.ip_interface(interface.addresses[0])
    except ValueError:
        return
    if own.is_link_local or own.network.num_addresses < 4:
        return
    known = seen.peer is not None and seen.peer.route is not None and seen.peer.route.interface == interface.name
    other = own.network.network_address + 1
    peer = seen.peer.address if known and seen.peer is not None else str(other if other != own.ip else other + 1)
    if (":" in peer) != (own.version == 6):
        return
    hooks: tuple[Hook, ...] = ("input", "output")
    for hook in hooks:
        yield Packet(hook=hook, interface=interface.name, peer=peer, own=str(own.ip), port=_port(host)), str(own.network)


def _port(host: HostView) -> int:
    """One of those that the system hands out."""
    from unhang.facts import ports

    seen = host.get(ports.SUBJECT)
    return 45678 if seen is None or seen.range_first is None or seen.range_last is None else (seen.range_first + seen.range_last) // 2
