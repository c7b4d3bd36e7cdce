"""ib-port-down: an InfiniBand or RoCE port is not active, or went down under the job."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.facts import infiniband, kernel_log, network
from unhang.facts.infiniband import Device, Infiniband, Port
from unhang.facts.kernel_log import Event
from unhang.facts.network import Network
from unhang.knowledge.judge import Findings, Found, HostView
from unhang.model import Severity

# Links that went down so many times while the machine ran were not only plugged into another switch.
_OFTEN = 3


def on_host(host: HostView) -> Findings:
    seen = host.infiniband
    if infiniband.disabled(seen):
        return
    if (net := host.get(network.SUBJECT)) is not None:
        yield from _fell(seen, net, host.events)
    several, up = host.several, infiniband.active(seen)
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
        yield Found(
            "slow-port",
            device=device,
            port=port,
            count=rates.count(usual),
            usual=usual,
            slower=port.rate_gbps < usual,
            rate=port.rate or "",
        )
    yield from _flapping(up)


def _fell(seen: Infiniband, net: Network, events: Sequence[Event]) -> Findings:
    """Links of Ethernet ports that went down while the machine ran; once, and up again since, is nothing after some hours."""
    for event in events:
        interface = net.interface(event.interface) if event.kind == "link-down" else None
        device = next((d for d in seen.devices if event.interface in d.net_devices), None)
        recent = kernel_log.recent(event)
        if interface is None or device is None or interface.up is False or interface.running is None:
            continue
        often = event.count >= _OFTEN
        if interface.running and not often and not recent:
            continue
        yield Found(
            "link-fell",
            severity="warning" if recent and (often or not interface.running) else "note",
            device=device,
            event=event,
            up_again=interface.running,
        )


def _severity(seen: Infiniband, device: Device, port: Port, several: bool) -> Severity | None:
    """Of a port that is not active. Many are so on purpose: the second port of a card, an Ethernet port without a cable."""
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


def _down(device: Device, port: Port, severity: Severity, up: Sequence[tuple[Device, Port]]) -> Found:
    waits = port.link_layer == "InfiniBand" and port.state in ("INIT", "ARMED")
    good = [f"{d.name}:{p.number}" for d, p in up]
    return Found(
        "port-down",
        severity=severity,
        remedies=(
            "subnet-manager" if waits else "cable-and-switch",
            "see-the-ports",
            *(("name-good-ports",) if good and severity != "note" else ()),
        ),
        device=device,
        port=port,
        waits=waits,
        n=len(up) or None,
        good=good,
    )


def _flapping(up: Sequence[tuple[Device, Port]]) -> Findings:
    """Counters run since the driver was loaded: a cable that was pulled once is no fault, one port that counts far more than the others is."""
    for counter, many in (("link_downed", 10), ("link_error_recovery", 10), ("symbol_error", 1000), ("port_rcv_errors", 1000)):
        counts = sorted(p.counters.get(counter, 0) for _, p in up)
        for device, port in up:
            count = port.counters.get(counter, 0)
            usual = counts[len(counts) // 2] if len(counts) > 2 else 0
            if count < many or count < 10 * usual:
                continue
            file = f"/sys/class/infiniband/{device.name}/ports/{port.number}/counters/{counter}"
            others = usual if len(counts) > 2 else None
            yield Found("errors-counted", device=device, port=port, count=count, counter=counter, others=others, file=file)
