"""ib-port-down: an InfiniBand or RoCE port is not active, or went down under the job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.infiniband import Device, Infiniband, Port
    from unhang.facts.kernel_log import KernelLog
    from unhang.facts.network import Network
    from unhang.facts.snapshot import Snapshot
    from unhang.model import Severity

# Links that went down so many times while the machine ran were not only plugged into another switch.
_OFTEN = 3


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


CAUSE = cause("ib-port-down", on_host=_on_host)
