"""ib-config: an InfiniBand or RoCE setting does not fit, and a call of the verbs library fails.

Long because it judges adapters, GIDs, partition keys and devices one by one, beside the calls of the verbs library that fail for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge import other_libraries
from unhang.knowledge.cause import Cause, Signature, command
from unhang.knowledge.causes import limits
from unhang.knowledge.text import COMMA, Text, joined, same
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.infiniband import Device, Gid, Infiniband, Port
    from unhang.facts.snapshot import Snapshot

# NCCL up to 2.22 writes "failed with error TEXT", from 2.23 "failed with NUMBER TEXT, on dev ..." for ibv_modify_qp and "TEXT errno N" for others;
# before 2.6 only "failed".
_MODIFY = r"ibv_modify_qp failed with (?:error )?(?:(?P<code>\d+) )?"
_WHERE = r"(?:, on dev (?P<device>[\w.-]+):(?P<port>-?\d+), .{0,80}?local GID index (?P<gid_index>-?\d+))?(?!.{0,400}retrying \d)"
# What is refused for want of locked memory or of rights is told by limits and container-capability.
_ERROR = r"(?!Cannot allocate|Operation not perm|Permission)[A-Z][\w ]{3,60}"

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


CAUSE = Cause(
    id="ib-config",
    role="root",
    title="An InfiniBand or RoCE setting does not fit",
    title_zh="InfiniBand 或 RoCE 配置不合适",
    what=(
        "Setting up a connection over InfiniBand or RoCE failed in a call of the verbs library: a queue pair, a completion queue, a memory "
        "registration."
    ),
    why=(
        "A GID index that the port does not have or that cannot be routed, adapters of different link layers or rails paired, a low locked-memory "
        "limit, a wrong PKey, no access to the device."
    ),
    signatures=(
        Signature(
            needle="fi_getinfo() call failed: No data available",
            standing="likely",
            says="libfabric finds no EFA device in this process: no adapter is attached, its driver is missing, or the container was not given it",
            says_zh="libfabric 在此进程中找不到 EFA 设备：没有挂载网卡、缺少驱动，或容器没有得到该设备",
            remedies=("give-efa", "without-the-plugin"),
        ),
        Signature(
            needle="ibv_modify_qp failed",
            pattern=rf"{_MODIFY}(?P<error>Invalid argument){_WHERE}",
            says="two InfiniBand or RoCE ports could not be connected (Invalid argument): GID index, link layer or MTU do not fit",
            says_zh="两个 InfiniBand 或 RoCE 端口无法建立连接（Invalid argument）：GID 索引、链路层或 MTU 不匹配",
            remedies=("gid-index", "one-link-layer", "compare-ports"),
        ),
        Signature(
            needle="ibv_modify_qp failed",
            pattern=(
                rf"{_MODIFY}(?P<error>Connection timed out|No route to host|Network is unreachable|Host is unreachable|Destination address "
                rf"required){_WHERE}"
            ),
            says="a RoCE port could not reach the port it was paired with ({error}): another rail or subnet, or a GID that is not routed",
            says_zh="某个 RoCE 端口到不了与它配对的端口（{error}）：对方在另一个 rail 或子网，或者 GID 不被路由",
            remedies=("same-rail", "gid-index", "ping-over-rdma"),
        ),
        Signature(
            needle="ibv_modify_qp failed",
            pattern=rf"{_MODIFY}(?P<error>No such device|No data available|No such file or directory|Invalid exchange){_WHERE}",
            says="the GID that was chosen does not exist on the port ({error})",
            says_zh="所选的 GID 在该端口上不存在（{error}）",
            remedies=("gid-index", "compare-ports"),
        ),
        Signature(
            needle="ibv_modify_qp failed",
            pattern=(
                rf"{_MODIFY}(?P<error>(?!Invalid arg|Connection timed|No route|Network is unr|Host is unr|Destination|No such|No data|Invalid exch)"
                rf"[A-Z][\w /]{{3,60}}?)(?=[,.\n]|$){_WHERE}"
            ),
            says="two InfiniBand or RoCE ports could not be connected: {error}",
            says_zh="两个 InfiniBand 或 RoCE 端口无法建立连接：{error}",
            remedies=("compare-ports", "gid-index", "ping-over-rdma"),
        ),
        Signature(
            needle="ibv_modify_qp failed",
            pattern=r"ibv_modify_qp failed(?:\s*$| \(errno (?P<code>\d+)\))",
            says="two InfiniBand or RoCE ports could not be connected (ibv_modify_qp failed)",
            says_zh="两个 InfiniBand 或 RoCE 端口无法建立连接（ibv_modify_qp 失败）",
            remedies=("gid-index", "compare-ports", "ping-over-rdma"),
        ),
        Signature(
            needle="ailed to modify QP to ",
            pattern=r"[Ff]ailed to modify QP to (?P<state>INIT|RTR|RTS)",
            says="two InfiniBand or RoCE ports could not be connected (queue pair to {state})",
            says_zh="两个 InfiniBand 或 RoCE 端口无法建立连接（queue pair 转到 {state}）",
            remedies=("gid-index", "compare-ports", "ping-over-rdma"),
        ),
        Signature(
            needle="Call to ibv_create_",
            pattern=rf"Call to (?P<call>ibv_create_(?:qp|cq)) failed(?: with error (?P<error>{_ERROR}))?\s*$",
            unless=r"RLIMIT_MEMLOCK is \d|max locked memory",
            says="{call} failed: the limits of locked memory or of the adapter",
            says_zh="{call} 失败：碰到锁定内存或网卡的上限",
            remedies=("locked-memory", "adapter-limits"),
        ),
        Signature(
            needle="Call to ibv_reg_mr",
            pattern=rf"Call to (?P<call>ibv_reg_mr(?:_iova2)?) failed with error (?P<error>(?!Bad address){_ERROR})",
            standing="likely",
            says="{call} could not register memory with the adapter: {error}",
            says_zh="{call} 无法向网卡注册内存：{error}",
            remedies=("locked-memory", "compare-ports"),
        ),
        Signature(
            needle="Call to ibv_",
            pattern=(
                r"Call to (?P<call>ibv_(?:open_device|query_device|query_port|query_gid|query_pkey|alloc_pd)) failed"
                r"(?! with error (?:Cannot allocate|Operation not perm|Permission))"
            ),
            standing="likely",
            says="{call} failed: the device cannot be opened or asked from here",
            says_zh="{call} 失败：从这里无法打开或查询该设备",
            remedies=("give-the-device", "compare-ports", "without-ib"),
        ),
        Signature(
            needle="NET/IB : Unable to ",
            pattern=r"NET/IB : Unable to (?P<what>open|query) (?:device (?P<device>[\w.-]+)|port(?:_num)? (?P<port>\d+))",
            standing="likely",
            says="NCCL cannot {what} an InfiniBand device from here",
            says_zh="NCCL 从这里无法 {what} 某个 InfiniBand 设备",
            remedies=("give-the-device", "compare-ports", "without-ib"),
        ),
        Signature(
            needle="connect incompatible devices",
            pattern=r"connect incompatible devices: \[\d+\](?P<local>[\w.-]+):\d+/(?P<layer>\w+) and \[\d+\](?P<remote>[\w.-]+):\d+/(?P<other>\w+)",
            says="NCCL paired {local} ({layer}) with {remote} ({other}): two link layers",
            says_zh="NCCL 把 {local}（{layer}）与 {remote}（{other}）配成一对：链路层不同",
            remedies=("one-link-layer",),
        ),
        *(
            Signature(
                needle=needle,
                says="NCCL paired adapters of different link layers (InfiniBand and RoCE)",
                says_zh="NCCL 把链路层不同的网卡（InfiniBand 与 RoCE）配成一对",
                remedies=("one-link-layer",),
            )
            for needle in ("device is incompatible with the local", "Can't merge net devices with different link_layer")
        ),
        Signature(
            needle="has a different number of devices=",
            pattern=r"Local mergedDev ?=?(?P<local>\S+) has a different number of devices=(?P<number>\d+) as remote",
            standing="likely",
            says="the hosts combine different numbers of adapter ports into {local}",
            says_zh="各主机合并成 {local} 的网卡端口数不同",
            remedies=("compare-ports", "one-link-layer"),
        ),
        Signature(
            needle="not found in PKey table",
            pattern=r"NCCL_IB_PKEY_VALUE=(?P<pkey>0x[0-9a-f]+) not found in PKey table",
            says="the partition key {pkey} is not in the table of the port",
            says_zh="partition key {pkey} 不在该端口的表中",
            remedies=("partition-key",),
        ),
        Signature(
            needle="an incorrect GID index is forced by NCCL_IB_GID_INDEX",
            standing="likely",
            says="NCCL suspects that a GID index is forced that does not fit, or that an address changed under the job",
            says_zh="NCCL 怀疑强制指定的 GID 索引不合适，或者作业运行期间地址变了",
            remedies=("gid-index", "compare-ports"),
        ),
        Signature(
            needle="that the NICs are not cross-rail connected",
            standing="likely",
            says="NCCL suspects that adapters of different rails cannot reach each other",
            says_zh="NCCL 怀疑不同 rail 的网卡之间不互通",
            remedies=("same-rail", "ping-over-rdma"),
        ),
        Signature(
            needle="NICs on the same node cannot talk to each other",
            standing="likely",
            says="NCCL suspects that the adapters of one host cannot reach each other",
            says_zh="NCCL 怀疑同一主机的网卡之间不互通",
            remedies=("same-rail", "ping-over-rdma"),
        ),
        Signature(
            needle="NET/OFI Couldn't ",
            pattern=(
                r"NET/OFI Couldn't (?P<what>(?:find any optimal provider|open (?:a fabric|AV|endpoint|domain|CQ|fabric)|create endpoint|enable "
                r"endpoint)[\w ]{0,30})(?:\. RC: (?P<code>-?\d+))?"
            ),
            standing="likely",
            says="the network plugin for libfabric (EFA) could not {what}",
            says_zh="libfabric（EFA）网络插件做不到：{what}",
            remedies=("give-efa", "upgrade-the-plugin", "locked-memory"),
        ),
        Signature(
            needle="NET/OFI Creating new endpoint for domain",
            pattern=r"Creating new endpoint for domain \S+ failed: (?P<error>[A-Z][\w ]{3,60})",
            standing="likely",
            says="the network plugin for libfabric (EFA) could not create an endpoint: {error}",
            says_zh="libfabric（EFA）网络插件无法创建 endpoint：{error}",
            remedies=("give-efa", "upgrade-the-plugin", "locked-memory"),
        ),
        Signature(
            needle="NET/OFI Only EFA provider is supported",
            says="the network plugin found libfabric without the EFA provider",
            says_zh="网络插件找到的 libfabric 不含 EFA provider",
            remedies=("give-efa", "without-the-plugin"),
        ),
        Signature(
            needle="NET/OFI No eligible providers were found",
            standing="likely",
            says="the network plugin found no provider of libfabric that it can use",
            says_zh="网络插件没有找到它能用的 libfabric provider",
            remedies=("give-efa", "without-the-plugin"),
        ),
        Signature(
            needle="Error in mlx5dv_devx_obj_modify for ",
            pattern=r"Error in mlx5dv_devx_obj_modify for (?P<what>\w{1,40}) with syndrome (?P<syndrome>[0-9a-f]{1,16})",
            standing="likely",
            says="NVSHMEM's queue pair for the GPU could not be connected ({what}, syndrome {syndrome}): GID index, link layer or MTU do not fit",
            says_zh="NVSHMEM 供 GPU 使用的队列对无法连接（{what}，syndrome {syndrome}）：GID 索引、链路层或 MTU 不匹配",
            remedies=("gid-index", "compare-ports"),
        ),
        Signature(
            needle="ibgda.cpp",
            pattern=r"ibgda\.cpp:\d+: NULL value (?P<what>cannot allocate mlx5dv_devx_uar)",
            says="NVSHMEM could not use the adapter from the GPU: {what}",
            says_zh="NVSHMEM 无法从 GPU 使用网卡：{what}",
            remedies=("gid-index", "give-the-device", "compare-ports"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        other_libraries.EFA_PLUGIN,
        Remedy(
            id="gid-index",
            says=(
                "For RoCE use the GID of type RoCE v2 with the port's IPv4 address, the same on all hosts: NCCL 2.21 and later finds it, so unset "
                "a forced index there first; earlier ones want NCCL_IB_GID_INDEX from show_gids, often 3."
            ),
            says_zh=(
                "RoCE 应使用类型为 RoCE v2、带端口 IPv4 地址的 GID，且所有主机一致：NCCL 2.21 及以上会自动选择，请先取消强制指定；更早的版本按 "
                "show_gids 的结果指定 NCCL_IB_GID_INDEX，通常是 3。"
            ),
            command=(
                "show_gids || for g in /sys/class/infiniband/*/ports/1/gids/*; do echo $g $(cat $g) $(cat ${g/gids/gid_attrs\\/types} "
                "2>/dev/null); done | grep -v 0000:0000:0000:0000$"
            ),
            verify="NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep 'NCCL_IB_GID_INDEX set by environment to'",
        ),
        Remedy(
            id="same-rail",
            says="Let NCCL pair only adapters of the same rail; on fabrics whose rails are not connected to each other nothing else can work.",
            says_zh="让 NCCL 只在同一轨（rail）的网卡之间建立连接；如果各轨之间不互通，只能这样。",
            env={"NCCL_CROSS_NIC": "0"},
            verify="NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep 'NCCL_CROSS_NIC set by environment to'",
        ),
        Remedy(
            id="one-link-layer",
            says="Name the adapters of one link layer only, the same set on every host (exact names after =).",
            says_zh="只列出同一种链路层的网卡，所有主机使用相同的集合（= 后面为精确名称）。",
            command='ibstat | grep -E "^CA|Link layer|State"; export NCCL_IB_HCA==mlx5_0:1,mlx5_1:1',
            verify="NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep 'NET/IB : Using'",
        ),
        Remedy(
            id="compare-ports",
            says="Compare the ports of all hosts: names, state, link layer, active MTU, GIDs.",
            says_zh="对比各主机的端口：名称、状态、链路层、生效的 MTU、GID。",
            command="ibv_devinfo -v | grep -E 'hca_id|state|link_layer|active_mtu|GID'",
        ),
        Remedy(
            id="ping-over-rdma",
            says="Prove the path without NCCL, between the very two adapters and with the same GID index.",
            says_zh="不经过 NCCL，直接在这两块网卡之间用相同的 GID 索引验证路径。",
            command="ib_write_bw -d mlx5_0 -x 3 -F   # on one host; on the other: ib_write_bw -d mlx5_0 -x 3 -F FIRST_HOST",
        ),
        limits.CAUSE.remedy("locked-memory"),
        limits.CAUSE.remedy("adapter-limits"),
        Remedy(
            id="partition-key",
            says="Use a partition key that the port has (NCCL_IB_PKEY is an index into this table), or have the subnet manager add it.",
            says_zh="使用端口实际拥有的分区密钥（NCCL_IB_PKEY 是该表的下标），或让子网管理器添加它。",
            command="grep -v 0x0000 /sys/class/infiniband/*/ports/*/pkeys/*",
        ),
        Remedy(
            id="give-the-device",
            says="Give the container the devices and the right to lock memory.",
            says_zh="把设备以及锁定内存的权限交给容器。",
            command=(
                "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1 --network host --gpus all IMAGE; ls -l /dev/infiniband"
            ),
        ),
        Remedy(
            id="give-efa",
            says=(
                "See whether libfabric offers EFA here: instance type, security group that allows all traffic to itself, /dev/infiniband in the "
                "container, EFA's own libfabric on the library path."
            ),
            says_zh=(
                "确认 libfabric 在这里能提供 EFA：机型是否支持、安全组是否允许自身全部流量、容器是否挂载 /dev/infiniband、库路径上是否是 EFA 自带"
                "的 libfabric。"
            ),
            command="fi_info -p efa -t FI_EP_RDM; ls -l /dev/infiniband; ldconfig -p | grep libfabric",
        ),
        Remedy(
            id="without-the-plugin",
            says="Where there is no EFA, run without the plugin (NCCL 2.11 and later).",
            says_zh="如果没有 EFA，则不加载该插件（NCCL 2.11 及以上）。",
            env={"NCCL_NET_PLUGIN": "none"},
            verify=(
                "NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep -E 'NCCL_NET_PLUGIN set by environment to|Using network'"
            ),
        ),
        Remedy(
            id="without-ib",
            says="Run over TCP sockets to prove that InfiniBand is at fault; slow.",
            says_zh="改走 TCP 套接字，以验证问题出在 InfiniBand；速度较慢。",
            env={"NCCL_IB_DISABLE": "1"},
            verify=(
                "NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep -E 'NCCL_IB_DISABLE set by environment to|Using "
                "network Socket'"
            ),
        ),
        Remedy(
            id="name-adapters-that-exist",
            says="Name adapters that this host has, or unset NCCL_IB_HCA and let NCCL take all that are active.",
            says_zh="填写本机确实存在的网卡，或取消 NCCL_IB_HCA，让 NCCL 使用所有可用网卡。",
            command="ls /sys/class/infiniband; unset NCCL_IB_HCA",
        ),
        Remedy(
            id="load-verbs",
            says="Load the module that makes the devices, and let the user open them (they are for everybody as a rule).",
            says_zh="加载创建这些设备的内核模块，并允许该用户打开它们（通常对所有用户开放）。",
            command="sudo modprobe ib_uverbs; ls -l /dev/infiniband; sudo chmod 666 /dev/infiniband/uverbs*",
        ),
        Remedy(
            id="forced-index",
            says="Do not force the index with NCCL 2.21 and later; earlier ones need that of the RoCE v2 entry with the IPv4 address.",
            says_zh="NCCL 2.21 及以后不要强制指定索引；更早的版本需要填写带 IPv4 地址的 RoCE v2 条目的索引。",
            command="unset NCCL_IB_GID_INDEX",
        ),
        Remedy(
            id="address-or-leave-out",
            says="Give the port's network interface an IPv4 address, or leave the adapter out.",
            says_zh="给该端口对应的网卡配置 IPv4 地址，或不使用这块网卡。",
            command="ip -br addr; export NCCL_IB_HCA=^=mlx5_9",
        ),
        Remedy(
            id="same-mtu",
            says="Give all network interfaces of the rails the same MTU, as the switches carry it.",
            says_zh="让各 rail 的网卡使用相同的 MTU，并与交换机一致。",
            command="sudo ip link set dev eth0 mtu 9000",
        ),
    ),
    leads_to=("rank-exception", "ib-transport-retry"),
    mistaken_for={
        "limits": "'Cannot allocate memory' of a verbs call is the limit of locked memory, as is any failure beside a warning about RLIMIT_MEMLOCK",
        "gdr-peer-memory": "'Bad address' of ibv_reg_mr, or any error of ibv_reg_dmabuf_mr, is about GPU memory",
        "ib-port-down": "a port that is not Active is skipped by NCCL and never gets as far as a queue pair",
        "ib-transport-retry": "connections that were set up and failed under load end with completion error 12",
        "container-capability": "a device that cannot be opened in a container was not passed to it",
        "interface-selection": "TCP's interfaces are chosen by NCCL_SOCKET_IFNAME, the adapters of RDMA by NCCL_IB_HCA",
        "network-blocked": "an unreachable network in ibv_modify_qp concerns the addresses of the RoCE ports, not of the hosts",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#infiniband",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index",
        "https://github.com/NVIDIA/nccl/issues/426",
        "https://github.com/NVIDIA/nccl-tests/issues/206",
        "https://github.com/NVIDIA/nccl/blob/master/src/misc/ibvwrap.cc",
    ),
    hits=(
        "node7:844:852 [0] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available",
        "/src/ibgda.cpp:1345: non-zero status: 121 Error in mlx5dv_devx_obj_modify for INIT2RTR_QP with syndrome 29e0df",
        "node7:815:864 [0] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument",
        "node7:815:864 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
        (
            "[2026-11-03 10:00:01] node7:815:864 [0] misc/ibvwrap.cc:293 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on "
            "dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.0.3.7, remote GID ::ffff:10.0.4.8"
        ),
        "worker-0: node7:815:864 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error No such device",
        (
            "node7:815:864 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with 61 No data available, on dev mlx5_3:1, curr state "
            "INIT, next state RTR, local GID index 5, local GID N/A, remote GID N/A"
        ),
        "node7:815:864 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Remote I/O error",
        "node7:815:864 [0] misc/ibvwrap.cu:269 WARN Call to ibv_modify_qp failed",
        "E1103 rdma_endpoint.cpp:441] [Handshake] Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: Invalid argument [22]",
        "machine7 [0] misc/ibvwrap.cu:269 WARN Call to ibv_create_qp failed",
        "node7:815:864 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr failed with error Invalid argument",
        "node7:815:864 [0] misc/ibvwrap.cc:112 NCCL WARN Call to ibv_query_gid failed with error Invalid argument errno 22",
        "node7:815:864 [0] transport/net_ib.cc:188 NCCL WARN NET/IB : Unable to open device mlx5_3",
        (
            "node7:815:864 [0] transport/net_ib.cc:1412 NCCL WARN NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and "
            "[2]mlx5_bond_0:1/RoCE. Try selecting NICs of only one link type using NCCL_IB_HCA"
        ),
        (
            "node7:815:864 [0] transport/net_ib.cc:1420 NCCL WARN NET/IB : Remote RoCE device is incompatible with the local [0]mlx5_0:1/IB. Try "
            "selecting NICs of only one link type using NCCL_IB_HCA"
        ),
        (
            "node7:815:864 [0] transport/net_ib.cc:905 NCCL WARN NET/IB : Can't merge net devices with different link_layer. i=0 remMeta.ndevs=1 "
            "link_layer=1 rem_link_layer=2"
        ),
        (
            "node7:815:864 [0] transport/net_ib.cc:1204 NCCL WARN NET/IB : Local mergedDev mlx5_0+mlx5_1 has a different number of devices=2 as "
            "remote mlx5_0 1"
        ),
        (
            "node7:815:864 [0] transport/net_ib/init.cc:301 NCCL WARN NET/IB: NCCL_IB_PKEY_VALUE=0x8012 not found in PKey table "
            "(pkey_tbl_len=128, port=1)"
        ),
        "HINT: In many cases this error indicates that an incorrect GID index is forced by NCCL_IB_GID_INDEX, or that a NIC's GID changed mid-run.",
        "HINT: In many cases this error indicates that the NICs are not cross-rail connected.",
        "HINT: In many cases this error indicates that NICs on the same node cannot talk to each other.",
        "[1,23]<stdout>:node7:815:864 [7] create_nccl_ofi_component:459 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument",
        "node7:815:864 [0] nccl_net_ofi_domain_get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9b failed: Invalid argument",
        "node7:815:864 [0] ofi_init:1136 NCCL WARN NET/OFI Only EFA provider is supported",
        "node7:815:864 [0] nccl_net_ofi_create_plugin:214 NCCL WARN NET/OFI No eligible providers were found",
        "/src/modules/transport/ibgda/ibgda.cpp:2234: NULL value cannot allocate mlx5dv_devx_uar",
    ),
    near_misses=(
        "/src/modules/transport/ibgda/ibgda.cpp:2234: NULL value Unable to create ah.",
        "node7:815:864 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr failed with error Operation not permitted",
        "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.",
        (
            "The OpenFabrics (openib) BTL failed to initialize while trying to allocate some locked memory.  This typically can indicate that the "
            "memlock limits are set too low."
        ),
        (
            "ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory (ulimit -l) to "
            "'unlimited' (current: 64 kbytes)"
        ),
        "node7:815:864 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "node7:815:864 [0] NCCL INFO Failed to open libibverbs.so[.1]",
        (
            "node7:815:864 [0] NCCL INFO Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next state "
            "RTR, local GID index 3, local GID ::ffff:10.0.3.7, remote GID ::ffff:10.0.4.8, retrying 1/35 after 100 msec of sleep"
        ),
        "node7:815:864 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address",
        "node7:815:864 [0] misc/ibvwrap.cc:288 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not supported",
        "node7:815:864 [0] NCCL INFO Call to ibv_query_ece not supported",
        "node7:815:864 [0] misc/ibvwrap.cu:220 NCCL WARN Call to ibv_get_async_event failed",
        "node7:815:864 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.7<0>",
        "OSError: [Errno 12] Cannot allocate memory",
        "node7:815:864 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)",
        "node7:815:864 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.",
    ),
    explain={
        "en": (
            "The hosts agreed over TCP to talk RDMA, and setting that up failed in the call that is named here; torch reports only an unhandled "
            "system error. For RoCE look at the GID first: it must be of type RoCE v2 with an address that the other port can reach, on every "
            "host. Where rails are not connected to each other, NCCL_CROSS_NIC=0 keeps to one rail. 'Cannot allocate memory' is nearly always the "
            "locked-memory limit of the very process, not of your shell. Test the two ports with ib_write_bw: if that fails as well, it is not "
            "NCCL."
        ),
        "zh": (
            "各主机已经通过 TCP 商定使用 RDMA，但在这里点名的调用上建立失败；torch 只会报告 unhandled system error。RoCE 先检查 GID：类型必须是 "
            "RoCE v2，地址要能被对端端口访问到，每台主机都如此。如果各轨之间不互通，用 NCCL_CROSS_NIC=0 限制在同一轨。“Cannot allocate memory” 几"
            "乎总是该进程自己的锁定内存上限过低，而不是你登录 shell 的。用 ib_write_bw 测试这两个端口：如果也失败，就不是 NCCL 的问题。"
        ),
    },
)
