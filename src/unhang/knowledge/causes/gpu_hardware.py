"""gpu-hardware: a GPU reports a fault of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from unhang.knowledge.cause import STANDINGS, Command, LogView, cause, command
from unhang.knowledge.judge import Found, HostView
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.model import Evidence, Finding, Severity, Standing

if TYPE_CHECKING:
    from unhang.facts.kernel_log import Event
    from unhang.facts.nvml import Gpu
    from unhang.facts.pcie import Pcie
    from unhang.logs import Hit
    from unhang.records.incident_view import IncidentView

# What an Xid means and which remedies fit, after NVIDIA's Xid catalogue. Absent on purpose: 13 and 31 are faults of the application, 43 and 45
# only clean up after another error, 154 repeats the recovery action of another Xid; 74, 136, 137, 144 to 150 and 155 tell of NVLink, whose fault may
# sit at either end of a link, and belong to nvlink-nvswitch-fabric.
_MEMORY = ("reset-gpu", "check-memory", "take-it-out")
_BUS = ("power-cycle", "check-the-bus", "take-it-out")
_FIRMWARE = ("reset-gpu", "update-driver", "take-it-out")
_LINK = ("reset-gpu", "check-nvlink", "take-it-out")
_XIDS: Mapping[int, tuple[Text, Standing, tuple[str, ...]]] = MappingProxyType(
    {
        46: (Text("the GPU stopped processing", "GPU 停止处理"), "likely", _FIRMWARE),
        48: (Text("a double-bit ECC error in GPU memory", "显存发生双比特 ECC 错误"), "established", _MEMORY),
        54: (Text("its auxiliary power is not connected", "辅助供电没有接好"), "established", _BUS),
        61: (Text("its internal micro-controller warned", "内部微控制器发出警告"), "likely", _FIRMWARE),
        62: (Text("its internal micro-controller halted", "内部微控制器停止运行"), "established", _FIRMWARE),
        63: (
            Text(
                "a faulty memory row or page was recorded for replacement; it takes effect at the next reset",
                "记录了一个待替换的显存故障行或页；下次复位时生效",
            ),
            "likely",
            _MEMORY,
        ),
        64: (Text("a faulty memory row or page could not be replaced", "显存故障行或页无法替换"), "established", _MEMORY),
        79: (Text("the GPU has fallen off the bus", "GPU 已从总线上掉线"), "established", _BUS),
        92: (Text("a high rate of single-bit ECC errors", "单比特 ECC 错误率过高"), "possible", _MEMORY),
        94: (Text("an uncorrectable memory error, contained to this application", "不可纠正的显存错误，影响限于该应用"), "established", _MEMORY),
        95: (
            Text(
                "an uncorrectable memory error, not contained: every application on it is affected",
                "不可纠正的显存错误，未能隔离：其上的所有应用都受影响",
            ),
            "established",
            _MEMORY,
        ),
        109: (Text("a context switch timed out", "上下文切换超时"), "likely", _FIRMWARE),
        110: (Text("a security fault", "安全故障"), "established", _FIRMWARE),
        119: (Text("its system processor (GSP) did not answer the driver", "系统处理器（GSP）没有响应驱动"), "established", _FIRMWARE),
        120: (Text("its system processor (GSP) failed", "系统处理器（GSP）出错"), "established", _FIRMWARE),
        121: (Text("a corrected error of the link to the CPU (C2C)", "与 CPU 的链路（C2C）发生已纠正的错误"), "possible", _LINK),
        140: (Text("an unrecovered ECC error", "未恢复的 ECC 错误"), "established", _MEMORY),
        143: (Text("the GPU could not be initialised", "GPU 无法初始化"), "established", _FIRMWARE),
        156: (Text("a faulty part of the GPU was retired", "GPU 的一个故障部件已停用"), "likely", _MEMORY),
        157: (Text("a faulty part of the GPU could not be retired", "GPU 的一个故障部件无法停用"), "established", _MEMORY),
        158: (Text("a fatal timeout inside the GPU", "GPU 内部发生致命超时"), "established", _FIRMWARE),
        167: (Text("a fatal PCIe timeout", "致命的 PCIe 超时"), "established", _BUS),
        168: (Text("errors in protected memory reduced its capacity", "受保护显存中的错误使其容量减少"), "established", _MEMORY),
        169: (Text("its security processor halted", "安全处理器停止运行"), "established", _FIRMWARE),
        171: (Text("an uncorrectable DRAM error", "不可纠正的 DRAM 错误"), "established", _MEMORY),
        172: (Text("an uncorrectable SRAM error", "不可纠正的 SRAM 错误"), "established", _MEMORY),
    }
)


_WORN_OUT = ("take-it-out", "check-memory")
_DAY_S = 86400
# What holds clocks down and should not; the power cap is everyday life.
_SLOWDOWNS: Mapping[str, Text] = MappingProxyType(
    {
        "heat": Text("the hardware sees it too hot", "硬件检测到过热"),
        "heat-software": Text("the driver sees it too hot", "驱动检测到过热"),
        "power-brake": Text("the power supply brakes", "供电触发功率制动"),
        "hardware": Text("a hardware protection", "硬件保护"),
    }
)


def _of_hits(hits: Sequence[Hit], view: LogView | None) -> Finding | None:
    ordered = sorted(hits, key=lambda h: STANDINGS.index(h.signature.standing))
    decoded = next((h for h in ordered if _xid(h) is not None), None)
    if decoded is None or STANDINGS.index(decoded.signature.standing) > STANDINGS.index(ordered[0].signature.standing):
        return CAUSE.of_hits(hits, view)
    number = _xid(decoded)
    assert number is not None
    meaning, _, remedies = _XIDS[number]
    bus = decoded.groups.get("bus")
    gpu = same(f"GPU {bus}") if bus else Text("a GPU", "一块 GPU")
    host = Text(f" on {decoded.host}", f"（{decoded.host}）") if decoded.host else Text("", " ")
    others = {
        same(f"Xid {n}") + (Text(f" on {b}", f"（{b}）") if b and b != bus else NOTHING)
        for h in ordered
        if (n := _xid(h)) and (b := h.groups.get("bus"), n) != (bus, number)
    }
    also = Text("; also {others}", "；另有 {others}").fill(others=joined(sorted(others, key=lambda t: t.en)[:4], COMMA)) if others else NOTHING
    # A GPU is reset by its full address, function included.
    return CAUSE.of_hits(
        [decoded, *(h for h in ordered if h is not decoded)],
        view,
        says=Text("{gpu}{host} reported Xid {number}: {meaning}{also}", "{gpu}{host}报告了 Xid {number}：{meaning}{also}").fill(
            gpu=gpu, host=host, number=number, meaning=meaning, also=also
        ),
        remedies=remedies,
        commands=_reset(bus if "." in bus else f"{bus}.0") if bus and ":" in bus else None,
    )


def _xid(hit: Hit) -> int | None:
    found = hit.groups.get("xid", "")
    return int(found) if found.isdigit() and int(found) in _XIDS else None


def _in_run(picture: IncidentView) -> Finding | None:
    return _of_hits(picture.hits_of(CAUSE.id), None)


def _in_logs(view: LogView) -> Finding | None:
    return _of_hits(view.hits_of(CAUSE.id), view)


def _on_host(host: HostView) -> Iterable[Found]:
    from unhang.facts import gpu, kernel_log, pcie

    seen, bus, _log = host.get(gpu.SUBJECT), host.get(pcie.SUBJECT), host.get(kernel_log.SUBJECT)
    gpus = seen.gpus if seen is not None else ()
    said = [e for e in (host.events) if _fault(e) is not None]
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


def _fault(event: Event) -> tuple[Text, Standing, tuple[str, ...]] | None:
    if event.kind == "xid":
        return _XIDS.get(event.code or 0)
    return {"gpu-lost": _XIDS[79], "gpu-start-failed": _XIDS[143]}.get(event.kind)


def _lines(events: Iterable[Event], address: str | None) -> tuple[Evidence, ...]:
    return tuple(Evidence(source="kernel log", text=e.text) for e in events if e.device == address)[-2:]


def _lost(g: Gpu, said: Sequence[Event]) -> Iterable[Found]:
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


def _condition(g: Gpu, *, lacks_lanes: bool) -> Iterable[Found]:

    def found(severity: Severity, says: Text, leads_to: Text, remedies: tuple[str, ...], text: str) -> Found:
        return Found("condition", severity=severity, remedies=remedies, commands=_reset(g.address), g=g, says=says, leads_to=leads_to, text=text)

    if g.recovery is not None and g.recovery != "none":
        severe = "peer-to-peer" not in g.recovery
        needs = Text(f"needs recovery: {g.recovery}", f"需要恢复操作：{g.recovery}")
        leads = Text("work on it fails until that is done", "完成之前，在它上面的工作都会失败")
        yield found("error" if severe else "warning", needs, leads, _FIRMWARE, f"recovery action: {g.recovery}")
    if g.remap_failed:
        text = f"row remapping failure; remapped rows: {g.remapped_rows_uncorrected} uncorrectable, {g.remapped_rows_corrected} correctable"
        failed = Text("could not replace a faulty row of its memory", "无法替换显存中的故障行")
        yield found("error", failed, Text("memory errors end the job again and again", "显存错误会一再中断作业"), _WORN_OUT, text)
    elif g.remap_pending or g.retirement_pending:
        what = Text("row", "行") if g.remap_pending else Text("page", "页")
        waits = Text("has a faulty {what} of memory whose replacement waits for a reset", "有一个显存故障{what}，要等复位后才能替换").fill(what=what)
        yield found("warning", waits, Text("another memory error ends the job", "再出现显存错误就会中断作业"), _MEMORY, "pending")
    elif g.ecc_volatile_uncorrected:
        text = f"uncorrected volatile ECC errors: {g.ecc_volatile_uncorrected}; aggregate: {g.ecc_aggregate_uncorrected}"
        met = Text(
            f"met {g.ecc_volatile_uncorrected} uncorrected memory errors since its driver was loaded",
            f"自驱动加载以来出现 {g.ecc_volatile_uncorrected} 个未纠正的显存错误",
        )
        yield found("warning", met, Text("another one ends the job", "再出现一个就会中断作业"), _MEMORY, text)
    held = [_SLOWDOWNS[s] for s in g.slowdowns or () if s in _SLOWDOWNS]
    if held:
        at = Text(f" at {g.temperature_c} °C", f"（{g.temperature_c} °C）") if g.temperature_c is not None else NOTHING
        yield found(
            "warning",
            Text("is slowed down{at}: {why}", "正在降频{at}：{why}").fill(at=at, why=joined(held, COMMA)),
            Text("every rank waits for the slowest GPU in each step", "每一步中所有 rank 都在等最慢的 GPU"),
            ("check-the-bus",),
            f"slowdown reasons: {', '.join(g.slowdowns or ())}",
        )
    # The speed falls while a GPU idles; the width does not.
    if lacks_lanes:
        runs = Text(f"runs on {g.pcie_width} of {g.pcie_width_max} PCIe lanes", f"{g.pcie_width_max} 条 PCIe 通道只用了 {g.pcie_width} 条")
        leads = Text(
            "copies to and from it take that much longer; a card that is not seated well may be lost next",
            "与它之间的拷贝相应变慢；若是没有插好，接下来可能掉卡",
        )
        yield found("warning", runs, leads, ("check-the-bus", "power-cycle"), f"link width x{g.pcie_width}, x{g.pcie_width_max} possible")


def _told(events: Sequence[Event], *, works: bool, others: bool, silent: bool) -> Found:
    """What the kernel log tells of a GPU: of one that works since, that is somebody else's, or that NVML should list and does not."""

    ordered = sorted(events, key=lambda e: (STANDINGS.index(_of(e)[1]), e.last_age_s or 0.0))
    worst = ordered[0]
    meaning, standing, remedies = _of(worst)
    recent = worst.last_age_s is None or worst.last_age_s < _DAY_S
    severity: Severity = "note" if others or not recent or standing == "possible" else "warning"
    if silent and standing == "established":
        severity = "error"
    also = sorted({f"Xid {e.code}" for e in ordered[1:] if e.code is not None and e.code != worst.code})
    return Found(
        "told",
        severity=severity,
        remedies=remedies,
        commands=_reset(worst.device),
        device=worst.device or Text("unknown", "未知"),
        worst=worst,
        meaning=meaning,
        what="xid" if worst.kind == "xid" else "note",
        codes=joined(map(same, also), COMMA),
        also="also" if also else "",
        leads="it-is-over-where" if works else "work-on-this-gpu",
        each=ordered[:3],
    )


def _of(event: Event) -> tuple[Text, Standing, tuple[str, ...]]:
    found = _fault(event)
    assert found is not None
    return found


def _bus_errors(bus: Pcie | None, said: Iterable[Event]) -> Iterable[Found]:
    """Fatal errors of PCIe between a GPU and the processor, as the kernel counts them since boot; before Linux 4.19 it only told of them."""
    from unhang.facts import kernel_log

    if bus is None:
        return
    fatal = {e.device: e for e in said if e.kind == "pcie-error" and e.severity == "Uncorrected (Fatal)" and e.device is not None}
    ways = {a for d in bus.devices if d.kind == "gpu" for a in (d.address, *d.path)}
    for d in bus.devices:
        told = fatal.get(d.address)
        if d.address in ways and not d.aer_fatal and told is not None:
            yield Found("fatal-errors", severity="warning" if kernel_log.recent(told) else "note", d=d, told=told)
        if d.address in ways and d.aer_fatal:
            yield Found("fatal-count", d=d)


def _reset(address: str | None) -> Mapping[str, Command | None] | None:
    return {"reset-gpu": command("sudo nvidia-smi --gpu-reset -i {address:pci}", address=address)} if address else None


CAUSE = cause("gpu-hardware", in_run=_in_run, in_logs=_in_logs, on_host=_on_host)
