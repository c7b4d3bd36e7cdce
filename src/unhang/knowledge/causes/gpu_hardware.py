"""gpu-hardware: a GPU reports a fault of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unhang import data
from unhang.knowledge.cause import STANDINGS, Command, cause, command
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.knowledge.words import msg
from unhang.logs import Hit
from unhang.model import Evidence, Severity

if TYPE_CHECKING:
    from unhang.facts.kernel_log import Event
    from unhang.facts.nvml import Gpu
    from unhang.facts.pcie import Pcie

CAUSE = cause("gpu-hardware")

# What an Xid means and which remedies fit stands in [finding.xid-*], after NVIDIA's Xid catalogue. Absent on purpose: 13 and 31 are faults of the
# application, 43 and 45 only clean up after another error, 154 repeats the recovery action of another Xid; 74, 136, 137, 144 to 150 and 155 tell of
# NVLink, whose fault may sit at either end of a link, and belong to nvlink-nvswitch-fabric.
_BUS = ("power-cycle", "check-the-bus", "take-it-out")
_XIDS: Mapping[int, Mapping[str, Any]] = {
    int(key[4:]): found for key, found in data.load()["causes"]["gpu-hardware"]["finding"].items() if key.startswith("xid-")
}
_DAY_S = 86400
# What holds clocks down and should not; the power cap is everyday life.
_SLOWDOWNS = ("heat", "heat-software", "power-brake", "hardware")


def in_logs(seen: LogView | RunView) -> Answer:
    hits = seen.hits_of(CAUSE.id)
    ordered = sorted(hits, key=lambda h: STANDINGS.index(h.signature.standing))
    decoded = next((h for h in ordered if _xid(h) is not None), None)
    if decoded is None or STANDINGS.index(decoded.signature.standing) > STANDINGS.index(ordered[0].signature.standing):
        return CAUSE.of_hits(hits, seen)
    number = _xid(decoded)
    assert number is not None
    bus = decoded.groups.get("bus")
    others = {(n, b if b != bus else "") for h in ordered if (n := _xid(h)) and (b := h.groups.get("bus"), n) != (bus, number)}
    found = Found(
        f"xid-{number}",
        standing=decoded.signature.standing,
        # A GPU is reset by its full address, function included.
        commands=_reset(bus if "." in bus else f"{bus}.0") if bus and ":" in bus else None,
        bus=bus,
        host=decoded.host,
        number=number,
        meaning=f"xid-{number}",
        others=sorted(others, key=lambda o: f"Xid {o[0]} on {o[1]}" if o[1] else f"Xid {o[0]}")[:4],
    )
    return CAUSE.of_hits([decoded, *(h for h in ordered if h is not decoded)], seen, found)


in_run = in_logs


def _xid(hit: Hit) -> int | None:
    found = hit.groups.get("xid", "")
    return int(found) if found.isdigit() and int(found) in _XIDS else None


def on_host(host: HostView) -> Findings:
    from unhang.facts import gpu, pcie

    seen, bus = host.get(gpu.SUBJECT), host.get(pcie.SUBJECT)
    gpus = seen.gpus if seen is not None else ()
    said = [e for e in host.events if _fault(e) is not None]
    lost = {g.address for g in gpus if g.error}
    # A GPU that sleeps, or belongs to another driver, has reasons of its own to be silent.
    gone = {d.address for d in (bus.devices if bus is not None else ()) if d.kind == "gpu" and d.driver == "nvidia" and d.answers is False}
    for g in gpus:
        yield from _lost(g, said) if g.error else _condition(g, lacks_lanes=_lacks_lanes(g, gpus))
    for address in sorted(gone - lost):
        yield Found(
            "off-bus", evidence=(Evidence(source=f"/sys/bus/pci/devices/{address}/config", text="all ones"), *_lines(said, address)), address=address
        )
    if seen is not None and seen.nvml_error is not None and seen.nvml_error.startswith("no answer"):
        yield Found("driver-silent", seen=seen)
    on_bus = {d.address for d in (bus.devices if bus is not None else ()) if d.answers}
    confined = host.kind not in ("bare", "systemd")
    for device in dict.fromkeys(e.device for e in said):
        if device is None or device not in lost | gone:
            asked = seen is not None and seen.nvml_error is None and device is not None
            works = asked and device in {g.address for g in gpus}
            others = asked and not works and confined and device in on_bus
            yield _told([e for e in said if e.device == device], works=works, others=others, silent=asked and not works and not others)
    yield from _bus_errors(bus, host.events)


def _fault(event: Event) -> int | None:
    """The Xid that tells of it."""
    code = event.code if event.kind == "xid" else {"gpu-lost": 79, "gpu-start-failed": 143}.get(event.kind)
    return code if code in _XIDS else None


def _lines(events: Iterable[Event], address: str | None) -> tuple[Evidence, ...]:
    return tuple(Evidence(source="kernel log", text=e.text) for e in events if e.device == address)[-2:]


def _lost(g: Gpu, said: Sequence[Event]) -> Findings:
    from unhang.facts import gpu

    reset = "reset" in (g.error or "") or "restart" in (g.error or "")
    yield Found(
        "lost",
        remedies=("reset-gpu", *_BUS) if reset else _BUS,
        evidence=(Evidence(source="NVML", text=f"{gpu.label(g)}: {g.error}"), *_lines(said, g.address)),
        commands=_reset(g.address),
        g=g,
    )


def _lacks_lanes(g: Gpu, gpus: Iterable[Gpu]) -> bool:
    """NVML's most is often that of the card, of which laptops, boards and clouds (an A10G of AWS) give half."""
    if not g.pcie_width or not g.pcie_width_max:
        return False
    alike = max(other.pcie_width or 0 for other in gpus if other.name == g.name)
    return g.pcie_width < alike or 2 * g.pcie_width < g.pcie_width_max


def _condition(g: Gpu, *, lacks_lanes: bool) -> Findings:
    if g.recovery is not None and g.recovery != "none":
        yield Found("peer-recovery" if "peer-to-peer" in g.recovery else "recovery", g=g)
    if g.remap_failed:
        yield Found("row-failed", g=g)
    elif g.remap_pending or g.retirement_pending:
        yield Found("row-pending", g=g)
    elif g.ecc_volatile_uncorrected:
        yield Found("memory-errors", g=g)
    held = [s for s in g.slowdowns or () if s in _SLOWDOWNS]
    if held:
        yield Found("slowed", g=g, held=held)
    # The speed falls while a GPU idles; the width does not.
    if lacks_lanes:
        yield Found("few-lanes", g=g)


def _told(events: Sequence[Event], *, works: bool, others: bool, silent: bool) -> Found:
    """What the kernel log tells of a GPU: of one that works since, that is somebody else's, or that NVML should list and does not."""

    ordered = sorted(events, key=lambda e: (STANDINGS.index(_XIDS[_fault(e) or 0]["standing"]), e.last_age_s or 0.0))
    worst = ordered[0]
    number = _fault(worst) or 0
    standing = _XIDS[number]["standing"]
    recent = worst.last_age_s is None or worst.last_age_s < _DAY_S
    severity: Severity = "note" if others or not recent or standing == "possible" else "warning"
    if silent and standing == "established":
        severity = "error"
    also = sorted({f"Xid {e.code}" for e in ordered[1:] if e.code is not None and e.code != worst.code})
    return Found(
        "told",
        severity=severity,
        remedies=_XIDS[number]["remedies"],
        commands=_reset(worst.device),
        device=worst.device or msg("unknown"),
        worst=worst,
        meaning=f"xid-{number}",
        is_xid=worst.kind == "xid",
        also=also,
        works=works,
        each=ordered[:3],
    )


def _bus_errors(bus: Pcie | None, said: Iterable[Event]) -> Findings:
    """Fatal errors of PCIe between a GPU and the processor, as the kernel counts them since boot; before Linux 4.19 it only told of them."""

    if bus is None:
        return
    fatal = {e.device: e for e in said if e.kind == "pcie-error" and e.severity == "Uncorrected (Fatal)" and e.device is not None}
    ways = {a for d in bus.devices if d.kind == "gpu" for a in (d.address, *d.path)}
    for d in bus.devices:
        told = fatal.get(d.address)
        if d.address in ways and not d.aer_fatal and told is not None:
            yield Found("fatal-errors", d=d, told=told)
        if d.address in ways and d.aer_fatal:
            yield Found("fatal-count", d=d)


def _reset(address: str | None) -> Mapping[str, Command | None] | None:
    return {"reset-gpu": command("sudo nvidia-smi --gpu-reset -i {address:pci}", address=address)} if address else None
