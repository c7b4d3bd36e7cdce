"""ib-config: an InfiniBand or RoCE setting does not fit, and a call of the verbs library fails."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.text import COMMA, Text, joined, same
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.infiniband import Device, Gid, Infiniband, Port
    from unhang.facts.snapshot import Snapshot


_MTU = "sudo ip link set dev {small:interface*} mtu {mtu:number}"
_MTUS = "for i in {small:interface*}; do sudo ip link set dev $i mtu {mtu:number}; done"
_LEAVE_OUT = "ip -br addr show {way:interface}; export NCCL_IB_HCA=^={device:name}"
_FORCED = "unset NCCL_IB_GID_INDEX   # NCCL 2.21 and later; else: export NCCL_IB_GID_INDEX={right:number}"


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, infiniband, network

    seen = host.get(infiniband.SUBJECT)
    if seen is None or infiniband.disabled(seen):
        return
    several, up = network.several_hosts(host), infiniband.active(seen)
    wanted = seen.settings.get("NCCL_IB_HCA")
    if wanted is not None and wanted.value.strip("^=") and not infiniband.candidates(seen):
        yield CAUSE.host_finding(
            area="infiniband",
            severity="error" if several else "warning",
            says=Text("NCCL_IB_HCA={value} leaves none of the adapters: {names}", "NCCL_IB_HCA={value} 把所有网卡都排除了：{names}").fill(
                value=wanted.value, names=joined((same(d.name) for d in seen.devices), COMMA)
            ),
            leads_to=Text(
                "NCCL finds no adapter and falls back to TCP sockets, while hosts whose adapters match do not: they fail to connect",
                "NCCL 找不到网卡而退回 TCP 套接字，网卡匹配的主机却不会：双方连接失败",
            ),
            evidence=(Evidence(source=wanted.place, text=f"NCCL_IB_HCA={wanted.value}"),),
            remedies=("name-adapters-that-exist",),
            commands={"name-adapters-that-exist": command("ls /sys/class/infiniband; unset NCCL_IB_HCA")},
        )
    # Where a container has none at all, container-capability tells.
    if up and (not seen.verbs_devices or seen.verbs_usable is False) and not container.lacks_verbs(host):
        none_here = Text("there is no /dev/infiniband/uverbs* here", "这里没有 /dev/infiniband/uverbs*")
        closed = Text("this user may not open all of /dev/infiniband/uverbs*", "当前用户无权打开全部 /dev/infiniband/uverbs*")
        inside = container.kind(host) in ("docker", "podman", "kubernetes", "container", "lxc", "apptainer")
        yield CAUSE.host_finding(
            area="infiniband",
            severity="warning" if several else "note",
            says=Text("{n} ports are active, but {what}", "{n} 个端口处于活动状态，但{what}").fill(
                n=len(up), what=closed if seen.verbs_devices else none_here
            ),
            leads_to=Text("NCCL finds no adapter and falls back to TCP sockets, many times slower", "NCCL 找不到网卡，退回 TCP 套接字，慢很多倍"),
            evidence=(Evidence(source="/dev/infiniband", text=", ".join(seen.verbs_devices) or "no uverbs device"),),
            remedies=("give-the-device",) if inside else ("load-verbs",),
        )
    roce = [(d, p) for d, p in up if p.link_layer == "Ethernet" and p.gids is not None]
    # All of them: what a container hides has no type.
    if all(g.type is not None for _, p in roce for g in p.gids or ()):
        for device, port in roce:
            yield from _gids(seen, device, port, several)
    yield from _pkeys(seen, up)
    mtus = {n: seen.net_mtu_bytes[n] for d, _ in roce for n in d.net_devices if n in seen.net_mtu_bytes}
    cards = {d.board_id for d, _ in roce}
    if len(set(mtus.values())) > 1 and len(cards) == 1:
        small = sorted(n for n, m in mtus.items() if m < max(mtus.values()))
        yield CAUSE.host_finding(
            area="infiniband",
            severity="note",
            says=Text("the RoCE ports of equal adapters have different MTUs: {mtus}", "同型号网卡的 RoCE 端口 MTU 不同：{mtus}").fill(
                mtus=joined((same(f"{n} {mtu}") for n, mtu in sorted(mtus.items())), COMMA)
            ),
            leads_to=Text(
                "queue pairs between rails of different MTU move smaller packets, or fail where one side insists",
                "MTU 不同的 rail 之间的 queue pair 使用更小的包，若一方坚持则失败",
            ),
            evidence=(Evidence(source="/sys/class/net/*/mtu", text=", ".join(f"{n} {mtu}" for n, mtu in sorted(mtus.items()))),),
            remedies=("same-mtu",),
            commands={"same-mtu": command(_MTU if len(small) == 1 else _MTUS, small=small, mtu=max(mtus.values()))},
        )


def _gids(seen: Infiniband, device: Device, port: Port, several: bool) -> Iterable[HostFinding]:
    """The GID that NCCL would use on a RoCE port: that of NCCL_IB_GID_INDEX, else (2.21 and later) one of RoCE v2 with an IPv4 address."""
    gids = port.gids or ()
    good = [g for g in gids if g.type == "RoCE v2" and g.ipv4 is not None]
    setting = seen.settings.get("NCCL_IB_GID_INDEX")
    # NCCL reads numbers up to the first character that is none.
    index = int(found[0]) if setting is not None and (found := re.match(r"\d+", setting.value.strip())) else None
    where = f"/sys/class/infiniband/{device.name}/ports/{port.number}/gids"
    right = str(good[0].index) if good else "3"
    if index is not None and setting is not None and gids:
        chosen = next((g for g in gids if g.index == index), None)
        if chosen is not None and chosen.type == "RoCE v2":
            return
        what = (
            Text("is empty", "是空的")
            if chosen is None
            else Text(f"is of type {chosen.type}, which no router forwards", f"的类型是 {chosen.type}，路由器不转发")
        )
        yield CAUSE.host_finding(
            area="infiniband",
            severity="error" if chosen is None else "warning",
            says=Text(
                "NCCL_IB_GID_INDEX={index}, and entry {index} of {device} port {port} {what}",
                "NCCL_IB_GID_INDEX={index}，而 {device} 端口 {port} 的第 {index} 项{what}",
            ).fill(index=index, device=device.name, port=port.number, what=what),
            leads_to=Text(
                "ibv_modify_qp fails, or nothing arrives and transfers are given up after their retries",
                "ibv_modify_qp 失败，或者什么也到不了，传输重试后放弃",
            ),
            evidence=(Evidence(source=setting.place, text=f"NCCL_IB_GID_INDEX={setting.value}"), Evidence(source=where, text=_table(gids))),
            remedies=("forced-index",),
            commands={"forced-index": command(_FORCED, right=right)},
        )
    elif index is None and not good and gids:
        yield CAUSE.host_finding(
            area="infiniband",
            severity="warning" if several else "note",
            says=Text(
                f"{device.name} port {port.number} (RoCE) is active without a GID of type RoCE v2 with an IPv4 address",
                f"{device.name} 端口 {port.number}（RoCE）处于活动状态，却没有带 IPv4 地址的 RoCE v2 类型 GID",
            ),
            leads_to=Text(
                "NCCL uses the port with its link-local address: no router forwards that, and ibv_modify_qp fails or retries are exceeded",
                "NCCL 以链路本地地址使用该端口：路由器不转发，ibv_modify_qp 失败或重试次数用尽",
            ),
            evidence=(Evidence(source=where, text=_table(gids)),),
            remedies=("address-or-leave-out",),
            commands={"address-or-leave-out": command(_LEAVE_OUT, way=(device.net_devices or ("ETH",))[0], device=device.name)},
        )


def _table(gids: Iterable[Gid]) -> str:
    return "; ".join(f"{g.index} {g.ipv4 or g.address} {g.type}" for g in list(gids)[:6]) or "no entries"


def _pkeys(seen: Infiniband, up: Iterable[tuple[Device, Port]]) -> Iterable[HostFinding]:
    setting = seen.settings.get("NCCL_IB_PKEY")
    index = setting.value.strip() if setting is not None and setting.value.strip().isdigit() else "0"
    for device, port in up:
        if port.link_layer == "InfiniBand" and port.pkeys and index not in port.pkeys:
            keys = joined((Text(f"{key} at {i}", f"索引 {i} 为 {key}") for i, key in port.pkeys.items()), COMMA)
            yield CAUSE.host_finding(
                area="infiniband",
                severity="error",
                says=Text(
                    "{device} port {port} has no partition key at index {index}; it has {keys}",
                    "{device} 端口 {port} 的索引 {index} 处没有 partition key；已有的是：{keys}",
                ).fill(device=device.name, port=port.number, index=index, keys=keys),
                leads_to=Text("ibv_modify_qp fails for every queue pair", "每个 queue pair 的 ibv_modify_qp 都失败"),
                evidence=(Evidence(source=f"/sys/class/infiniband/{device.name}/ports/{port.number}/pkeys/{index}", text="0x0000"),),
                remedies=("partition-key",),
                commands={"partition-key": command("export NCCL_IB_PKEY={key:number}", key=next(iter(port.pkeys)))},
            )


CAUSE = cause("ib-config", on_host=_on_host)
