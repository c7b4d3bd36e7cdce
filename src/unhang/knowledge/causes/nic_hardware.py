"""nic-hardware: a network adapter reports a fault of its own."""

from __future__ import annotations

from unhang.facts.infiniband import Infiniband
from unhang.facts.kernel_log import Event
from unhang.knowledge.cause import STANDINGS, cause
from unhang.knowledge.judge import Findings, Found, HostView
from unhang.knowledge.words import msg
from unhang.logs import Hit, match
from unhang.model import Evidence

CAUSE = cause("nic-hardware")


def on_host(host: HostView) -> Findings:

    yield from _told(host)
    yield from _firmware(host.infiniband)


def _told(host: HostView) -> Findings:
    """What the kernel's log tells of each adapter: the best of what this cause's own signatures know."""
    from unhang.facts import kernel_log

    bus = getattr(host, "pcie", None)
    nics = {d.address for d in (bus.devices if bus is not None else ()) if d.kind == "nic"}
    faults: dict[str, list[tuple[Event, Hit]]] = {}
    for event in host.events:
        if event.kind == "nic" or (event.kind == "pcie-error" and event.severity == "Uncorrected (Fatal)" and event.device in nics):
            for hit in match(event.text, CAUSE.signatures, source="kernel log")[:1]:
                faults.setdefault(event.device or event.interface or "", []).append((event, hit))
    for told in faults.values():
        newest = sorted(told, key=lambda t: (not kernel_log.recent(t[0]), STANDINGS.index(t[1].signature.standing), t[0].last_age_s or 0.0))
        event, hit = newest[0]
        yield Found(
            "fault",
            remedies=hit.signature.remedies,
            evidence=tuple(Evidence(source="kernel log", text=e.text) for e, _ in newest[:3]),
            says=msg(hit.signature.says, **hit.groups),
            event=event,
        )


def _firmware(seen: Infiniband) -> Findings:
    boards = dict.fromkeys(d.board_id for d in seen.devices if d.board_id and d.firmware)
    for board in boards:
        versions: dict[str, list[str]] = {}
        for device in seen.devices:
            if device.board_id == board and device.firmware:
                versions.setdefault(device.firmware, []).append(device.name)
        if len(versions) > 1:
            yield Found("different-firmware", board=board, versions=sorted(versions.items()))
