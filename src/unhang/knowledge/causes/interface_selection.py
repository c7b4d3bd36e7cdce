"""interface-selection: NCCL or Gloo talks through the wrong network interface, or was told one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.text import Text, same
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.network import Interface
    from unhang.facts.snapshot import Snapshot
    from unhang.logs.log_facts import At

# Interfaces that no other host can reach, however healthy they look on their own.
_LOCAL_ONLY = lazily(
    r"^(?:Bootstrap|NET/Socket)?\s*(?:\[0\])?(?P<name>(?:lo|docker\w*|veth\w*|virbr\w*|br-\w+|cni\w*|flannel[\w.]*|cali\w*|lxc\w*|podman\w*)(?=:|$)"
    r"|[\w.@-]+(?=:(?:fe80:|169\.254\.)))"
)
# What tells that the ranks did not reach each other.
_FAILED = ("network-blocked", "gloo-connect", "peer-lost", "store-disconnect", "collective-timeout", "unhandled-generic")


def _in_logs(view: LogView) -> Finding | None:
    asked = _asked(view)
    found = CAUSE.of_hits(view.hits_of(CAUSE.id), view)
    if found is not None:
        best = min(view.hits_of(CAUSE.id), key=lambda h: h.signature.standing != "established")
        if asked and best.signature in (_NONE_FOUND, _BAD_FAMILY):
            return CAUSE.of_hits(
                view.hits_of(CAUSE.id),
                view,
                standing="established",
                says=Text(
                    "NCCL_SOCKET_IFNAME={asked} matches no usable network interface of the host, so NCCL cannot start",
                    "NCCL_SOCKET_IFNAME={asked} 没有匹配到主机上任何可用的网卡，因此 NCCL 无法启动",
                ).fill(asked=asked),
                remedies=("let-nccl-choose", "name-one-that-exists"),
            )
        return found
    return _chosen(view, asked)


def _asked(view: LogView) -> str | None:
    return next((s.partition("=")[2] for s in view.nccl.settings if s.startswith("NCCL_SOCKET_IFNAME=")), None)


def _chosen(view: LogView, asked: str | None) -> Finding | None:
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
    connected = any(view.hits_of(c) for c in ("network-blocked", "gloo-connect"))
    return CAUSE.finding(
        standing="likely" if connected else "possible",
        says=Text(
            "NCCL chose the interface {name}, which reaches no other host, on {n} of {of} hosts",
            "{of} 台主机中有 {n} 台上，NCCL 选用了到不了其他主机的网卡 {name}",
        ).fill(name=name, n=len({a.host for a in at if a.host}) or 1, of=len(hosts)),
        hosts=tuple(sorted({a.host for a in at if a.host})),
        evidence=tuple(a.evidence() for a in at[:3]),
        remedies=("keep-off-link-local",) if ":169.254." in at[0].text else ("name-one-that-exists",) if asked else _OFF_VIRTUAL,
    )


_OFF_VIRTUAL = ("keep-off-virtual", "name-one-that-exists")
_NONE_FOUND = Signature(
    needle="no socket interface found",
    pattern=r"Bootstrap ?: no socket interface found",
    says="NCCL found no network interface to start from: NCCL_SOCKET_IFNAME matches none, or the host has none with an address",
    says_zh="NCCL 找不到可用于启动的网卡：NCCL_SOCKET_IFNAME 没有匹配到任何网卡，或者主机没有带地址的网卡",
    remedies=("name-one-that-exists", "let-nccl-choose"),
)
_BAD_FAMILY = Signature(
    needle="is neither AF_INET(",
    pattern=r"connecting to address \S* ?with family (?P<family>\d+) is neither AF_INET\(\d+\) nor AF_INET6\(\d+\)",
    standing="likely",
    says="NCCL was given an address without a family ({family}), as happens where NCCL_SOCKET_IFNAME matches no interface of a host",
    says_zh="NCCL 得到的地址没有有效的地址族（{family}）；某台主机上没有网卡匹配 NCCL_SOCKET_IFNAME 时会这样",
    remedies=("name-one-that-exists", "let-nccl-choose"),
)

# What is no name of an interface: a choice as NCCL writes it, an address.
_NO_NAME = r"(?:[\^=~!]|\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4}:[0-9a-fA-F]{0,4}:)"

# Bridges and the ends of containers, which end on this host. A bridge that carries the default route is something else.
_BRIDGES = lazily(r"(?:docker|virbr|veth|cni|flannel|cali|lxc|podman)|br-[0-9a-f]{12}$")


_DUPLEX = {"full": Text("full", "全双工"), "half": Text("half", "半双工"), "unknown": Text("unknown", "双工模式未知")}


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import infiniband, network

    seen = host.get(network.SUBJECT)
    if seen is None or seen.nccl.interfaces is None:
        return
    several, way = network.several_hosts(host), network.uplink(seen)
    to_others = way.name if way is not None else "NAME"
    with_address = same(", ".join(i.name for i in seen.interfaces if network.usable(i))) or Text("none", "没有可用的接口")
    commands = {
        "name-one-that-exists": command("export NCCL_SOCKET_IFNAME={way:interface}", way=to_others),
        "gloo-interface": command("export GLOO_SOCKET_IFNAME={way:interface}", way=to_others),
    }
    nccl = seen.nccl.asked if seen.nccl.asked is not None and seen.nccl.asked.name == "NCCL_SOCKET_IFNAME" else None
    if nccl is not None:
        in_file = command("sudo sed -i '/^NCCL_SOCKET_IFNAME/d' {file:path}", file=nccl.place)
        commands["let-nccl-choose"] = command("unset NCCL_SOCKET_IFNAME") if nccl.place == "the environment" else in_file
    if nccl is not None and not seen.nccl.interfaces:
        yield CAUSE.host_finding(
            area="network",
            severity="error",
            says=Text(
                "NCCL_SOCKET_IFNAME={value} matches no interface that is running with an address; this host has {names}",
                "NCCL_SOCKET_IFNAME={value} 没有匹配到任何已启用且有地址的接口；本机有 {names}",
            ).fill(value=nccl.value, names=with_address),
            leads_to=Text("NCCL ends at its start: no socket interface found", "NCCL 启动时就结束：no socket interface found"),
            evidence=(Evidence(source=nccl.place, text=f"NCCL_SOCKET_IFNAME={nccl.value}"),),
            remedies=("let-nccl-choose", "name-one-that-exists"),
            commands=commands,
        )
    if seen.gloo.asked is not None:
        absent = [n for n in seen.gloo.asked.value.split(",") if n not in (seen.gloo.interfaces or ())]
        if absent and seen.gloo.interfaces is not None:
            yield CAUSE.host_finding(
                area="network",
                severity="error",
                says=Text(
                    "GLOO_SOCKET_IFNAME names {absent}: none has that name and an address; this host has {names}",
                    "GLOO_SOCKET_IFNAME 指定了 {absent}：没有叫这个名字且有地址的接口；本机有 {names}",
                ).fill(absent=", ".join(map(repr, absent)), names=with_address),
                leads_to=Text("every Gloo group ends at its start: unable to find address", "每个 Gloo 组一开始就结束：unable to find address"),
                evidence=(Evidence(source=seen.gloo.asked.place, text=f"GLOO_SOCKET_IFNAME={seen.gloo.asked.value}"),),
                # With several hosts its own name may lead here alone; on one it does no harm.
                remedies=("gloo-interface", "unset-gloo") if several else ("unset-gloo", "gloo-interface"),
                commands=commands,
            )
    chosen = [i for name in seen.nccl.interfaces if (i := seen.interface(name)) is not None]
    if not chosen:
        return
    first, local = chosen[0], [i for i in chosen if _ends_here(i, way)]
    address = first.addresses[0] if first.addresses else Text("without an address", "没有地址")
    met = Text("{name} ({address})", "{name}（{address}）").fill(name=first.name, address=address)
    over_rdma = (rdma := host.get(infiniband.SUBJECT)) is not None and bool(infiniband.active(rdma))
    leave_out = ("name-one-that-exists",) if nccl is not None else ("keep-off-virtual", "name-one-that-exists")
    evidence = (Evidence(source="/sys/class/net", text=f"NCCL takes {', '.join(i.name for i in chosen)}: {seen.nccl.why}"),)
    if first in local and (several or (nccl is None and first.kind != "tunnel" and len(local) < len(chosen))):
        yield CAUSE.host_finding(
            area="network",
            severity="error" if several else "warning",
            says=Text(
                "NCCL meets the other ranks over {met}, which no other host can reach", "NCCL 经 {met}与其他 rank 通信，而其他主机都到不了那里"
            ).fill(met=met),
            leads_to=Text(
                "ranks of several hosts never find each other: connection refused, or timed out", "多台主机的 rank 永远找不到彼此：连接被拒绝或超时"
            ),
            evidence=evidence,
            remedies=leave_out,
            commands=commands,
        )
    elif first.kind == "tunnel" and (several or (way is not None and way.name != first.name)):
        yield CAUSE.host_finding(
            area="network",
            severity="warning",
            says=Text("NCCL meets the other ranks over {met}, a tunnel or VPN", "NCCL 经 {met}与其他 rank 通信，它是隧道或 VPN").fill(met=met),
            leads_to=Text(
                "hosts outside of it cannot be reached, and what passes is slow and in small packets", "它之外的主机无法到达，能通过的也很慢、包很小"
            ),
            evidence=evidence,
            remedies=("name-one-that-exists",),
            commands=commands,
        )
    elif several and local and not over_rdma:
        yield CAUSE.host_finding(
            area="network",
            severity="warning",
            says=Text("NCCL spreads its connections over {all}, of which {local} ends here", "NCCL 把连接分散到 {all}，其中 {local} 只通到本机").fill(
                all=", ".join(i.name for i in chosen), local=", ".join(i.name for i in local)
            ),
            leads_to=Text("the connections over it time out while the others work", "经过它的连接超时，而其他连接正常"),
            evidence=evidence,
            remedies=leave_out,
            commands=commands,
        )
    elif (
        several and not over_rdma and seen.peer is not None and seen.peer.route is not None and seen.peer.route.interface not in seen.nccl.interfaces
    ):
        yield CAUSE.host_finding(
            area="network",
            severity="note",
            says=Text(
                f"the way to MASTER_ADDR ({seen.peer.address}) leads over {seen.peer.route.interface}, while NCCL takes {first.name}",
                f"到 MASTER_ADDR（{seen.peer.address}）的路由经过 {seen.peer.route.interface}，而 NCCL 使用 {first.name}",
            ),
            leads_to=Text(
                "where the other hosts are not in the net of that interface too, the ranks never find each other",
                "若其他主机不在该接口的网络中，各 rank 永远找不到彼此",
            ),
            evidence=evidence,
            remedies=("name-one-that-exists",),
            commands=commands,
        )
    if not first.virtual and ((first.speed_mbps is not None and first.speed_mbps <= 100) or first.duplex == "half"):
        yield CAUSE.host_finding(
            area="network",
            severity="warning" if several else "note",
            says=Text("{name} runs at {speed} Mb/s, {duplex} duplex", "{name} 的速率为 {speed} Mb/s，{duplex}").fill(
                name=first.name,
                speed=first.speed_mbps or Text("an unknown number of", "未知数值"),
                duplex=_DUPLEX.get(first.duplex or "unknown", same(str(first.duplex))),
            ),
            leads_to=Text(
                "gradients take minutes where they should take seconds; collectives of several hosts run into their timeout",
                "本该几秒的梯度同步要几分钟；多主机的集合通信会超时",
            ),
            evidence=(Evidence(source=f"/sys/class/net/{first.name}/speed", text=f"{first.speed_mbps} Mb/s, {first.duplex} duplex"),),
            remedies=("see-the-link",),
            commands={"see-the-link": command("sudo ethtool {name:interface}", name=first.name)},
        )


def _ends_here(interface: Interface, way: Interface | None) -> bool:
    return interface.kind == "loopback" or (_BRIDGES.match(interface.name) is not None and (way is None or way.name != interface.name))


CAUSE = Cause(
    id="interface-selection",
    role="root",
    title="The wrong network interface",
    title_zh="选错了网卡",
    what="NCCL, Gloo or MPI binds to an interface through which the other hosts cannot be reached (docker0, lo, veth, link-local), or to none.",
    why=(
        "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that this host does not have, or nothing was said and the first one in the list "
        "is a bridge, a tunnel or a storage network."
    ),
    signatures=(
        _NONE_FOUND,
        _BAD_FAMILY,
        Signature(
            needle="NET/Socket : ",
            pattern=r"NET/Socket : (?:no interface found|No usable listening interface found)",
            says="NCCL found no network interface to listen on",
            says_zh="NCCL 找不到可以监听的网卡",
            remedies=("name-one-that-exists", "let-nccl-choose"),
        ),
        Signature(
            needle="No interface found in the same subnet as",
            pattern=r"No interface found in the same subnet as (?:remote address )?(?P<peer>\S+)",
            says="no interface of this host is in the subnet of {peer}, which NCCL_COMM_ID names",
            says_zh="本机没有网卡与 NCCL_COMM_ID 指定的 {peer} 在同一子网",
            remedies=("name-one-that-exists", "let-nccl-choose"),
        ),
        # Without GLOO_SOCKET_IFNAME Gloo takes the address of the host's own name, and that need not be one of this host.
        Signature(
            needle="Unable to find interface for: ",
            pattern=r"ifa != nullptr\.? {0,2}Unable to find interface for: \[(?P<address>[^\]]+)\]",
            says="Gloo took the address {address}, to which the name of this host resolves, and no interface of it has that one",
            says_zh="Gloo 使用了本机主机名解析出的地址 {address}，而本机没有网卡拥有该地址",
            remedies=("gloo-interface", "name-resolves-here"),
        ),
        Signature(
            needle="interface or hostname can't be empty",
            says="Gloo was given neither an interface nor the name of this host, which is empty",
            says_zh="没有为 Gloo 指定网卡，而本机的主机名又是空的",
            remedies=("gloo-interface", "name-resolves-here"),
        ),
        # Gloo: GLOO_SOCKET_IFNAME names an interface that is absent or has no address. Where a host name is meant, the check is `rp`.
        Signature(
            needle="Unable to find address for: ",
            pattern=rf"(?:ifa != nullptr|\bfalse)\.? {{0,2}}Unable to find address for: (?!{_NO_NAME})(?P<interface>[^\s,'\")]+)",
            says="Gloo finds no address on the interface {interface}: it is absent on this host, down, or has no IP address",
            says_zh="Gloo 在网卡 {interface} 上找不到地址：本机没有该网卡，或者它未启用，或者没有 IP 地址",
            remedies=("unset-gloo", "gloo-interface"),
        ),
        Signature(
            needle="Unable to find address for: ",
            pattern=rf"(?:ifa != nullptr|\bfalse)\.? {{0,2}}Unable to find address for: (?P<interface>{_NO_NAME}[^\s,'\")]*)",
            says="Gloo was told the interface {interface}: it takes exact names, and knows neither ^ and = nor addresses",
            says_zh="为 Gloo 指定的网卡是 {interface}：它只接受确切的网卡名，不支持 ^、= 和地址",
            remedies=("gloo-interface", "unset-gloo"),
        ),
        # The connection failed at once, and NCCL asks for no errno. Users mend it by naming the interface; a peer that has ended looks the same.
        Signature(
            needle="no POLLOUT events",
            pattern=r"socketPollConnect poll\(\) returned \d+, no POLLOUT events",
            standing="likely",
            says="NCCL's connection to a peer failed at once: the interface it chose does not lead there, or the process there has ended",
            says_zh="NCCL 到某个对端的连接立即失败：它选用的网卡到不了那里，或那里的进程已经结束",
            remedies=("name-one-that-exists", "keep-off-virtual"),
        ),
        Signature(
            needle="onnect to fe80",
            pattern=r"[Cc]onnect to fe80[0-9a-fA-F:]*%(?P<interface>[\w.-]+)<(?P<port>\d+)> (?:failed|returned)",
            says="NCCL tried a peer through {interface} by its link-local address, which only that one link can reach",
            says_zh="NCCL 经 {interface} 用链路本地地址连接对端，而该地址只在这一条链路上有效",
            remedies=("keep-off-virtual", "ipv4-only"),
        ),
        Signature(
            needle="onnect to fe80",
            pattern=r"[Cc]onnect to (?P<peer>fe80[0-9a-fA-F:]*)<\d+> (?:failed|returned)",
            says="NCCL tried a peer by the link-local address {peer}, which is valid on one link only",
            says_zh="NCCL 用链路本地地址 {peer} 连接对端，而该地址只在一条链路上有效",
            remedies=("keep-off-virtual", "ipv4-only"),
        ),
        # 169.254/16 is what a host gives itself where nobody answers for an address, and what management controllers (USB to the BMC) have.
        Signature(
            needle="onnect to 169.254.",
            pattern=r"[Cc]onnect to (?P<peer>169\.254\.\d+\.\d+)<\d+> (?:failed|returned|timed)",
            standing="likely",
            says="NCCL tried a peer by the link-local address {peer}, which no other host can reach: it was given the wrong interface",
            says_zh="NCCL 用链路本地地址 {peer} 连接对端，其他主机到不了该地址：选错了网卡",
            remedies=("keep-off-link-local", "name-one-that-exists"),
        ),
        Signature(
            needle="[169.254.",
            pattern=r"(?:connect (?:to )?|remote=)\[(?:::ffff:)?(?P<peer>169\.254\.\d+\.\d+)\]",
            standing="likely",
            says="a peer was tried at {peer}, a link-local address, which no other host can reach: it announced the wrong interface",
            says_zh="连接的对端地址 {peer} 是链路本地地址，其他主机无法到达：对端公布了错误的网卡",
            remedies=("gloo-interface", "keep-off-link-local"),
        ),
        # Up to NCCL 2.3; the loopback is taken only where NCCL_SOCKET_IFNAME names it.
        Signature(
            needle="NET : Using interface lo:",
            pattern=r"NET : Using interface (?P<interface>lo):127\.",
            near=r"Call to connect (?:timeout|failed) : Connection refused|Connection timed out",
            standing="likely",
            says="NCCL was told to use the interface {interface} as well, which reaches no other host, and a connection was refused",
            says_zh="NCCL 被指定同时使用网卡 {interface}，它到不了其他主机，而且有连接被拒绝",
            remedies=("name-one-that-exists", "let-nccl-choose"),
        ),
        # Docker hands out the addresses of its default bridge one by one; some clusters use 172.17 themselves.
        Signature(
            needle="onnect to 172.17.",
            pattern=r"[Cc]onnect to (?P<peer>172\.17\.0\.\d+)<\d+> (?:failed|returned)",
            standing="likely",
            says="NCCL tried a peer at {peer}, an address of Docker's default bridge, which other hosts cannot reach",
            says_zh="NCCL 连接对端 {peer}，这是 Docker 默认网桥的地址，其他主机无法到达",
            remedies=("keep-off-virtual", "host-network"),
        ),
        Signature(
            needle="onnect to 172.17.",
            pattern=r"[Cc]onnect to (?P<peer>172\.17\.[1-9]\d*\.\d+)<\d+> (?:failed|returned)",
            standing="possible",
            says="NCCL did not reach {peer}: it lies in the net of Docker's default bridge, unless the cluster uses that net itself",
            says_zh="NCCL 没有连上 {peer}：它位于 Docker 默认网桥的网段，除非集群自己也使用这个网段",
            remedies=("keep-off-virtual", "host-network"),
        ),
        Signature(
            needle="dest_addr=172.17.",
            pattern=r"UCX {1,4}ERROR.{0,100} connect\(fd=-?\d+, dest_addr=(?P<peer>172\.17\.0\.\d+):\d+\) failed",
            standing="likely",
            says="UCX tried a peer at {peer}, an address of Docker's default bridge, which other hosts cannot reach",
            says_zh="UCX 连接对端 {peer}，这是 Docker 默认网桥的地址，其他主机无法到达",
            remedies=("ucx-device", "host-network"),
        ),
        Signature(
            needle="=[172.17.",
            pattern=r"(?:connect|timed out).{0,200}remote=\[(?:::ffff:)?(?P<peer>172\.17\.0\.\d+)\]",
            standing="likely",
            says="Gloo tried a peer at {peer}, an address of Docker's default bridge, which other hosts cannot reach",
            says_zh="Gloo 连接对端 {peer}，这是 Docker 默认网桥的地址，其他主机无法到达",
            remedies=("gloo-interface", "host-network"),
        ),
        Signature(
            needle="gloo/transport/tcp",
            pattern=r"(?:connect |remote=)\[(?:::ffff:)?(?P<peer>fe80:[0-9a-fA-F:]+)(?:%[\w.-]+)?\]",
            standing="likely",
            says="Gloo tried a peer by the link-local address {peer}, which is valid on one link only",
            says_zh="Gloo 用链路本地地址 {peer} 连接对端，而该地址只在一条链路上有效",
            remedies=("gloo-interface",),
        ),
        Signature(
            needle="Socket creation failed : Address family not supported",
            standing="likely",
            says="NCCL got an address of a family that this host does not speak: it has no IP interface, or only some hosts have IPv6",
            says_zh="NCCL 得到的地址所属的地址族本机不支持：本机没有 IP 网卡，或者只有部分主机有 IPv6",
            remedies=("ipv4-only", "name-one-that-exists"),
        ),
        # Old NCCL printed no "Bootstrap : Using"; MPI refuses names by itself.
        Signature(
            needle="An invalid value was given for btl_tcp_if_",
            pattern=r"An invalid value was given for btl_tcp_if_(?P<which>include|exclude)",
            says="Open MPI was told an interface (btl_tcp_if_{which}) that this host does not have",
            says_zh="为 Open MPI 指定的网卡（btl_tcp_if_{which}）本机没有",
            remedies=("mpi-interface",),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="name-one-that-exists",
            says=(
                "Name the interface that carries the route to the other hosts, on every host by its own name; a list is allowed (eno1,eth0), and one "
                "prefix covers several."
            ),
            says_zh="指定通向其他主机的那块网卡；各主机网卡名不同时写成列表（如 eno1,eth0），写前缀可匹配多个。",
            command="export NCCL_SOCKET_IFNAME=$(ip -o route get PEER_IP | grep -oP 'dev \\K\\S+')",
            verify="NCCL_DEBUG=INFO torchrun ... 2>&1 | grep -E 'NCCL_SOCKET_IFNAME set by environment|Bootstrap ?: Using'",
        ),
        Remedy(
            id="let-nccl-choose",
            says="Unset NCCL_SOCKET_IFNAME everywhere, also in /etc/nccl.conf, ~/.nccl.conf and the container image, and let NCCL choose.",
            says_zh="到处取消 NCCL_SOCKET_IFNAME（包括 /etc/nccl.conf、~/.nccl.conf 和容器镜像），让 NCCL 自己选择。",
            command="env | grep NCCL_; cat /etc/nccl.conf ~/.nccl.conf; ip -br addr",
        ),
        Remedy(
            id="keep-off-virtual",
            says="Keep NCCL off interfaces that exist on one host only; names after ^ are prefixes to leave out.",
            says_zh="让 NCCL 避开只在本机有效的网卡；^ 之后是要排除的前缀。",
            env={"NCCL_SOCKET_IFNAME": "^lo,docker,veth,virbr,br-,cni,flannel,cali"},
            verify="NCCL_DEBUG=INFO torchrun ... 2>&1 | grep -E 'NCCL_SOCKET_IFNAME set by environment|Bootstrap ?: Using'",
        ),
        Remedy(
            id="keep-off-link-local",
            says=(
                "Name the interface of the cluster's network. Addresses of 169.254/16 are on links of one host alone, such as the USB network of its "
                "management controller (usb0, enx...); another release of NCCL changes nothing."
            ),
            says_zh="指定集群网络的网卡。169.254/16 的地址只在一台主机的链路上有效，例如管理控制器的 USB 网卡（usb0、enx...）；换 NCCL 版本没有用。",
            command="ip -br -4 addr | grep -v 169.254; export NCCL_SOCKET_IFNAME=$(ip -o route get PEER_IP | grep -oP 'dev \\K\\S+')",
        ),
        Remedy(
            id="ucx-device",
            says="Name the devices that UCX may use: the one of the cluster's network, or the adapters (mlx5_0:1).",
            says_zh="指定 UCX 可用的设备：集群网络的网卡，或 RDMA 网卡（mlx5_0:1）。",
            command="ucx_info -d | grep -A2 Transport; ip -4 addr; export UCX_NET_DEVICES=eth0",
            verify="UCX_LOG_LEVEL=info ucx_info -e -u t -D tcp | grep lane",
        ),
        Remedy(
            id="gloo-interface",
            says=(
                "Tell Gloo the interface that carries the route to the other hosts (exact names; it knows neither prefixes nor ^), on each host "
                "its own."
            ),
            says_zh="把通向其他主机的网卡名告诉 Gloo（必须是确切名称，不支持前缀和 ^），每台主机写各自的名称。",
            command="export GLOO_SOCKET_IFNAME=$(ip -o route get PEER_IP | grep -oP 'dev \\K\\S+')",
            verify="ss -tnp | grep python   # the local addresses must be those of that interface",
        ),
        Remedy(
            id="name-resolves-here",
            says=(
                "Give the host a name with a letter in it, and let that name resolve to an address of the host (a line in /etc/hosts): a name of "
                "digits alone is read as an address."
            ),
            says_zh="给主机起一个含字母的名字，并让它解析到本机的地址（在 /etc/hosts 中加一行）：纯数字的名字会被当作地址。",
            command="hostname; getent ahosts $(hostname); ip -brief address",
        ),
        Remedy(
            id="unset-gloo",
            says=(
                "Unset GLOO_SOCKET_IFNAME (and TP_SOCKET_IFNAME): Gloo then takes the address that the host name resolves to. That does on one host; "
                "with several it has to be one that the others reach."
            ),
            says_zh=("取消 GLOO_SOCKET_IFNAME（以及 TP_SOCKET_IFNAME）：Gloo 会使用主机名解析出的地址。单机足够；多主机时该地址须能被其他主机访问。"),
            command="unset GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME; getent hosts $(hostname)",
        ),
        Remedy(
            id="ipv4-only",
            says="Keep NCCL to IPv4 addresses.",
            says_zh="让 NCCL 只使用 IPv4 地址。",
            env={"NCCL_SOCKET_FAMILY": "AF_INET"},
            verify="NCCL_DEBUG=INFO torchrun ... 2>&1 | grep 'NCCL_SOCKET_FAMILY set by environment'",
        ),
        Remedy(
            id="host-network",
            says=(
                "Give containers that train across hosts the host's network: docker run --network=host, hostNetwork: true in Kubernetes, or an "
                "overlay."
            ),
            says_zh="跨主机训练的容器应使用主机网络：docker run --network=host，Kubernetes 中 hostNetwork: true，或使用 overlay 网络。",
            command="docker run --network=host --ipc=host --gpus all IMAGE torchrun ...",
        ),
        Remedy(
            id="mpi-interface",
            says="Name the subnet instead of the interface: it is the same on all hosts.",
            says_zh="写子网而不是网卡名：各主机上都相同。",
            command="mpirun --mca btl_tcp_if_include 10.0.0.0/16 --mca oob_tcp_if_include 10.0.0.0/16 ...",
        ),
        Remedy(
            id="see-the-link",
            says="Look at what the adapter and the switch agreed on: cable, port and autonegotiation; both ends must be set alike.",
            says_zh="查看网卡与交换机协商的结果：检查线缆、端口和自动协商，两端设置必须一致。",
            command="sudo ethtool eth0",
        ),
    ),
    leads_to=("network-blocked", "gloo-connect", "rendezvous-misconfig", "rank-exception"),
    mistaken_for={
        "version-mismatch": "NCCLs of two releases misread each other's addresses too, but then NCCL_SOCKET_IFNAME names an interface that exists",
        "network-blocked": "a firewall refuses the right address; here the address itself is one that other hosts cannot have a route to",
        "dns-resolution": "127.0.1.1 comes from a name in /etc/hosts, which Gloo asks where no interface is named",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname",
        "https://github.com/NVIDIA/nccl/issues/1837",
        "https://docs.pytorch.org/docs/stable/distributed.html#choosing-the-network-interface-to-use",
    ),
    hits=(
        "node7:812:840 [1] misc/socket.cc:512 NCCL WARN socketPollConnect poll() returned 1, no POLLOUT events",
        "RuntimeError: [enforce fail at /pytorch/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: ^docker0",
        "node7:101:193 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 169.254.3.4<39211> failed : No route to host",
        "[node7:812:0] sock.c:323  UCX  ERROR   connect(fd=87, dest_addr=172.17.0.1:47133) failed: Connection refused",
        (
            "node7:12:40 [0] NCCL INFO NET : Using interface lo:127.0.0.1<0>\n"
            "node7:13:41 [1] include/socket.h:361 NCCL WARN Call to connect timeout : Connection refused"
        ),
        "node7:12:40 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 172.17.4.13<48023> failed : Software caused connection abort",
        "node7:12:40 [0] misc/socket.cc:237 NCCL WARN Net : No interface found in the same subnet as remote address 10.0.0.1<1778>",
        "node7:2144:2144 [3] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        "[2026-11-03 10:00:01] node7:2144:2144 [3] bootstrap.cc:111 NCCL WARN Bootstrap : no socket interface found",
        "(RayWorkerWrapper pid=812) node7:812:812 [0] bootstrap.cc:111 (bootstrapNetInit) NCCL WARN Bootstrap: no socket interface found",
        "[rank3]: ncclSocketInit: connecting to address  with family 40321 is neither AF_INET(2) nor AF_INET6(10)",
        "node7:2144:2144 [0] transport/net_socket.cc:47 NCCL WARN NET/Socket : no interface found",
        "node7:2144:2144 [0] bootstrap.cc:93 NCCL WARN NET/Socket : No usable listening interface found",
        "node7:2144:2144 [0] misc/socket.cc:250 NCCL WARN Net : No interface found in the same subnet as 10.4.0.2<23456>",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth9",
        "RuntimeError: [enforce fail at /src/gloo/gloo/transport/tcp/device.cc:212] ifa != nullptr. Unable to find interface for: [0.0.0.7]",
        "RuntimeError: GlooDeviceFactory::makeUVDevice(): interface or hostname can't be empty",
        (
            "[rank1]: RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:208] false. Unable to find address for: "
            "enp9s0f1"
        ),
        "node7:97:221 [0] include/socket.h:390 NCCL WARN Connect to fe80::58aa:1bff:fe2e:91d4%veth7a1c2d0<41234> failed : Network is unreachable",
        "node7:97:221 [0] NCCL INFO socketPollConnect: connect to fe80::58aa:1bff:fe2e:91d4<41234> returned No route to host, retrying (3/34)",
        "node7:97:221 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 172.17.0.1<45763> failed : Connection refused",
        "timed out connecting: SO_ERROR: Connection refused, remote=[172.17.0.3]:20901",
        "node7:97:221 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 169.254.95.120<45763> failed : Connection refused",
        "timed out connecting: SO_ERROR: No route to host, remote=[169.254.3.1]:20901",
        (
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:769] connect "
            "[fe80::58aa:1bff:fe2e:91d4]:33061: Invalid argument"
        ),
        "node7:97:221 [0] include/socket.h:344 NCCL WARN Socket creation failed : Address family not supported by protocol",
        "An invalid value was given for btl_tcp_if_include.  This value will be ignored.",
    ),
    near_misses=(
        "mouse driver: no POLLOUT events are supported",
        "Unable to find address for: 12 Main Street",
        "[node7:812:0] tcp_cm.c:96   UCX  DEBUG tcp_ep 0x564a: CLOSED -> CONNECTING for the [172.17.0.1:59765]<->[172.17.0.1:47133]:0 connection",
        "node7:12:40 [0] NCCL INFO NET : Using interface lo:127.0.0.1<0>",
        "node7:2144:2144 [3] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>",
        "node7:2144:2144 [3] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0",
        "node7:2144:2144 [3] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>",
        "node7:2144:2144 [3] NCCL INFO NET/Socket : Using [0]usb0:169.254.3.1<0> [1]eth0:10.0.0.7<0>",
        "node7:2144:2201 [3] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : No route to host",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:171] rp != nullptr. Unable to find address for: node7.lan",
        "ERROR host.Resolver: Unable to find address for: build-cache.lan",
        "ERROR vpn.Client: Unable to find interface for: [tun0]",
    ),
    explain={
        "en": (
            "Before anything is trained, the ranks tell each other at which address they listen. That address comes from a network interface, "
            "and here the interface is absent, or it is one that leads nowhere (a Docker bridge, a veth, the loopback, a link-local address). "
            "NCCL is steered by NCCL_SOCKET_IFNAME, Gloo by GLOO_SOCKET_IFNAME, and neither reads the other's. Ask each host for its route to "
            "a peer (ip route get PEER_IP) and name that interface. Timeouts and connection errors on the other ranks are consequences. NCCL "
            "over InfiniBand needs a working socket interface too, for the start."
        ),
        "zh": (
            "训练开始之前，各进程要互相告知自己在哪个地址监听。地址来自某块网卡，而这里网卡不存在，或者是一块通不到别处的网卡（Docker 网桥、veth、"
            "回环、链路本地地址）。NCCL 由 NCCL_SOCKET_IFNAME 控制，Gloo 由 GLOO_SOCKET_IFNAME 控制，两者互不读取。在每台主机上执行 ip route get "
            "对端地址，看实际走哪块网卡，再指定它。其他进程上的超时和连接错误都是后果。即使数据走 InfiniBand，NCCL 启动时也需要一块可用的以太网卡。"
        ),
    },
)
