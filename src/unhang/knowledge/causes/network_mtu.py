"""network-mtu: small messages pass, large ones are lost: the path carries smaller packets than the hosts send."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Command, Signature, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.network import Interface
    from unhang.facts.snapshot import Snapshot
    from unhang.model import Severity

# The bridge of a network that `docker network create` or compose made is called after the first 12 digits of its id.
_NETWORK = lazily(r"br-(?P<id>[0-9a-f]{12})")
# What VXLAN adds to each packet, over IPv4.
_VXLAN_BYTES = 50


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import network

    seen = host.get(network.SUBJECT)
    if seen is None:
        return
    way = network.uplink(seen)
    for i in seen.interfaces:
        over = seen.interface(i.member_of)
        if over is not None and over.kind == "bond" and i.mtu_bytes and over.mtu_bytes and i.mtu_bytes < over.mtu_bytes:
            yield _finding(
                i,
                Text(
                    f"{over.name} sends packets of {over.mtu_bytes} bytes, its member {i.name} carries {i.mtu_bytes}",
                    f"{over.name} 发送 {over.mtu_bytes} 字节的包，其成员 {i.name} 只能承载 {i.mtu_bytes}",
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
                Text(
                    f"the overlay {i.name} sends packets of {i.mtu_bytes} bytes, {way.name} carries {way.mtu_bytes} with {_VXLAN_BYTES} of header",
                    f"overlay 网络 {i.name} 发送 {i.mtu_bytes} 字节的包，{way.name} 连同 {_VXLAN_BYTES} 字节包头只能承载 {way.mtu_bytes}",
                ),
                "warning",
                way.mtu_bytes - _VXLAN_BYTES,
                "one-mtu",
            )
        made = _NETWORK.fullmatch(i.name)
        if i.kind == "bridge" and (made is not None or i.name == "docker0") and i.mtu_bytes > way.mtu_bytes:
            yield _finding(
                i,
                Text(
                    f"containers on {i.name} send packets of {i.mtu_bytes} bytes, {way.name} carries {way.mtu_bytes}",
                    f"{i.name} 上的容器发送 {i.mtu_bytes} 字节的包，{way.name} 只能承载 {way.mtu_bytes}",
                ),
                "note",
                way.mtu_bytes,
                "docker-mtu" if made is None else "docker-network-mtu",
                network=made["id"] if made is not None else "NETWORK",
            )


def _finding(interface: Interface, says: Text, severity: Severity, mtu_bytes: int, remedy: str, *, network: str = "NETWORK") -> HostFinding:
    return CAUSE.host_finding(
        area="network",
        severity=severity,
        says=says,
        leads_to=Text(
            "connections open and small messages pass, then transfers stall where ICMP is filtered",
            "连接能建立，小消息能通过，但在过滤 ICMP 的地方传输会停住",
        ),
        evidence=(Evidence(source=f"/sys/class/net/{interface.name}/mtu", text=str(interface.mtu_bytes)),),
        remedies=(remedy, "find-the-mtu"),
        commands={
            "one-mtu": command("sudo ip link set dev {name:interface} mtu {mtu:number}", name=interface.name, mtu=mtu_bytes),
            "docker-mtu": _docker(mtu_bytes),
            "docker-network-mtu": _network(network, mtu_bytes),
        },
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


CAUSE = Cause(
    id="network-mtu",
    role="root",
    title="Packets larger than the path carries (MTU)",
    title_zh="报文超过路径的 MTU",
    what=(
        "Connections open and small messages pass, then everything stalls: large packets are dropped on the way or do not fit the peer's queue pair."
    ),
    why=(
        "Jumbo frames (MTU 9000) on some hosts or switch ports only, an overlay or tunnel (VXLAN, IPsec, WireGuard) whose header was not subtracted, "
        "or filtered ICMP, so that nobody learns the smaller size."
    ),
    signatures=(
        Signature(
            needle="essage too long, mtu",
            pattern=r"local error: [Mm]essage too long,? mtu[=:] ?(?P<mtu>\d+)",
            says="a packet did not fit the interface, whose MTU is {mtu}",
            says_zh="有报文超过网卡的 MTU（{mtu}）",
        ),
        Signature(
            needle="Frag needed and DF set",
            pattern=r"(?:From (?P<hop>\S+) .*)?Frag needed and DF set \(mtu = (?P<mtu>\d+)\)",
            says="the path carries packets of {mtu} bytes only and the hosts send larger ones",
            says_zh="该路径只能承载 {mtu} 字节的报文，而主机发送的更大",
        ),
        Signature(
            needle="need to frag",
            pattern=r"(?P<peer>(?<!\S)\S{1,100}) unreachable - need to frag \(mtu (?P<mtu>\d+)\)",
            says="the path to {peer} carries packets of {mtu} bytes only and the host sends larger ones",
            says_zh="到 {peer} 的路径只能承载 {mtu} 字节的报文，而这台主机发送的更大",
        ),
        Signature(
            needle="Message too long",
            pattern=r"(?:[Ww]rite|[Ss]end\w*|errno 90|Errno 90).{0,80}Message too long",
            unless=r"tokens?|context length|OSError: \[Errno 36\]|NRPE|syslog",
            standing="likely",
            says="a packet was larger than the interface carries (EMSGSIZE)",
            says_zh="有报文大于网卡所能承载的大小（EMSGSIZE）",
        ),
        # A receive queue pair with another path MTU than the sender's: NCCL since 2.20 no longer takes the smaller one on the receiving side.
        Signature(
            needle="Got completion ",
            pattern=r"NET/IB ?: ?(?:\S+ )?Got completion (?:from peer (?P<peer>\S+) )?with (?:error|status[ =]|status=IBV_WC_LOC_LEN_ERR\()\s?1\b",
            standing="possible",
            says="an InfiniBand receive ended with local length error (1): the two ports may have different MTUs, or the ranks different counts",
            says_zh="一次 InfiniBand 接收以 local length error（1）结束：可能是两个端口的 MTU 不同，或各 rank 的 count 不同",
            remedies=("compare-active-mtu", "one-mtu"),
        ),
        Signature(
            needle="IBV_WC_LOC_LEN_ERR",
            standing="possible",
            says="an InfiniBand receive ended with local length error: the two ports may have different MTUs, or the ranks different counts",
            says_zh="一次 InfiniBand 接收以 local length error 结束：可能是两个端口的 MTU 不同，或各 rank 的 count 不同",
            remedies=("compare-active-mtu", "one-mtu"),
        ),
        Signature(
            needle="TU mismatch",
            pattern=r"\bMTU mismatch\b",
            standing="likely",
            says="two ends of a link report different MTUs",
            says_zh="某条链路的两端报告的 MTU 不同",
            remedies=("compare-active-mtu", "one-mtu"),
        ),
        Signature(
            needle="ICMP_FRAG_NEEDED",
            standing="likely",
            says="a router asked for smaller packets than the hosts send",
            says_zh="有路由器要求使用比主机所发更小的报文",
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="find-the-mtu",
            says="Find the largest packet that passes: 8972 bytes of payload is MTU 9000, 1472 is 1500; go down until it answers.",
            says_zh="找出能通过的最大报文：净荷 8972 对应 MTU 9000，1472 对应 1500；逐步减小直到有应答。",
            command="for n in 8972 4172 1472 1422 1372; do ping -M do -c 2 -W 1 -s $n PEER_IP > /dev/null && echo payload $n passes && break; done",
        ),
        Remedy(
            id="one-mtu",
            says="Give every host and every switch port of the path the same MTU, for an overlay less its header (50 bytes for VXLAN).",
            says_zh="路径上所有主机和交换机端口使用相同的 MTU；若是 overlay 网络，要减去封装头（VXLAN 为 50 字节）。",
            command="sudo ip link set dev eth0 mtu 1450",
            verify="ip -o link show eth0 | grep -o 'mtu [0-9]*'; tracepath -n PEER_IP",
        ),
        Remedy(
            id="compare-active-mtu",
            says="Compare active_mtu of the InfiniBand or RoCE ports on both hosts.",
            says_zh="比较两台主机上 InfiniBand 或 RoCE 端口的 active_mtu。",
            command="ibv_devinfo | grep -E 'hca_id|active_mtu'",
        ),
        Remedy(
            id="probe-for-the-mtu",
            says="As a stopgap let TCP find the size by itself, where ICMP is filtered.",
            says_zh="ICMP 被过滤时，可临时让 TCP 自行探测大小。",
            command="sudo sysctl -w net.ipv4.tcp_mtu_probing=1",
            verify="sysctl net.ipv4.tcp_mtu_probing",
        ),
        Remedy(
            id="docker-mtu",
            says=(
                "Give Docker's networks the MTU of the host's interface (a line in /etc/docker/daemon.json; the restart ends all containers), or run "
                "with --network=host."
            ),
            says_zh=(
                "让 Docker 网络使用主机网卡的 MTU（/etc/docker/daemon.json 中的 mtu；重启 Docker 会结束所有容器），或用 --network=host 运行容器。"
            ),
            command=_docker(1450),
        ),
        Remedy(
            id="docker-network-mtu",
            says=(
                "Make the network anew with the MTU of the host's interface, after its containers have left it, and with its other options if it has "
                "any; with compose put com.docker.network.driver.mtu under its driver_opts instead."
            ),
            says_zh=(
                "让容器先离开该网络，再按主机网卡的 MTU 重新创建它（原有的其他选项也要带上）；使用 compose 时，改为在该网络的 driver_opts 中设置 "
                "com.docker.network.driver.mtu。"
            ),
            command=_network("NETWORK", 1450),
            verify="docker network inspect -f '{{json .Options}}' NETWORK",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "collective-mismatch": "ranks with different counts end in truncated messages or length errors too; compare the calls before the network",
        "network-blocked": "there nothing connects at all; here connections open and only large messages stall",
        "straggler-timeout": "a stall at the first large all-reduce, on all ranks at once, is no slow rank",
        "ib-transport-retry": "retry exceeded (12) is a link that drops; a local length error (1) is a size that does not fit",
    },
    sources=(
        "https://docs.kernel.org/networking/ip-sysctl.html",
        "https://github.com/NVIDIA/nccl/issues/1524",
        "https://github.com/NVIDIA/nccl/pull/2135",
    ),
    hits=(
        "ping: local error: message too long, mtu=1500",
        "ping: local error: Message too long, mtu: 1450",
        "From 10.0.0.254 icmp_seq=1 Frag needed and DF set (mtu = 1450)",
        "10:00:01.123456 IP 10.0.0.254 > 10.0.0.1: ICMP 10.0.0.2 unreachable - need to frag (mtu 1450), length 556",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Write error [10.0.0.2]:51860: Message too long",
        (
            "node7:2144:2203 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<42861> with status=1 opcode=129 len=0 "
            "vendor err 105 (Recv)"
        ),
        "node7:2144:2203 [1] transport/net_ib.cc:816 NCCL WARN NET/IB : Got completion with error 1, opcode 129, len 0, vendor err 105",
        "NET/IB: mlx5_0:1 completion with status=IBV_WC_LOC_LEN_ERR(1) vendor_err=105",
        "ospfd[812]: eth1 MTU mismatch with neighbour 10.0.0.2",
        "10:00:02 10.0.0.254 icmp ICMP_FRAG_NEEDED next-hop mtu 1400",
    ),
    near_misses=(
        "node7:2144:2203 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<42861> with status=12 opcode=0 len=0",
        "node7:2144:2203 [1] transport/net_ib.cc:816 NCCL WARN NET/IB : Got completion with error 11, opcode 0, len 0, vendor err 137",
        "2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP mode DEFAULT group default qlen 1000",
        "ValueError: Message too long: 9041 tokens exceed the context length of 8192",
    ),
    explain={
        "en": (
            "The hosts send packets that are larger than some link between them carries, and nobody tells them. Handshakes, ssh and small "
            "all-reduces fit and work; the first large message stalls until the watchdog ends the job. That is what gives it away: a benchmark "
            "passes at 8 bytes and hangs at some kilobytes. Ping with -M do and a large payload shows the limit at once. Make the MTU equal "
            "along the whole path, or smaller by the header of the tunnel."
        ),
        "zh": (
            "主机发出的报文比中间某段链路能承载的大，而没有人告诉它们。握手、ssh 和小的 all-reduce 都能通过，第一个大消息就卡住，直到看门狗结束任务。"
            "这正是辨认的办法：基准测试在 8 字节时正常，到几 KB 就挂起。用 ping -M do 加大净荷，立刻能看出上限。把整条路径的 MTU 设成一致，有隧道时再"
            "减去封装头。"
        ),
    },
)
