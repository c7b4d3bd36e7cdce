"""network-blocked: a host cannot open a connection to another: firewall, no route, dropped or refused.

Long because every layer that connects (NCCL, Gloo, stores, UCX, MPI) has its own words for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.knowledge import words
from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.text import COMMA, Text, joined, same
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.firewall import Packet
    from unhang.facts.kernel_log import KernelLog
    from unhang.facts.network import Network
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit

# A rank on the same host is never behind a firewall.
_SELF = lazily(r"^(?:127\.|::1$|localhost$|\[?::ffff:127\.)")
# torch 2.13 prints an address that it has already freed in "The client socket has failed to connect to".
_GARBAGE = lazily(r"^\d+\.\d+\.0\.0$|^\[?[0-9a-f]+:0:[0-9a-f]+:0:")
_OPEN = "sudo ufw allow from {net:network}   # or: sudo firewall-cmd --zone=trusted --add-source={net:network}"
_LOOK = "ip -s -s link show {name:interface}; ethtool {name:interface}; dmesg -T | grep -i '{name:interface}.*link'"
_TRY = "nc -vz -w 5 {host:host} {port:port}; ip route get {host:host}"
_HARD = "No route to host|Network is unreachable|Connection timed out|Host is down|Destination Host Unreachable"

# Of a link that was seen to go, and of nothing else.
_STEADY = Remedy(
    id="steady-the-link",
    says="See how often the link of the interface went, and exchange its cable, transceiver or switch port.",
    says_zh="查看该网卡链路断开的次数，并更换线缆、光模块或交换机端口。",
)


def _in_logs(view: LogView) -> Finding | None:
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
    says = Text("{n} addresses could not be reached ({shown}): {why}", "有 {n} 个地址无法连接（{shown}）：{why}")
    says = says.fill(n=len(tried), shown=joined(map(same, tried[:4]), COMMA), why=_why(hits))
    return CAUSE.of_hits(_by_weight(hits), view, commands=commands, says=says)


def _of_garbage(hits: tuple[Hit, ...], view: LogView) -> Finding | None:
    says = Text("the host of the store could not be reached: {why}", "无法连接 store 所在的主机：{why}")
    return CAUSE.of_hits(_by_weight(hits), view, says=says.fill(why=_why(hits))) if hits else None


def _store_unreached(view: LogView) -> Finding | None:
    """One rank's attempts to reach the store timed out, and the store itself tells that it waited: it runs, and the way to it is closed."""
    said = view.hits_of("store-disconnect")
    tried = next((h for h in said if "client socket has timed out" in h.text and "peer" in h.groups and not _SELF.match(h.groups["peer"])), None)
    waited = next((h for h in said if "expected" in h.groups and 0 < int(h.groups.get("joined", "0")) < int(h.groups["expected"])), None)
    if tried is None or waited is None:
        return None
    host, port = tried.groups["peer"], tried.groups["port"]
    return CAUSE.finding(
        standing="likely",
        says=Text(
            "the store waited ({n} of {all} processes came), and connections to {host} port {port} timed out: packets are dropped on the way",
            "store 一直在等待（{all} 个进程中来了 {n} 个），而到 {host} 端口 {port} 的连接超时：数据包在途中被丢弃",
        ).fill(n=waited.groups["joined"], all=waited.groups["expected"], host=host, port=port),
        ranks=(tried.rank,) if tried.rank is not None else (),
        hosts=(tried.host,) if tried.host is not None else (),
        evidence=words.hit_evidence((tried, waited)),
        commands={"try-the-port": command(_TRY, host=host, port=port)},
    )


def _by_weight(hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
    """What names a missing route before what was only refused."""
    return tuple(sorted(hits, key=lambda h: re.search(_HARD, h.text, re.IGNORECASE) is None))


def _why(hits: tuple[Hit, ...]) -> Text:
    return next((same(h.groups["error"]) for h in _by_weight(hits) if "error" in h.groups), Text("no connection", "没有连接"))


# Addresses of one link or host alone are the choice of interface.
_PEER = r"(?P<peer>(?!127\.|::1|fe80|169\.254\.|172\.17\.0\.)[^\s<]+)<(?P<port>\d+)>"
# libuv writes them small.
_ERRORS = r"(?:\d+ ?\()?(?P<error>(?i:No route to host|Connection timed out|Network is unreachable|Host is down))"
# NCCL up to 2.22 prints a connection that was refused twice as an abort.
_REFUSED = r"(?:\d+ ?\()?(?P<error>(?i:Connection refused|Software caused connection abort))"


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import firewall, kernel_log, network

    seen, rules, log = host.get(network.SUBJECT), host.get(firewall.SUBJECT), host.get(kernel_log.SUBJECT)
    if seen is None:
        return
    if log is not None:
        yield from _fell(seen, log, several=network.several_hosts(host))
    if seen.peer is not None and not seen.peer.here and seen.peer.route is None:
        yield CAUSE.host_finding(
            area="network",
            severity="error",
            says=Text(f"there is no route to MASTER_ADDR ({seen.peer.address})", f"没有到 MASTER_ADDR（{seen.peer.address}）的路由"),
            leads_to=Text(
                "the rendezvous ends with 'Network is unreachable' or 'No route to host'",
                "rendezvous 以 'Network is unreachable' 或 'No route to host' 结束",
            ),
            evidence=(Evidence(source="/proc/net/route", text=f"nothing matches {seen.peer.address}"),),
            remedies=("try-the-port",),
            commands={"try-the-port": command("ip route get {peer:host}; ip route", peer=seen.peer.address)},
        )
    if rules is None:
        return
    alone = firewall.Packet(hook="input", interface="lo", peer="127.0.0.1", own="127.0.0.1", port=_port(host))
    if (by := firewall.dropped(rules, alone)) is not None:
        yield CAUSE.host_finding(
            area="firewall",
            severity="error",
            says=Text(
                f"the firewall drops connections of this host to itself over the loopback ({by.chain.tool} {by.chain.name}: {by.rule})",
                f"防火墙丢弃本机经回环接口连接自己的流量（{by.chain.tool} {by.chain.name}：{by.rule}）",
            ),
            leads_to=Text(
                "ranks of this very host cannot connect to their store or to each other", "本机的 rank 无法连接自己的 store，也无法互相连接"
            ),
            evidence=(Evidence(source=f"{by.chain.tool} {by.chain.table} {by.chain.name}", text=by.rule),),
            remedies=("accept-loopback",),
        )
        return
    if seen.job.hosts == 1:
        return
    for packet, net in _from_peers(host, seen):
        if (by := firewall.dropped(rules, packet)) is not None:
            way = (
                Text(f"from {packet.peer} over {packet.interface} to", f"来自 {packet.peer}、经 {packet.interface} 到达本机")
                if packet.hook == "input"
                else Text(f"to {packet.peer} over {packet.interface},", f"经 {packet.interface} 到 {packet.peer} 的")
            )
            yield CAUSE.host_finding(
                area="firewall",
                severity="error" if network.several_hosts(host) else "warning",
                says=Text(
                    "the firewall drops new connections {way} port {port} ({tool} {chain}: {rule})",
                    "防火墙丢弃{way}端口 {port} 的新连接（{tool} {chain}：{rule}）",
                ).fill(way=way, port=packet.port, tool=by.chain.tool, chain=by.chain.name, rule=by.rule),
                leads_to=Text(
                    "NCCL and Gloo use ports that the system chooses: the rendezvous may pass, and ranks of several hosts still never connect",
                    "NCCL 和 Gloo 使用系统分配的端口：rendezvous 可能成功，而多台主机的 rank 仍然连不上",
                ),
                evidence=(Evidence(source=f"{by.chain.tool} {by.chain.table} {by.chain.name}", text=by.rule),),
                remedies=("open-between-hosts",),
                commands={"open-between-hosts": command(_OPEN, net=net)},
            )
            return


def _fell(seen: Network, log: KernelLog, *, several: bool) -> Iterable[HostFinding]:
    """The link towards the other hosts, where it went down in the last hours; of a job on this host alone that is only worth knowing."""
    from unhang.facts import kernel_log, network

    towards = network.uplink(seen)
    if towards is None or not towards.running:
        return
    for event in (e for e in log.events if e.kind == "link-down" and e.interface == towards.name and kernel_log.recent(e)):
        found = CAUSE.host_finding(
            area="kernel",
            severity="warning" if several else "note",
            says=Text(
                f"the link of {towards.name}, the way to other hosts, went down ({kernel_log.times(event)}); it is up again",
                f"通往其他主机的 {towards.name} 链路断开过（{kernel_log.times_zh(event)}）；现已恢复",
            ),
            leads_to=Text(
                "connections to other hosts stood still meanwhile: time-outs, lost peers, a rendezvous that ends",
                "期间到其他主机的连接停住：超时、失去同伴、rendezvous 结束",
            ),
            evidence=(Evidence(source="kernel log", text=event.text),),
            remedies=(),
        )
        yield replace(found, remedies=(replace(_STEADY, command=command(_LOOK, name=towards.name)),))


def _from_peers(host: Snapshot, seen: Network) -> Iterable[tuple[Packet, str]]:
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


def _port(host: Snapshot) -> int:
    """One of those that the system hands out."""
    from unhang.facts import ports

    seen = host.get(ports.SUBJECT)
    return 45678 if seen is None or seen.range_first is None or seen.range_last is None else (seen.range_first + seen.range_last) // 2


CAUSE = Cause(
    id="network-blocked",
    role="root",
    title="No connection between two hosts",
    title_zh="两台主机之间无法建立连接",
    what="One host could not open a TCP connection (or an EFA flow) to another: refused, dropped, or no route.",
    why=(
        "A firewall or security group that opens MASTER_PORT only, while NCCL and Gloo use random high ports; hosts in different subnets; "
        "a container network without a route; a peer that is down."
    ),
    signatures=(
        # NCCL 2.12 to 2.23.
        Signature(
            needle="socketStartConnect: Connect to ",
            pattern=rf"socketStartConnect: Connect to {_PEER} failed : " + _ERRORS,
            standing="likely",
            says="NCCL could not connect to {peer} port {port}: {error}",
            says_zh="NCCL 无法连接 {peer} 的端口 {port}：{error}",
        ),
        Signature(
            needle="socketPollConnect: Connect to ",
            pattern=rf"socketPollConnect: Connect to {_PEER} (?:failed :|returned) " + _ERRORS,
            standing="likely",
            says="NCCL could not connect to {peer} port {port}: {error}",
            says_zh="NCCL 无法连接 {peer} 的端口 {port}：{error}",
        ),
        # 2.24 and later; os/linux.cc prints ncclOsSocketPollConnect from 2.30 on.
        Signature(
            needle="exceeded error retry count after",
            pattern=(
                rf"onnect: connect to {_PEER} returned (?P<error>No route to host|Connection "
                r"timed out|Network is unreachable|Host is down), exceeded error retry count after (?P<tries>\d+)"
            ),
            standing="likely",
            says="NCCL could not connect to {peer} port {port} in {tries} attempts: {error}",
            says_zh="NCCL 尝试 {tries} 次仍无法连接 {peer} 的端口 {port}：{error}",
        ),
        Signature(
            needle="exceeded error retry count after",
            pattern=(
                rf"onnect: connect(?: to {_PEER})? returned (?P<error>Connection refused), "
                r"exceeded error retry count after (?P<tries>\d+)"
            ),
            standing="possible",
            says="a peer refused NCCL's connection {tries} times: the process there has ended, its address is wrong, or a firewall rejects it",
            says_zh="某个对端拒绝了 NCCL 的连接 {tries} 次：那里的进程已经结束、地址不对，或被防火墙拒绝",
            remedies=("look-at-the-peer", "try-the-port", "open-between-hosts"),
        ),
        Signature(
            needle="onnect returned No route to host, retrying",
            pattern=r"connect returned (?P<error>No route to host), retrying \((?P<tries>\d\d)/\d+\)",
            standing="likely",
            says="NCCL found no route to a peer and tried again ({tries} times and more)",
            says_zh="NCCL 找不到通往某个对端的路由，并一再重试（{tries} 次以上）",
        ),
        Signature(
            needle="Connection timed out, retrying",
            pattern=r"[Cc](?:all to c)?onnect(?: to (?P<peer>[^\s<]+)<(?P<port>\d+)>)? returned (?P<error>Connection timed out), retrying",
            standing="likely",
            says="NCCL's connection to a peer timed out and was tried again: packets to it are dropped",
            says_zh="NCCL 到某个对端的连接超时，并再次尝试：发往它的包被丢弃",
        ),
        # NCCL up to 2.11; "Net : " from 2.7 on.
        Signature(
            needle="onnect to ",
            pattern=rf"WARN (?:Net : )?Connect to {_PEER} failed : " + _ERRORS,
            standing="likely",
            says="NCCL could not connect to {peer} port {port}: {error}",
            says_zh="NCCL 无法连接 {peer} 的端口 {port}：{error}",
        ),
        Signature(
            needle="Call to connect ",
            pattern=r"Call to connect (?:failed|timeout) : " + _ERRORS,
            standing="likely",
            says="NCCL could not connect to a peer: {error}",
            says_zh="NCCL 无法连接某个对端：{error}",
        ),
        Signature(
            needle="Call to connect ",
            pattern=r"Call to connect (?:failed|timeout) : " + _REFUSED,
            standing="possible",
            says="a peer refused NCCL's connection: the process there has ended, its address is wrong, or a firewall rejects it",
            says_zh="某个对端拒绝了 NCCL 的连接：那里的进程已经结束、地址不对，或被防火墙拒绝",
            remedies=("look-at-the-peer", "try-the-port", "open-between-hosts"),
        ),
        Signature(
            needle="onnect to ",
            pattern=(rf"(?:NCCL WARN |socketStartConnect: |socketPollConnect: |Net : )Connect to {_PEER} (?:failed : |returned )" + _REFUSED),
            standing="possible",
            says="{peer} refused NCCL's connection to port {port}: the process there has ended, the address is wrong, or a firewall rejects it",
            says_zh="{peer} 拒绝了 NCCL 到端口 {port} 的连接：那里的进程已经结束、地址不对，或被防火墙拒绝",
            remedies=("look-at-the-peer", "try-the-port", "open-between-hosts"),
        ),
        # torch's own sockets. 99 (address), 97 (family) and 101 (no IPv6) also stand in healthy logs.
        Signature(
            needle="failed to connect to any network address of",
            pattern=r"failed to connect to any network address of \((?P<peer>[^,\s]+), (?P<port>\d+)\)",
            near=r"errno: (?:101 - Network is unreachable|113 - No route to host)",
            standing="likely",
            says="no way leads to {peer} port {port}: the network is unreachable from this host",
            says_zh="没有路径通往 {peer} 的端口 {port}：从这台主机无法到达该网络",
        ),
        Signature(
            needle="(errno: 113 - No route to host)",
            pattern=(
                r"connect to (?!\[?(?:::ffff:)?(?:255\.|0\.0\.0\.0|192\.168\.0\.1\]))\[?(?:::ffff:)?(?P<peer>[^\]\s]+?)\]?:(?P<port>\d+) \(errno: "
                r"113 - (?P<error>No route to host)\)"
            ),
            standing="likely",
            says="no route to {peer} port {port}",
            says_zh="没有到 {peer} 端口 {port} 的路由",
        ),
        Signature(
            needle="(errno: 110 - Connection timed out)",
            pattern=(
                r"connect to (?!\[?(?:::ffff:)?(?:255\.|0\.0\.0\.0|192\.168\.0\.1\]))\[?(?:::ffff:)?(?P<peer>[^\]\s]+?)\]?:(?P<port>\d+) \(errno: "
                r"110 - (?P<error>Connection timed out)\)"
            ),
            standing="likely",
            says="the connection to {peer} port {port} timed out: packets to it are dropped, or nothing has that address",
            says_zh="到 {peer} 端口 {port} 的连接超时：发往它的包被丢弃，或没有设备使用该地址",
        ),
        Signature(
            needle="(errno: 111 - Connection refused)",
            pattern=(
                r"connect to (?!\[?(?:::ffff:)?(?:127\.|localhost))\[?(?:::ffff:)?(?P<peer>[^\]\s]+?)\]?:(?P<port>\d+) "
                r"\(errno: 111 - (?P<error>Connection refused)\)"
            ),
            near=r"any network address of|has timed out after|DistNetworkError|RendezvousConnectionError",
            standing="possible",
            says="{peer} refused the connection to port {port}: nothing listens there, or a firewall rejects it",
            says_zh="{peer} 拒绝了到端口 {port} 的连接：那里没有进程在监听，或被防火墙拒绝",
            remedies=("look-at-the-peer", "try-the-port", "open-between-hosts"),
        ),
        # gRPC: Ray, TPU and JAX coordinators.
        Signature(
            needle="Failed to connect to remote host",
            pattern=r"ipv[46]:(?:%5B)?(?P<peer>(?!127\.|::1)\S{1,80}?)(?:%5D)?:(?P<port>\d+): Failed to connect to remote host: "
            r"(?:connect: )?(?P<error>(?i:connection refused|no route to host|connection timed out|network is unreachable|timeout occurred))",
            standing="possible",
            says="gRPC could not connect to {peer} port {port}: {error}",
            says_zh="gRPC 无法连接 {peer} 的端口 {port}：{error}",
            remedies=("look-at-the-peer", "try-the-port", "open-between-hosts"),
        ),
        # TCPStore until torch 1.10.
        Signature(
            needle="RuntimeError: ",
            pattern=r"RuntimeError: (?P<error>No route to host|Connection timed out|Network is unreachable)\s*$",
            standing="likely",
            says="the store of the job could not be reached: {error}",
            says_zh="无法连接任务的 store：{error}",
        ),
        Signature(
            needle="gloo/transport/tcp",
            pattern=(
                r"(?:connect |remote=)\[(?!(?:::ffff:)?(?:127\.|::1\]|fe80|169\.254\.|172\.17\.0\.))"
                r"(?:::ffff:)?(?P<peer>[^\]]+)\]:(?P<port>\d+):? ?.{0,60}?"
                r"(?P<error>No route to host|Connection timed out|Network is unreachable)"
            ),
            standing="likely",
            says="Gloo could not connect to {peer} port {port}: {error}",
            says_zh="Gloo 无法连接 {peer} 的端口 {port}：{error}",
        ),
        Signature(
            needle="SO_ERROR: ",
            pattern=(
                r"SO_ERROR: (?P<error>No route to host|Connection timed out|Network is unreachable), remote=\[(?:::ffff:)?(?P<peer>[^\]]+)\]"
                r":(?P<port>\d+)"
            ),
            standing="likely",
            says="Gloo could not connect to {peer} port {port}: {error}",
            says_zh="Gloo 无法连接 {peer} 的端口 {port}：{error}",
        ),
        # Amazon EFA: a security group without a rule that names itself, in both directions.
        Signature(
            needle="Unresponsive receiver",
            pattern=r"Unresponsive receiver",
            standing="likely",
            says="EFA got no answer from a peer: its security group must allow all traffic to and from itself, or the peer is gone",
            says_zh="EFA 没有得到某个对端的应答：其安全组必须放行来自自身和发往自身的所有流量，或者对端已经不在",
            remedies=("efa-security-group", "look-at-the-peer"),
        ),
        Signature(
            needle="Unable to insert remote address into address vector",
            pattern=r"Unable to insert remote address into address vector(?: for device (?P<device>\d+))?",
            standing="likely",
            says="EFA could not use the address of a peer: the security group lacks a rule that allows all traffic to itself",
            says_zh="EFA 无法使用某个对端的地址：安全组缺少放行发往自身的所有流量的规则",
            remedies=("efa-security-group",),
        ),
        Signature(
            needle="NET/OFI Request ",
            pattern=r"NET/OFI Request \S+ .{0,40}completed with error.{0,400}(?:unreachable|EHOSTUNREACH|No route to host|err: 113|RC: 113)",
            standing="established",
            says="EFA dropped the traffic to a peer, which it does where security groups forbid it",
            says_zh="EFA 丢弃了发往某个对端的流量，安全组禁止时就会这样",
            remedies=("efa-security-group",),
        ),
        Signature(
            needle="NET/OFI Request ",
            pattern=r"NET/OFI Request \S+ completed with error\. RC: (?P<code>20|21)\b",
            standing="possible",
            says="an EFA request failed with code {code}, most often for a security group that does not allow all traffic to itself",
            says_zh="一个 EFA 请求失败，代码 {code}，多半是因为安全组没有放行发往自身的所有流量",
            remedies=("efa-security-group",),
        ),
        # Open MPI, PRRTE.
        Signature(
            needle="unable to complete a TCP connection",
            pattern=r"[Aa] process or daemon was unable to complete a TCP connection",
            says="Open MPI's daemons cannot connect to each other",
            says_zh="Open MPI 的守护进程之间无法互相连接",
            remedies=("try-the-port", "open-between-hosts"),
        ),
        Signature(
            needle="Open MPI failed to TCP connect to a peer MPI process",
            standing="likely",
            says="an MPI process could not connect to a peer",
            says_zh="某个 MPI 进程无法连接某个对端",
            remedies=("try-the-port", "open-between-hosts"),
        ),
        Signature(
            needle="btl_tcp_endpoint",
            pattern=r"connect\(\) to (?P<peer>\S+?):(?P<port>\d+) failed: " + _ERRORS,
            standing="likely",
            says="an MPI process could not connect to {peer} port {port}: {error}",
            says_zh="某个 MPI 进程无法连接 {peer} 的端口 {port}：{error}",
        ),
        Signature(
            needle="connect(fd=",
            pattern=(
                r"UCX {1,4}ERROR.{0,100} connect\(fd=-?\d+, dest_addr=(?P<peer>(?!127\.|172\.17\.0\.)[\d.]+):(?P<port>\d+)\) failed: " + _ERRORS
            ),
            standing="likely",
            says="UCX could not connect to {peer} port {port}: {error}",
            says_zh="UCX 无法连接 {peer} 的端口 {port}：{error}",
        ),
        Signature(
            needle="Failed to connect to GCS",
            pattern=r"Failed to connect to GCS(?: at address (?P<peer>[^\s:]+):(?P<port>\d+))?",
            standing="possible",
            says="a Ray worker could not reach the head node",
            says_zh="某个 Ray worker 连不上 head 节点",
            remedies=("try-the-port", "open-between-hosts"),
        ),
        # The kernel's own word; scans from outside make the same line, so only private peers count.
        Signature(
            needle="[UFW BLOCK]",
            pattern=(
                r"\[UFW BLOCK\].{0,200}?SRC=(?P<peer>10\.\S{1,40}|192\.168\.\S{1,40}|172\.(?:1[6-9]|2\d|3[01])\.\S{1,40}) "
                r"DST=(?P<host_address>\S{1,64}).{0,200}?PROTO=TCP.{0,100}?DPT=(?P<port>\d{1,5})"
            ),
            standing="likely",
            says="this host's firewall (ufw) dropped a connection from {peer} to port {port}",
            says_zh="这台主机的防火墙（ufw）丢弃了从 {peer} 到端口 {port} 的连接",
            remedies=("open-between-hosts",),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="try-the-port",
            says="Try the connection by hand, in both directions: nc -l 12345 on one host, this on the other.",
            says_zh="手工双向试连：一台主机执行 nc -l 12345，另一台执行下面的命令。",
            command="nc -vz -w 5 PEER_IP 12345; ip route get PEER_IP",
        ),
        Remedy(
            id="open-between-hosts",
            says="Open all TCP ports between the hosts of the job: NCCL and Gloo listen on random high ports, MASTER_PORT alone is not enough.",
            says_zh="放开任务各主机之间的全部 TCP 端口：NCCL 和 Gloo 使用随机高位端口，只开 MASTER_PORT 不够。",
            command="sudo ufw allow from PEER_SUBNET   # or: sudo firewall-cmd --zone=trusted --add-source=PEER_SUBNET",
            verify="nc -vz -w 5 PEER_IP 40000 while nc -l 40000 runs there",
        ),
        Remedy(
            id="efa-security-group",
            says="Add an inbound and an outbound rule to the security group: all traffic, with the group itself as source and as destination.",
            says_zh="在安全组中各加一条入站和出站规则：所有流量，来源和目的都是该安全组自身（0.0.0.0/0 不算）。",
            command="aws ec2 authorize-security-group-egress --group-id SG --ip-permissions 'IpProtocol=-1,UserIdGroupPairs=[{GroupId=SG}]'",
            verify="fi_pingpong -p efa -e rdm PEER_IP",
        ),
        Remedy(
            id="look-at-the-peer",
            says="See whether the process there had ended before: a refused connection is also what a dead peer looks like. Read its log first.",
            says_zh="先看对端进程是否早已结束：对端死掉时看到的也是“连接被拒绝”。先读它的日志。",
        ),
        Remedy(
            id="accept-loopback",
            says="Accept everything on the loopback, before any rule that drops.",
            says_zh="在任何丢弃规则之前放行回环网卡的所有流量。",
            command="sudo iptables -I INPUT 1 -i lo -j ACCEPT   # with nft: sudo nft insert rule inet filter input iifname lo accept",
        ),
    ),
    leads_to=("gloo-connect", "rendezvous-misconfig", "rank-exception"),
    mistaken_for={
        "interface-selection": "an address of docker0, lo or fe80 can be reached by no other host: the choice of interface is at fault, no firewall",
        "rendezvous-misconfig": "refused at MASTER_PORT: nothing listens there yet, or the address is that of another host",
        "peer-lost": "'connection closed' and 'reset by peer' come from connections that once worked: the peer ended",
        "ssh-launcher": "port 22 is the launcher's way to the host, not the training's",
        "gloo-connect": "a refused Gloo connection alone may also be a peer that has just ended",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#networking-issues",
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html",
        "https://github.com/NVIDIA/nccl/issues/1515",
    ),
    hits=(
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.4:6379: Failed to connect to remote host: connect: Connection "
            "refused (111)"
        ),
        "[node7:812:0] sock.c:323  UCX  ERROR   connect(fd=41, dest_addr=10.4.0.9:45031) failed: No route to host",
        (
            "[W1121 10:48:41.472 socket.cpp:764] [c10d] The client socket has failed to connect to 140.85.0.0:30098 (errno: 101 - Network is "
            "unreachable).\n[E1121 10:48:41.472 socket.cpp:818] [c10d] The client socket has failed to connect to any network address of "
            "(10.0.0.1, 29500)."
        ),
        "node7:12:40 [0] include/socket.h:409 NCCL WARN Net : Connect to 10.0.0.4<54263> failed : No route to host",
        "node7:12:40 [1] include/socket.h:361 NCCL WARN Call to connect timeout : Connection refused",
        "node7:12:40 [1] include/socket.h:361 NCCL WARN Call to connect timeout : Connection timed out",
        "node7:39964:40075 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : Software caused connection abort",
        "node7:39964:40075 [0] misc/socket.cc:496 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : No route to host",
        (
            "[rank5]: node5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to "
            "host) errno 115(Operation now in progress)"
        ),
        (
            "[2026-11-03 10:00:01] node5:240:240 [6] misc/socket.cc:575 NCCL WARN socketPollConnect: connect to 10.0.0.4<56849> returned "
            "Connection timed out, exceeded error retry count after 35 attempts"
        ),
        (
            "[2026-11-03 10:00:01] node5:240:240 [6] os/linux.cc:200 (ncclOsSocketPollConnect) NCCL WARN ncclOsSocketPollConnect: connect to "
            "node4<56849> returned Connection refused, exceeded error retry count after 35 attempts"
        ),
        "(worker1, rank=1, pid=184) node2:187:188 [0] NCCL INFO socketPollConnect: connect returned No route to host, retrying (30/34) after sleep",
        "node7:101:193 [0] NCCL INFO Call to connect returned Connection timed out, retrying",
        "node7:101:193 [0] include/socket.h:403 NCCL WARN Connect to 10.2.0.4<39211> failed : Connection timed out",
        "node7:18553:18611 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out",
        "node7:101:193 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 10.2.0.4<39211> failed : Connection refused",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node4]:29500 (errno: 113 - No route to host).",
        (
            "[W1103 10:00:01.123 socket.cpp:764] [c10d] The client socket has failed to connect to [::ffff:10.0.0.4]:39623 (errno: 110 - "
            "Connection timed out)."
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (node4, 29500). The client "
            "socket has failed to connect to 10.0.0.4:29500 (errno: 111 - Connection refused)."
        ),
        "RuntimeError: No route to host",
        (
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:769] connect [10.0.0.4]:21301: "
            "No route to host"
        ),
        "timed out connecting: SO_ERROR: Connection timed out, remote=[::ffff:10.0.0.4]:40105",
        (
            "node2:70:99 [2] ofi_process_cq:1058 NCCL WARN NET/OFI Request 0x7f9944701b8 completed with error. RC: 103. Error: Unresponsive "
            "receiver. This error is typically caused by a peer hardware failure or incorrect inbound/outbound rules in the security group"
        ),
        "node2:70:99 [0] nccl_net_ofi_connect:2019 NCCL WARN NET/OFI Unable to insert remote address into address vector for device 1. RC: -61",
        (
            "node2:70:99 [0] NCCL WARN NET/OFI Request 0x55aa10 (SEND) completed with error: err: 113, flags: 0, prov_errno: 4113, strerror: host "
            "unreachable, len: 0"
        ),
        (
            "node2:70:99 [5] ofi_process_cq:1039 NCCL WARN NET/OFI Request 0x7fbb1b8 completed with error. RC: 21. Error: unknown error. "
            "Completed length: 0"
        ),
        "A process or daemon was unable to complete a TCP connection\nto another process:\n  Local host:    node1\n  Remote host:   node2",
        "WARNING: Open MPI failed to TCP connect to a peer MPI process.  This\nshould not happen.",
        "[node1][[5120,1],0][btl_tcp_endpoint.c:625:mca_btl_tcp_endpoint_complete_connect] connect() to 10.0.0.2:1024 failed: No route to host (113)",
        "ConnectionError: Failed to connect to GCS at address 10.0.0.1:6379 within 5 seconds.",
        (
            "[88123.4] [UFW BLOCK] IN=eth0 OUT= MAC=52:54:00 SRC=10.0.0.4 DST=10.0.0.1 LEN=60 TOS=0x00 PREC=0x00 TTL=63 ID=1 DF PROTO=TCP SPT=41234 "
            "DPT=29500 WINDOW=64240 SYN"
        ),
    ),
    near_misses=(
        "node7:101:193 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 169.254.3.4<39211> failed : No route to host",
        "last error: UNKNOWN: ipv4:127.0.0.1:6379: Failed to connect to remote host: connect: Connection refused (111)",
        "[node7:812:0] sock.c:323  UCX  ERROR   connect(fd=41, dest_addr=127.0.0.1:45031) failed: Connection timed out",
        "[E1121 10:48:41.472 socket.cpp:818] [c10d] The client socket has failed to connect to any network address of (10.0.0.1, 29500).",
        "[W1121 10:48:41 socket.cpp:764] [c10d] The client socket has failed to connect to [fd00::7]:29500 (errno: 101 - Network is unreachable).",
        "node7:12:40 [0] include/socket.h:361 NCCL WARN Call to connect timeout : Address family not supported by protocol",
        "node7:12:40 [0] include/socket.h:409 NCCL WARN Net : Connect to 127.0.0.1<54263> failed : No route to host",
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node4]:29500 (errno: 111 - Connection refused).",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node4]:12345 (errno: 101 - Network is unreachable).",
        (
            "node7:101:193 [0] NCCL INFO socketPollConnect: connect to 10.0.0.4<56849> returned Connection refused, retrying (2/34) after "
            "sleep for 200 msec"
        ),
        "node7:101:193 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node1<57557>",
        "ssh: connect to host node2 port 22: No route to host",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='example.org', port=443): [Errno 113] No route to host",
        "node7:101:193 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 127.0.0.1<39211> failed : Connection refused",
    ),
    explain={
        "en": (
            "One host tried to open a connection to another and failed before a single byte was sent. 'No route to host' and timeouts mean a "
            "firewall, a security group or a missing route; 'Connection refused' also happens where the peer process has already ended, so "
            "read the peer's log before blaming the network. NCCL and Gloo listen on random high ports on every host: opening MASTER_PORT "
            "alone is not enough, and ping and ssh prove nothing about those ports. Try one by hand with nc in both directions. EFA needs a "
            "security group that allows all traffic to itself, inbound and outbound; a rule for 0.0.0.0/0 does not count."
        ),
        "zh": (
            "一台主机试图连接另一台，还没发出任何数据就失败了。“No route to host”和超时说明有防火墙、安全组或缺少路由；“Connection refused”也可能是"
            "对端进程已经结束，所以先看对端日志，再怀疑网络。NCCL 和 Gloo 在每台主机上监听随机的高位端口：只放开 MASTER_PORT 不够，ping 和 ssh 能通也"
            "说明不了这些端口能通。用 nc 双向手工试一个端口。EFA 要求安全组对自身放行全部入站和出站流量，写 0.0.0.0/0 不算数。"
        ),
    },
)
