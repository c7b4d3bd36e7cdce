"""nic-hardware: a network adapter reports a fault of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import STANDINGS, cause
from unhang.knowledge.text import Text, joined
from unhang.logs import match
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.infiniband import Infiniband
    from unhang.facts.kernel_log import Event, KernelLog
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit


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


CAUSE = cause("nic-hardware", on_host=_on_host)
