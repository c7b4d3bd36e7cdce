"""ib-port-down: an InfiniBand or RoCE port is not active, or went down under the job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.knowledge import cann
from unhang.knowledge.cause import Cause, Signature, command
from unhang.knowledge.causes import ib_config
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.infiniband import Device, Infiniband, Port
    from unhang.facts.kernel_log import KernelLog
    from unhang.facts.network import Network
    from unhang.facts.snapshot import Snapshot
    from unhang.model import Severity

_EVENT = r"NET/IB ?: ?(?:(?P<device>[\w.-]+):(?P<port>\d+) )?(?:Got )?"
# Links that went down so many times while the machine ran were not only plugged into another switch.
_OFTEN = 3
_LOOK = ("see-the-ports", "cable-and-switch", "other-ports")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import infiniband, kernel_log, network

    seen = host.get(infiniband.SUBJECT)
    if seen is None or infiniband.disabled(seen):
        return
    log, net = host.get(kernel_log.SUBJECT), host.get(network.SUBJECT)
    if log is not None and net is not None:
        yield from _fell(seen, net, log)
    several, up = network.several_hosts(host), infiniband.active(seen)
    for device, port in infiniband.candidates(seen):
        if port.state is None or port.state == "ACTIVE":
            continue
        severity = _severity(seen, device, port, several)
        if severity is not None:
            yield _down(device, port, severity, up)
    # A link that came up with fewer lanes or at a lower speed than its likes.
    for device, port in up:
        rates = [p.rate_gbps for d, p in up if (d.board_id, p.link_layer) == (device.board_id, port.link_layer) and p.rate_gbps is not None]
        usual = max(set(rates), key=lambda r: (rates.count(r), r), default=None)
        narrow = port.link_layer == "InfiniBand" and port.lanes == 1
        if port.rate_gbps is None or usual is None or (port.rate_gbps >= usual and not narrow):
            continue
        others = (
            Text(f"; {rates.count(usual)} others like it run at {usual:g}", f"；另有 {rates.count(usual)} 个同类端口为 {usual:g}")
            if port.rate_gbps < usual
            else Text("; links of InfiniBand have four lanes as a rule", "；InfiniBand 链路通常有四条通道")
        )
        yield CAUSE.host_finding(
            area="infiniband",
            severity="warning",
            says=Text(f"{device.name} port {port.number} runs at {port.rate}", f"{device.name} 端口 {port.number} 的速率为 {port.rate}") + others,
            leads_to=Text("every ring that passes through it runs at its speed", "经过它的每个环都以它的速度运行"),
            evidence=(Evidence(source=f"/sys/class/infiniband/{device.name}/ports/{port.number}/rate", text=port.rate or ""),),
            remedies=("cable-and-switch", "see-the-ports"),
            commands={"cable-and-switch": command("sudo mlxlink -d {device:name} -c", device=device.name)},
        )
    yield from _flapping(up)


def _fell(seen: Infiniband, net: Network, log: KernelLog) -> Iterable[HostFinding]:
    """Links of Ethernet ports that went down while the machine ran; once, and up again since, is nothing after some hours."""
    from unhang.facts import kernel_log

    for event in log.events:
        interface = net.interface(event.interface) if event.kind == "link-down" else None
        device = next((d for d in seen.devices if event.interface in d.net_devices), None)
        recent = kernel_log.recent(event)
        if interface is None or device is None or interface.up is False or interface.running is None:
            continue
        often = event.count >= _OFTEN
        if interface.running and not often and not recent:
            continue
        state = Text("it is up again", "现已恢复") if interface.running else Text("it is down", "目前断开")
        yield CAUSE.host_finding(
            area="kernel",
            severity="warning" if recent and (often or not interface.running) else "note",
            says=Text(
                "the link of {device} ({interface}) went down ({when}); {state}", "{device}（{interface}）的链路断开过（{when}）；{state}"
            ).fill(
                device=device.name,
                interface=str(event.interface),
                when=Text(kernel_log.times(event), kernel_log.times_zh(event)),
                state=state,
            ),
            leads_to=Text(
                "transfers over it run into their retries ('transport retry counter exceeded') or a time-out whenever it goes",
                "每当它断开，经过它的传输就会用尽重试（'transport retry counter exceeded'）或超时",
            ),
            evidence=(Evidence(source="kernel log", text=event.text),),
            remedies=("cable-and-switch", "see-the-ports"),
            commands={"cable-and-switch": command("sudo mlxlink -d {device:name} -c", device=device.name)},
        )


def _severity(seen: Infiniband, device: Device, port: Port, several: bool) -> Severity | None:
    """Of a port that is not active. Many are so on purpose: the second port of a card, an Ethernet port without a cable."""
    from unhang.facts import infiniband

    if infiniband.asked_for(seen, device, port):
        return "error"
    up = infiniband.active(seen)
    alike = [d for d, p in up if d.board_id == device.board_id and p.link_layer == port.link_layer]
    # Where the same cards all have one port in use, the others are spare.
    spare = any(d.slot is not None and d.slot == device.slot and (d, p) != (device, port) for d, p in up)
    if port.link_layer == "InfiniBand" and port.state in ("INIT", "ARMED"):
        return "error" if several and not any(p.link_layer == "InfiniBand" for _, p in up) else "warning"
    if port.physical_state == "Disabled" or spare:
        return "note" if port.link_layer == "InfiniBand" else None
    if len(alike) >= 3:
        return "warning"
    if port.link_layer != "InfiniBand":
        return None
    return "note" if up else "warning"


def _down(device: Device, port: Port, severity: Severity, up: Sequence[tuple[Device, Port]]) -> HostFinding:
    waits = port.link_layer == "InfiniBand" and port.state in ("INIT", "ARMED")
    physical = Text(f"physical state {port.physical_state}", f"物理状态 {port.physical_state}")
    what = Text("no subnet manager has set it up", "没有 subnet manager 配置它") if waits else physical
    good = [f"{d.name}:{p.number}" for d, p in up]
    others = Text(f"; {len(up)} other ports are active", f"；另有 {len(up)} 个端口处于活动状态")
    beside = others if up else Text("; no port is active", "；没有端口处于活动状态")
    return CAUSE.host_finding(
        area="infiniband",
        severity=severity,
        says=Text("{device} port {port} ({layer}) is {state}: {what}{beside}", "{device} 端口 {port}（{layer}）为 {state}：{what}{beside}").fill(
            device=device.name, port=port.number, layer=str(port.link_layer), state=str(port.state), what=what, beside=beside
        ),
        leads_to=(
            Text(
                "NCCL leaves the port out without a word: slower, and a host whose set of ports differs from the others' may fail to connect",
                "NCCL 会悄悄跳过该端口：速度变慢，而且端口集合与其他主机不同的主机可能连接失败",
            )
            if up
            else Text("NCCL finds no adapter and falls back to TCP sockets, many times slower", "NCCL 找不到网卡，退回 TCP 套接字，慢很多倍")
        ),
        evidence=(Evidence(source=f"/sys/class/infiniband/{device.name}/ports/{port.number}/state", text=f"{port.state}, {port.physical_state}"),),
        remedies=(
            "subnet-manager" if waits else "cable-and-switch",
            "see-the-ports",
            *(("name-good-ports",) if good and severity != "note" else ()),
        ),
        commands={
            "cable-and-switch": command("sudo mlxlink -d {device:name} -c", device=device.name),
            "name-good-ports": command("export NCCL_IB_HCA=={good:name,}", good=good),
        },
    )


def _flapping(up: Sequence[tuple[Device, Port]]) -> Iterable[HostFinding]:
    """Counters run since the driver was loaded: a cable that was pulled once is no fault, one port that counts far more than the others is."""
    for counter, many in (("link_downed", 10), ("link_error_recovery", 10), ("symbol_error", 1000), ("port_rcv_errors", 1000)):
        counts = sorted(p.counters.get(counter, 0) for _, p in up)
        for device, port in up:
            count = port.counters.get(counter, 0)
            usual = counts[len(counts) // 2] if len(counts) > 2 else 0
            if count < many or count < 10 * usual:
                continue
            file = f"/sys/class/infiniband/{device.name}/ports/{port.number}/counters/{counter}"
            beside = Text(f", the others {usual}", f"，其他端口为 {usual}") if len(counts) > 2 else NOTHING
            yield CAUSE.host_finding(
                area="infiniband",
                severity="note",
                says=Text(
                    f"{device.name} port {port.number} counted {count} {counter} since its driver was loaded",
                    f"{device.name} 端口 {port.number} 自驱动加载以来 {counter} 计数为 {count}",
                )
                + beside,
                leads_to=Text(
                    "where the count still grows, the link breaks under load and transfers end with 'transport retry counter exceeded'",
                    "若计数仍在增长，链路会在负载下中断，传输以 'transport retry counter exceeded' 结束",
                ),
                evidence=(Evidence(source=file, text=str(count)),),
                remedies=("see-the-ports", "cable-and-switch"),
                commands={
                    "see-the-ports": command("watch -d -n 5 -x cat {file:path}", file=file),
                    "cable-and-switch": command("sudo mlxlink -d {device:name} -c", device=device.name),
                },
            )


CAUSE = Cause(
    id="ib-port-down",
    role="root",
    title="An InfiniBand or RoCE port is down",
    title_zh="InfiniBand 或 RoCE 端口未激活或中途断开",
    what="A port that the job uses is not Active, or its link went down while the job ran. Transfers over it run into their retries.",
    why="A cable or transceiver that is loose or dying, a switch port that is off or flaps, no subnet manager (the port stays in Initializing).",
    signatures=(
        cann.message("The network port is down", standing="established", remedies=("npu-link",)),
        Signature(
            needle=": port error",
            pattern=rf"{_EVENT}async (?:error |fatal )?event ?: port error",
            says="an InfiniBand port went down while the job ran (port error)",
            says_zh="某个 InfiniBand 端口在作业运行期间断开（port error）",
            remedies=_LOOK,
        ),
        Signature(
            needle="non-fatal async event: port error",
            pattern=rf"{_EVENT}non-fatal async event: port error",
            standing="likely",
            says="the port {port} of {device} went down while the job ran (port error)",
            says_zh="{device} 的端口 {port} 在作业运行期间断开（port error）",
            remedies=_LOOK,
        ),
        Signature(
            needle="IBV_EVENT_PORT_ERR",
            says="an InfiniBand port went down while the job ran (IBV_EVENT_PORT_ERR)",
            says_zh="某个 InfiniBand 端口在作业运行期间断开（IBV_EVENT_PORT_ERR）",
            remedies=_LOOK,
        ),
        Signature(
            needle="(port still down or GID not yet registered)",
            standing="likely",
            says="NCCL could not bring a failed port back: it is still down, or its address is not registered again",
            says_zh="NCCL 无法恢复出错的端口：它仍然断开，或者它的地址还没有重新注册",
            remedies=_LOOK,
        ),
        Signature(
            needle=": Link down",
            pattern=r"(?P<driver>mlx[45]_core|bnxt_en|ice|irdma|mlx4_en)[: ] ?(?P<bus>[0-9A-Fa-f:.]*) ?(?P<interface>[\w.-]+): Link down",
            standing="likely",
            says="the kernel saw the link of {interface} go down",
            says_zh="内核发现 {interface} 的链路断开",
            remedies=_LOOK,
        ),
        Signature(
            needle="Port module event",
            pattern=r"mlx5_core (?P<bus>[\w:.]{4,40}\w):? .{0,40}Port module event: module (?P<module>\d+), Cable unplugged",
            standing="likely",
            says="the cable was taken out of the adapter {bus}",
            says_zh="网卡 {bus} 的线缆被拔出",
            remedies=_LOOK,
        ),
        Signature(
            needle="State: Initializing",
            near=r"InfiniBand|Physical state|CA '",
            standing="likely",
            says="an InfiniBand port stays in Initializing: no subnet manager has configured it",
            says_zh="某个 InfiniBand 端口停在 Initializing：没有 subnet manager 配置它",
            remedies=("subnet-manager", "see-the-ports"),
        ),
        Signature(
            needle="PORT_INIT (2)",
            standing="likely",
            says="an InfiniBand port stays in PORT_INIT: no subnet manager has configured it",
            says_zh="某个 InfiniBand 端口停在 PORT_INIT：没有 subnet manager 配置它",
            remedies=("subnet-manager", "see-the-ports"),
        ),
        Signature(
            needle="Port number ",
            pattern=r"Port number (?P<port>\d+) state is (?P<state>Down|Init|Armed)",
            says="port {port} of the adapter is in state {state}",
            says_zh="网卡的端口 {port} 处于 {state} 状态",
            remedies=_LOOK,
        ),
        Signature(
            needle=" not active",
            pattern=r"(?P<device>(?:mlx[45]|bnxt_re|rocep|irdma|ibp|hns|erdma|efa)[\w.-]*)(?::| port |/)(?P<port>\d+)\b.{0,30}? not active",
            says="port {port} of {device} is not active",
            says_zh="{device} 的端口 {port} 未激活",
            remedies=_LOOK,
        ),
        Signature(
            needle="there are no active ports detected",
            pattern=r"OpenFabrics device found, but there are no active ports detected|but there are no active ports detected",
            standing="possible",
            says="Open MPI found an InfiniBand adapter without an active port",
            says_zh="Open MPI 找到一块 InfiniBand 网卡，但没有活动的端口",
            remedies=("see-the-ports", "subnet-manager", "without-ib"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        cann.NPU_LINK,
        Remedy(
            id="see-the-ports",
            says="Look at the ports of every host: State must be Active, and the counters of link errors must not grow.",
            says_zh="检查每台主机的端口：State 必须是 Active，链路错误计数不应增长。",
            command=(
                "ibstat; grep . /sys/class/infiniband/*/ports/*/state /sys/class/infiniband/*/ports/*/counters/link_downed; dmesg -T | grep -iE "
                "'link (down|up)'"
            ),
        ),
        Remedy(
            id="cable-and-switch",
            says=(
                "Seat or exchange cable and transceiver, and look at the switch port; ibqueryerrors shows which link of an InfiniBand fabric "
                "counts errors."
            ),
            says_zh="重新插拔或更换线缆和光模块，并检查交换机端口；ibqueryerrors 可以看出 InfiniBand 网络中哪条链路有错误计数。",
            command="sudo ibqueryerrors --details; sudo mlxlink -d mlx5_0 -c",
        ),
        Remedy(
            id="other-ports",
            says="Run on without the port: name the good ports exactly, on every host alike, or leave the host out.",
            says_zh="先避开该端口继续运行：在所有主机上一致地精确列出可用端口，或移出该主机。",
            env={"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"},
            verify="NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep 'NET/IB : Using'",
        ),
        Remedy(
            id="subnet-manager",
            says="Start a subnet manager, on a managed switch or on one host of the fabric.",
            says_zh="启动子网管理器（subnet manager）：在可管理的交换机上，或在网络中的一台主机上。",
            command="sudo systemctl start opensm || sudo systemctl start opensmd; sudo sminfo",
            verify="ibstat | grep -E 'State|SM lid'",
        ),
        ib_config.CAUSE.remedy("without-ib"),
        Remedy(
            id="name-good-ports",
            says="Until it is mended, name the active ports exactly, on every host alike.",
            says_zh="修复之前，在所有主机上一致地精确列出可用端口。",
            command="export NCCL_IB_HCA==mlx5_0:1,mlx5_1:1",
        ),
    ),
    leads_to=("ib-transport-retry", "ib-config", "rank-exception"),
    mistaken_for={
        "nic-hardware": "an adapter that fails reports a catastrophic error or a firmware fault; here only the link is gone",
        "ib-transport-retry": "retries exceeded with all ports Active point to the path, its configuration, or a peer that died",
    },
    sources=(
        "https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html",
        "https://github.com/NVIDIA/nccl/issues/905",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#infiniband",
    ),
    hits=(
        "EJ0002: [PID: 812] 2026-01-08-11:02:13.441.302 The network port is down.",
        "node48:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
        "node48:34050:34121 [0] transport/net_ib.cc:101 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",
        "[2026-11-03 10:00:01] node48:34050:34121 [0] transport/net_ib.cc:152 NCCL WARN NET/IB : mlx5_3:1 Got async error event: port error",
        "node48:34050:34121 [0] NCCL INFO NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)",
        "E1103 rdma_context.cpp:512] Received context async event IBV_EVENT_PORT_ERR for context mlx5_3",
        (
            "node48:34050:34121 [0] NCCL INFO NET/IB: RecoverPort: RTR failed (110) for QP devIndex=1 qp_num=311 localGidIndex=3 (port still down "
            "or GID not yet registered) (send comm=0x55d0)"
        ),
        "[88123.41] mlx5_core 0000:5e:00.0 ens1f0np0: Link down",
        "[88123.41] mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged",
        "CA 'mlx5_3'\n\t\tState: Initializing\n\t\tPhysical state: LinkUp\n\t\tLink layer: InfiniBand",
        "\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_INIT (2)\n\t\t\tmax_mtu:\t\t4096 (5)",
        " Port number 1 state is Down",
        "W1103 rdma_context.cpp:380] Device mlx5_3 port 1 not active",
        (
            "WARNING: There is at least non-excluded one OpenFabrics device found, but there are no active ports detected (or Open MPI was unable "
            "to use them)."
        ),
    ),
    near_misses=(
        "node48:34050:34121 [0] NCCL INFO NET/IB : mlx5_3:1 Got non-fatal async event: port active(9)",
        "node48:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : local catastrophic error",
        "[88123.41] mlx5_core 0000:5e:00.0 ens1f0np0: Link up",
        "\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tLink layer: InfiniBand",
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)",
        "node48:34050:34121 [0] NCCL INFO NET/IB : No device found.",
        (
            "node7:815:864 [0] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer node8<37948> with error 12, opcode 2, len 1, "
            "vendor err 129"
        ),
        "RuntimeError: the environment is not active",
        "ConnectionError: port error while parsing --master-port",
    ),
    explain={
        "en": (
            "The link of an InfiniBand or RoCE port is gone, or never came up. NCCL prints the event on every rank that uses the port; a few "
            "seconds later transfers over it end with error 12, which is a consequence. Find the host that prints the event first and look at its "
            "port and at the switch port opposite: cable, transceiver, errors counted. A port that comes back by itself flaps and will do it "
            "again. A port that stays in Initializing has no subnet manager."
        ),
        "zh": (
            "某个 InfiniBand 或 RoCE 端口的链路断开，或从未建立。使用该端口的每个进程都会由 NCCL 打印这个事件；几秒后经过它的传输以错误 12 结束，"
            "那只是后果。找到最早打印该事件的主机，检查它的端口和对端交换机端口：线缆、光模块、错误计数。自己恢复的端口说明链路在抖动，还会再次发"
            "生。一直停在 Initializing 的端口说明没有子网管理器。"
        ),
    },
)
