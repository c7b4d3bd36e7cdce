"""interface-selection: NCCL or Gloo talks through the wrong network interface, or was told one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import LogView, cause, command
from unhang.knowledge.text import Text, same
from unhang.model import Evidence, Finding, HostFinding
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


CAUSE = cause("interface-selection", in_logs=_in_logs, on_host=_on_host)
_NONE_FOUND = CAUSE.signature("none-found")
_BAD_FAMILY = CAUSE.signature("bad-family")
