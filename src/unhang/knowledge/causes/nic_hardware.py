"""nic-hardware: a network adapter reports a fault of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import STANDINGS, Cause, Signature
from unhang.knowledge.text import Text, joined
from unhang.logs import match
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.infiniband import Infiniband
    from unhang.facts.kernel_log import Event, KernelLog
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit

_LOOK = ("ask-the-adapter", "take-it-out", "update-firmware")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import infiniband, kernel_log

    log = host.get(kernel_log.SUBJECT)
    if log is not None:
        yield from _told(host, log)
    seen = host.get(infiniband.SUBJECT)
    if seen is not None:
        yield from _firmware(seen)


def _told(host: Snapshot, log: KernelLog) -> Iterable[HostFinding]:
    """What the kernel's log tells of each adapter: the best of what this cause's own signatures know."""
    from unhang.facts import kernel_log, pcie

    bus = host.get(pcie.SUBJECT)
    nics = {d.address for d in (bus.devices if bus is not None else ()) if d.kind == "nic"}
    faults: dict[str, list[tuple[Event, Hit]]] = {}
    for event in log.events:
        if event.kind == "nic" or (event.kind == "pcie-error" and event.severity == "Uncorrected (Fatal)" and event.device in nics):
            for hit in match(event.text, CAUSE.signatures, source="kernel log")[:1]:
                faults.setdefault(event.device or event.interface or "", []).append((event, hit))
    for told in faults.values():
        newest = sorted(told, key=lambda t: (not kernel_log.recent(t[0]), STANDINGS.index(t[1].signature.standing), t[0].last_age_s or 0.0))
        event, hit = newest[0]
        says = Text(hit.signature.says, hit.signature.says_zh).fill(**hit.groups)
        yield CAUSE.host_finding(
            area="kernel",
            severity="warning" if kernel_log.recent(event) else "note",
            says=says + Text(f" ({kernel_log.times(event)})", f"（{kernel_log.times_zh(event)}）"),
            leads_to=Text(
                "connections over it end with transport errors or time-outs; where it comes back, the adapter ends jobs again",
                "经过它的连接以传输错误或超时结束；若再次出现，该网卡还会中断作业",
            ),
            evidence=tuple(Evidence(source="kernel log", text=e.text) for e, _ in newest[:3]),
            remedies=hit.signature.remedies,
        )


def _firmware(seen: Infiniband) -> Iterable[HostFinding]:
    boards = dict.fromkeys(d.board_id for d in seen.devices if d.board_id and d.firmware)
    for board in boards:
        versions: dict[str, list[str]] = {}
        for device in seen.devices:
            if device.board_id == board and device.firmware:
                versions.setdefault(device.firmware, []).append(device.name)
        if len(versions) > 1:
            firmware = Text("{version} on {names}", "{names} 为 {version}")
            said = joined(firmware.fill(version=version, names=", ".join(names)) for version, names in sorted(versions.items()))
            yield CAUSE.host_finding(
                area="infiniband",
                severity="note",
                says=Text(f"adapters of the same board ({board}) run different firmware: ", f"同型号板卡（{board}）的网卡固件版本不同：") + said,
                leads_to=Text(
                    "faults that only some adapters show; the older firmware is the first suspect when one of them fails",
                    "只有部分网卡出现的故障；其中一块出错时首先怀疑较旧的固件",
                ),
                evidence=(Evidence(source="/sys/class/infiniband/*/fw_ver", text=said.en),),
                remedies=("update-firmware",),
            )


CAUSE = Cause(
    id="nic-hardware",
    role="root",
    title="A network adapter reports a hardware fault",
    title_zh="网卡报告硬件故障",
    what=(
        "The driver of an InfiniBand, RoCE or Ethernet adapter says that the adapter itself failed or no longer answers. Every connection over it "
        "breaks at once."
    ),
    why="Firmware that hangs, heat, power or PCIe errors, a dying card; sometimes a reset of the adapter under a running job.",
    signatures=(
        Signature(
            needle="local catastrophic error",
            pattern=r"NET/IB ?: ?(?:(?P<device>[\w.-]+):(?P<port>\d+) )?(?:Got )?async (?:error |fatal )?event ?: local catastrophic error",
            says="an InfiniBand adapter reported a catastrophic error of its own",
            says_zh="一块 InfiniBand 网卡报告了自身的灾难性错误",
            remedies=_LOOK,
        ),
        Signature(
            needle="device's health compromised",
            pattern=r"mlx[45]_core (?P<bus>[\w:.]{4,40}\w):? ?(?P<interface>\S{0,20}?):? .{0,80}device's health compromised",
            says="the adapter {bus} stopped answering: its health counter stands still",
            says_zh="网卡 {bus} 停止响应：健康计数器不再变化",
            remedies=_LOOK,
        ),
        Signature(
            needle="mlx5_core",
            pattern=(
                r"mlx5_core (?P<bus>[\w:.]{4,40}\w):? .{0,80}(?:Fatal error \d+ detected|handling bad device here|device is in fatal error state|"
                r"start of firmware assert|assert_exit_ptr|print_health_info)"
            ),
            says="the adapter {bus} reported a fatal error of its firmware",
            says_zh="网卡 {bus} 报告了固件致命错误",
            remedies=_LOOK,
        ),
        Signature(
            needle="mlx5_core",
            pattern=(
                r"mlx5_core (?P<bus>[\w:.]{4,40}\w):? .{0,80}(?:TX timeout detected|timeout\. Will cause a leak of a command resource|Command "
                r"completion arrived "
                r"after timeout)"
            ),
            standing="likely",
            says="the adapter {bus} does not answer the commands of its driver",
            says_zh="网卡 {bus} 不响应驱动的命令",
            remedies=_LOOK,
        ),
        Signature(
            needle="mlx5_core",
            pattern=(
                r"mlx5_core (?P<bus>[\w:.]{4,40}\w):? .{0,80}(?:High temperature on sensors|temp_warn.{0,40}High temperature|Port module "
                r"event\[error\]: module \d+, Cable error, (?P<fault>[\w ()-]{3,60}))"
            ),
            standing="likely",
            says="the adapter {bus} reports heat or a faulty cable module",
            says_zh="网卡 {bus} 报告过热或线缆模块故障",
            remedies=("cool-or-replace", "ask-the-adapter", "take-it-out"),
        ),
        Signature(
            needle="NETDEV WATCHDOG",
            pattern=r"NETDEV WATCHDOG:? (?:CPU: \d+: )?(?P<interface>[\w.@-]+) \((?P<driver>\w+)\): transmit queue \d+ timed out",
            standing="likely",
            says="the adapter behind {interface} ({driver}) stopped sending: its transmit queue timed out",
            says_zh="{interface} 对应的网卡（{driver}）停止发送：发送队列超时",
            remedies=_LOOK,
        ),
        Signature(
            needle="NETDEV WATCHDOG",
            # Linux 6.6 and later name the device in front.
            pattern=(
                r"(?P<driver>[\w-]{1,32}) (?P<bus>[\w:.-]{1,40}) (?P<interface>[\w.@-]{1,15}): NETDEV WATCHDOG: CPU: \d+: "
                r"transmit queue \d+ timed out"
            ),
            standing="likely",
            says="the adapter behind {interface} ({driver}) stopped sending: its transmit queue timed out",
            says_zh="{interface} 对应的网卡（{driver}）停止发送：发送队列超时",
            remedies=_LOOK,
        ),
        Signature(
            needle="bnxt_en ",
            pattern=(
                r"bnxt_en (?P<bus>[\w:.]{4,40}\w)[^\n]{0,60}(?:Firmware not responding|firmware fatal|FW fatal|Error recovery is not supported|"
                r"Detected firmware fatal condition)"
            ),
            says="the firmware of the adapter {bus} does not respond",
            says_zh="网卡 {bus} 的固件没有响应",
            remedies=_LOOK,
        ),
        Signature(
            needle="hw csum failure",
            pattern=r"(?P<interface>(?<![\w.-])[\w.-]{1,40}): hw csum failure",
            standing="likely",
            says="the adapter behind {interface} computes wrong checksums",
            says_zh="{interface} 对应的网卡计算的校验和有误",
            remedies=_LOOK,
        ),
        Signature(
            needle="IBV_EVENT_DEVICE_FATAL",
            says="an adapter reported that it failed (IBV_EVENT_DEVICE_FATAL)",
            says_zh="一块网卡报告自身故障（IBV_EVENT_DEVICE_FATAL）",
            remedies=_LOOK,
        ),
        Signature(
            needle="marking device with fatal error",
            pattern=r"NET/IB : (?P<device>[\w.-]+):(?P<port>\d+) marking device with fatal error",
            standing="possible",
            says="NCCL gave up the adapter {device}, port {port}, after its address had changed",
            says_zh="网卡 {device} 端口 {port} 的地址改变后，NCCL 放弃了它",
            remedies=_LOOK,
        ),
        Signature(
            needle="PCIe Bus Error: severity=Uncorrect",
            pattern=(
                r"(?P<driver>mlx[45]_core|bnxt_en|ice|irdma|efa|i40e|be2net) (?P<bus>[\w:.]{4,40}\w): .{0,40}PCIe Bus Error: "
                r"severity=Uncorrect(?:ed|able)"
            ),
            says="the PCIe connection of the adapter {bus} failed ({driver})",
            says_zh="网卡 {bus} 的 PCIe 连接出错（{driver}）",
            remedies=("cool-or-replace", "ask-the-adapter", "take-it-out"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="ask-the-adapter",
            says="Read what the adapter and its driver say of themselves.",
            says_zh="查看网卡及其驱动自己的记录。",
            command=(
                "dmesg -T | grep -E 'mlx[45]_core|bnxt|efa|AER|NETDEV WATCHDOG'; ibstat; for d in /sys/class/infiniband/*; do echo $d; cat "
                "$d/fw_ver $d/ports/*/state; done"
            ),
        ),
        Remedy(
            id="take-it-out",
            says="Run on without the adapter: name the good ones exactly (comma separated), or drain the host.",
            says_zh="先不用这块网卡继续运行：精确列出可用的网卡（逗号分隔），或把该主机移出任务。",
            env={"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"},
            verify="NCCL_DEBUG=INFO torchrun --nnodes 2 --nproc-per-node 8 train.py 2>&1 | grep 'NET/IB : Using'",
        ),
        Remedy(
            id="update-firmware",
            says="Power-cycle the host, then update firmware and driver of the adapter together; replace it where the fault returns.",
            says_zh="给主机断电重启，再同时升级网卡固件和驱动；故障复现则更换网卡。",
            command="sudo mlxfwmanager --query; sudo mst start; sudo mlxfwreset -d /dev/mst/mt4129_pciconf0 query",
        ),
        Remedy(
            id="cool-or-replace",
            says="Check cooling, seat the card and its cable module again, exchange the cable or the transceiver.",
            says_zh="检查散热，重新插拔网卡和光模块，更换线缆或光模块。",
            command="sudo mlxlink -d mlx5_0 -m; sudo mget_temp -d /dev/mst/mt4129_pciconf0",
        ),
    ),
    leads_to=("ib-port-down", "ib-transport-retry", "ib-config", "rank-exception", "network-blocked"),
    mistaken_for={
        "ib-port-down": "a link that goes down leaves the adapter healthy: only the port reports it",
        "ib-transport-retry": "retries exceeded without any report of the adapter point to the path between the two hosts",
    },
    sources=(
        "https://docs.nvidia.com/networking/display/mlnxofedv23103220lts/troubleshooting",
        "https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html",
        "https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html",
    ),
    hits=(
        "[1,12]<stdout>:node7:815:864 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error",
        "[2026-11-03 10:00:01] node7:815:864 [0] transport/net_ib.cc:142 NCCL WARN NET/IB : mlx5_3:1 async fatal event: local catastrophic error",
        "[88123.41] mlx5_core 0000:5e:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
        "[88123.41] mlx5_core 0000:5e:00.0: mlx5_handle_bad_state:140: Fatal error 3 detected",
        "[88129.41] mlx5_core 0000:5e:00.0: wait_func:1137:(pid 4720): CREATE_QP(0x500) timeout. Will cause a leak of a command resource",
        "[88123.41] mlx5_core 0000:5e:00.0 ens1f0np0: TX timeout detected",
        "[88123.41] mlx5_core 0000:5e:00.0: temp_warn:159:(pid 0): High temperature on sensors with bit set 0 1",
        "[88123.41] mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)",
        "[88123.41] NETDEV WATCHDOG: ens1f0np0 (mlx5_core): transmit queue 12 timed out",
        "[88123.41] bnxt_en 0000:5e:00.0 eth2: Firmware not responding, status: 0x8",
        "[88123.41] mlx5_core 0000:5e:00.0 ens1f0np0: NETDEV WATCHDOG: CPU: 31: transmit queue 12 timed out 5376 ms",
        "[88123.41] ens1f0np0: hw csum failure",
        "ERROR: async event: IBV_EVENT_DEVICE_FATAL on mlx5_3",
        (
            "node7:815:864 [0] transport/net_ib/init.cc:188 NCCL WARN NET/IB : mlx5_3:1 marking device with fatal error after GID-change event "
            "handler failed"
        ),
        "[88123.41] mlx5_core 0000:5e:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        "[88123.41] mlx5_core 0000:5e:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)",
    ),
    near_misses=(
        "node7:815:864 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
        "[88123.41] mlx5_core 0000:5e:00.0: firmware version: 28.37.1014",
        "[88123.41] mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
        "[88123.41] mlx5_core 0000:5e:00.0 ens1f0np0: Link down",
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "[88123.41] mlx5_core 0000:5e:00.0: mlx5_pcie_event:301: Detected insufficient power on the PCIe slot (27W).",
        "node7:815:864 [0] NCCL INFO NET/IB : mlx5_3:1 Got non-fatal async event: client reregistration(15)",
        (
            "node7:815:864 [0] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer node8<37948> with error 12, opcode 2, len 1, "
            "vendor err 129"
        ),
    ),
    explain={
        "en": (
            "The adapter itself failed or its firmware stopped answering; the driver or the verbs library says so. All connections over it break "
            "together, so ranks on many hosts print transport errors and timeouts that are consequences. The host that prints this line is the "
            "one to look at. Run on without the adapter or the host, power-cycle it, bring firmware and driver to matching versions, and replace "
            "the card where the fault returns."
        ),
        "zh": (
            "网卡自身发生故障，或其固件不再响应，驱动或 verbs 库已经说明。经过它的所有连接会同时中断，所以许多主机上的进程会打印传输错误和超时，那"
            "些都是后果。要检查的是打印这一行的主机。先不用该网卡或该主机继续运行，断电重启，让固件和驱动版本匹配；故障复现则更换网卡。"
        ),
    },
)
