"""gpu-hardware: a GPU reports a fault of its own.

Long because it holds the table of Xids, and the lines that each of the tools around them prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from unhang.knowledge.cause import STANDINGS, Cause, Command, LogView, Signature, command
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.model import Evidence, Finding, HostFinding, Remedy, Severity, Standing

if TYPE_CHECKING:
    from unhang.facts.kernel_log import Event
    from unhang.facts.nvml import Gpu
    from unhang.facts.pcie import Pcie
    from unhang.facts.snapshot import Snapshot
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


def _codes(standing: Standing) -> str:
    return "|".join(str(n) for n, (_, s, _) in _XIDS.items() if s == standing)


_XID = r"Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)\): "
_PID = r"\b(?:, pid='?(?P<process>\d+))?"

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
_ECC = ("check-memory", "reset-gpu", "take-it-out")


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


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import container, gpu, kernel_log, pcie

    seen, bus, log = host.get(gpu.SUBJECT), host.get(pcie.SUBJECT), host.get(kernel_log.SUBJECT)
    gpus = seen.gpus if seen is not None else ()
    said = [e for e in (log.events if log is not None else ()) if _fault(e) is not None]
    lost = {g.address for g in gpus if g.error}
    # A GPU that sleeps, or belongs to another driver, has reasons of its own to be silent.
    gone = {d.address for d in (bus.devices if bus is not None else ()) if d.kind == "gpu" and d.driver == "nvidia" and d.answers is False}
    for g in gpus:
        yield from _lost(g, said) if g.error else _condition(g, lacks_lanes=_lacks_lanes(g, gpus))
    for address in sorted(gone - lost):
        yield CAUSE.host_finding(
            area="pcie",
            severity="error",
            says=Text(f"the GPU at {address} no longer answers on the PCIe bus", f"位于 {address} 的 GPU 在 PCIe 总线上不再响应"),
            leads_to=Text("CUDA does not start on it, and often on no GPU of this host", "CUDA 在它上面无法启动，往往在本机所有 GPU 上都无法启动"),
            evidence=(Evidence(source=f"/sys/bus/pci/devices/{address}/config", text="all ones"), *_lines(said, address)),
            remedies=_BUS,
        )
    if seen is not None and seen.nvml_error is not None and seen.nvml_error.startswith("no answer"):
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text(f"the driver does not answer: NVML gives {seen.nvml_error}", f"驱动没有响应：NVML 报告 {seen.nvml_error}"),
            leads_to=Text("nvidia-smi and the start of CUDA hang in the same place", "nvidia-smi 和 CUDA 的启动会挂在同一处"),
            evidence=(Evidence(source="NVML", text=seen.nvml_error),),
            remedies=("ask-the-kernel-log", "power-cycle"),
        )
    on_bus = {d.address for d in (bus.devices if bus is not None else ()) if d.answers}
    confined = container.kind(host) not in ("bare", "systemd")
    for device in dict.fromkeys(e.device for e in said):
        if device is None or device not in lost | gone:
            asked = seen is not None and seen.nvml_error is None and device is not None
            works = asked and device in {g.address for g in gpus}
            others = asked and not works and confined and device in on_bus
            yield _told([e for e in said if e.device == device], works=works, others=others, silent=asked and not works and not others)
    yield from _bus_errors(bus, log.events if log is not None else ())


def _fault(event: Event) -> tuple[Text, Standing, tuple[str, ...]] | None:
    if event.kind == "xid":
        return _XIDS.get(event.code or 0)
    return {"gpu-lost": _XIDS[79], "gpu-start-failed": _XIDS[143]}.get(event.kind)


def _lines(events: Iterable[Event], address: str | None) -> tuple[Evidence, ...]:
    return tuple(Evidence(source="kernel log", text=e.text) for e in events if e.device == address)[-2:]


def _lost(g: Gpu, said: Sequence[Event]) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    reset = "reset" in (g.error or "") or "restart" in (g.error or "")
    yield CAUSE.host_finding(
        area="gpu",
        severity="error",
        says=Text(f"{gpu.label(g)} cannot be reached: {g.error}", f"{gpu.label(g)} 无法访问：{g.error}"),
        leads_to=Text("CUDA does not start on it, and often on no GPU of this host", "CUDA 在它上面无法启动，往往在本机所有 GPU 上都无法启动"),
        evidence=(Evidence(source="NVML", text=f"{gpu.label(g)}: {g.error}"), *_lines(said, g.address)),
        remedies=("reset-gpu", *_BUS) if reset else _BUS,
        commands=_reset(g.address),
    )


def _lacks_lanes(g: Gpu, gpus: Iterable[Gpu]) -> bool:
    """NVML's most is often that of the card, of which laptops, boards and clouds (an A10G of AWS) give half."""
    if not g.pcie_width or not g.pcie_width_max:
        return False
    alike = max(other.pcie_width or 0 for other in gpus if other.name == g.name)
    return g.pcie_width < alike or 2 * g.pcie_width < g.pcie_width_max


def _condition(g: Gpu, *, lacks_lanes: bool) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    def found(severity: Severity, says: Text, leads_to: Text, remedies: tuple[str, ...], text: str) -> HostFinding:
        return CAUSE.host_finding(
            area="gpu",
            severity=severity,
            says=same(f"{gpu.label(g)} ") + says,
            leads_to=leads_to,
            evidence=(Evidence(source="NVML", text=text),),
            remedies=remedies,
            commands=_reset(g.address),
        )

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


def _told(events: Sequence[Event], *, works: bool, others: bool, silent: bool) -> HostFinding:
    """What the kernel log tells of a GPU: of one that works since, that is somebody else's, or that NVML should list and does not."""
    from unhang.facts import kernel_log

    ordered = sorted(events, key=lambda e: (STANDINGS.index(_of(e)[1]), e.last_age_s or 0.0))
    worst = ordered[0]
    meaning, standing, remedies = _of(worst)
    recent = worst.last_age_s is None or worst.last_age_s < _DAY_S
    severity: Severity = "note" if others or not recent or standing == "possible" else "warning"
    if silent and standing == "established":
        severity = "error"
    what = Text(f"Xid {worst.code}: ", f"Xid {worst.code}：") + meaning if worst.kind == "xid" else meaning
    when = Text(kernel_log.times(worst), kernel_log.times_zh(worst))
    also = sorted({f"Xid {e.code}" for e in ordered[1:] if e.code is not None and e.code != worst.code})
    return CAUSE.host_finding(
        area="kernel",
        severity=severity,
        says=Text("GPU {device}: {what} ({when}){also}", "GPU {device}：{what}（{when}）{also}").fill(
            device=worst.device or Text("unknown", "未知"),
            what=what,
            when=when,
            also=Text("; also {codes}", "；另有 {codes}").fill(codes=joined(map(same, also), COMMA)) if also else NOTHING,
        ),
        leads_to=Text(
            "it is over where the GPU works since; where it comes back, the card ends jobs again",
            "若此后 GPU 工作正常，就已经过去；若再次出现，这块卡还会中断作业",
        )
        if works
        else Text("work on this GPU fails", "在这块 GPU 上的工作会失败"),
        evidence=tuple(Evidence(source="kernel log", text=e.text) for e in ordered[:3]),
        remedies=remedies,
        commands=_reset(worst.device),
    )


def _of(event: Event) -> tuple[Text, Standing, tuple[str, ...]]:
    found = _fault(event)
    assert found is not None
    return found


def _bus_errors(bus: Pcie | None, said: Iterable[Event]) -> Iterable[HostFinding]:
    """Fatal errors of PCIe between a GPU and the processor, as the kernel counts them since boot; before Linux 4.19 it only told of them."""
    from unhang.facts import kernel_log

    if bus is None:
        return
    fatal = {e.device: e for e in said if e.kind == "pcie-error" and e.severity == "Uncorrected (Fatal)" and e.device is not None}
    ways = {a for d in bus.devices if d.kind == "gpu" for a in (d.address, *d.path)}
    for d in bus.devices:
        told = fatal.get(d.address)
        if d.address in ways and not d.aer_fatal and told is not None:
            yield CAUSE.host_finding(
                area="kernel",
                severity="warning" if kernel_log.recent(told) else "note",
                says=Text(
                    f"{d.address}, on the way to a GPU, had fatal PCIe errors ({kernel_log.times(told)})",
                    f"通往 GPU 路径上的 {d.address} 发生过致命 PCIe 错误（{kernel_log.times_zh(told)}）",
                ),
                leads_to=Text("the GPU may fall off the bus", "GPU 可能从总线上掉线"),
                evidence=(Evidence(source="kernel log", text=told.text),),
                remedies=("check-the-bus", "power-cycle"),
            )
        if d.address in ways and d.aer_fatal:
            yield CAUSE.host_finding(
                area="pcie",
                severity="warning",
                says=Text(
                    f"{d.address}, on the way to a GPU, counts {d.aer_fatal} fatal PCIe errors since boot",
                    f"通往 GPU 路径上的 {d.address} 开机以来记录了 {d.aer_fatal} 个致命 PCIe 错误",
                ),
                leads_to=Text("the GPU may fall off the bus", "GPU 可能从总线上掉线"),
                evidence=(Evidence(source=f"/sys/bus/pci/devices/{d.address}/aer_dev_fatal", text=f"{d.aer_fatal} errors"),),
                remedies=("check-the-bus", "power-cycle"),
            )


def _reset(address: str | None) -> Mapping[str, Command | None] | None:
    return {"reset-gpu": command("sudo nvidia-smi --gpu-reset -i {address:pci}", address=address)} if address else None


CAUSE = Cause(
    id="gpu-hardware",
    role="root",
    title="A GPU reports a hardware fault",
    title_zh="GPU 报告硬件故障",
    what="The driver, CUDA or NVML says that a GPU itself failed: memory errors, no answer on the PCIe bus, a halted controller.",
    why=("Faulty or ageing memory, a bad PCIe connection, power, heat, or firmware; some of it is cured by a reset, some only by another card."),
    signatures=(
        Signature(
            needle="NVRM: Xid",
            pattern=rf"{_XID}(?P<xid>{_codes('established')}){_PID}",
            says="GPU {bus} reported Xid {xid}, a hardware fault",
            says_zh="GPU {bus} 报告了 Xid {xid}，属于硬件故障",
        ),
        Signature(
            needle="NVRM: Xid",
            pattern=rf"{_XID}(?P<xid>{_codes('likely')}){_PID}",
            standing="likely",
            says="GPU {bus} reported Xid {xid}",
            says_zh="GPU {bus} 报告了 Xid {xid}",
        ),
        Signature(
            needle="NVRM: Xid",
            pattern=rf"{_XID}(?P<xid>{_codes('possible')}){_PID}",
            standing="possible",
            says="GPU {bus} reported Xid {xid}",
            says_zh="GPU {bus} 报告了 Xid {xid}",
        ),
        Signature(
            needle="caused by previous Xid",
            pattern=rf"{_XID}45\b.{{0,200}}caused by previous Xid (?P<xid>{'|'.join(str(n) for n in _XIDS)})\b",
            standing="likely",
            says="the driver ended this application's work on GPU {bus} because of an earlier Xid {xid}",
            says_zh="由于之前的 Xid {xid}，驱动终止了该应用在 GPU {bus} 上的工作",
        ),
        Signature(
            needle="The NVIDIA Xid catalog recommends resetting",
            pattern=r"Xid (?P<xid>\d+) detected .{0,80}? on host (?P<host>[\w.-]+)\.",
            says="NCCL's own diagnosis found Xid {xid} on {host}, which needs a reset of the GPU",
            says_zh="NCCL 自身的诊断在 {host} 上发现 Xid {xid}，需要重置 GPU",
            remedies=("reset-gpu", "check-memory", "take-it-out"),
        ),
        Signature(
            needle="XidCriticalError",
            pattern=r"XidCriticalError: Xid=(?P<xid>\d+) on Device=(?P<device>[\w-]+)",
            says="the device plugin took GPU {device} out of service after Xid {xid}",
            says_zh="出现 Xid {xid} 后，device plugin 停用了 GPU {device}",
            remedies=("take-it-out", "check-memory"),
        ),
        Signature(
            needle="GPU has fallen off the bus",
            says="a GPU has fallen off the bus: the driver can no longer reach it over PCIe",
            says_zh="一块 GPU 从总线上掉线：驱动已无法通过 PCIe 访问它",
            remedies=_BUS,
        ),
        Signature(
            needle="fallen off the bus and is not responding",
            says="a GPU has fallen off the bus: the driver can no longer reach it over PCIe",
            says_zh="一块 GPU 从总线上掉线：驱动已无法通过 PCIe 访问它",
            remedies=_BUS,
        ),
        Signature(
            needle="NV_ERR_RESET_REQUIRED",
            says="the driver says that a GPU has to be reset before it can be used again",
            says_zh="驱动表示一块 GPU 必须先重置才能再使用",
            remedies=("reset-gpu", "take-it-out", "check-memory"),
        ),
        Signature(
            needle="NV_ERR_GPU_IS_LOST",
            says="the driver has lost a GPU",
            says_zh="驱动丢失了一块 GPU",
            remedies=_BUS,
        ),
        Signature(
            needle="GPU is lost",
            pattern=r"GPU is lost\b(?:\. +Reboot)?",
            says="NVML has lost a GPU: it no longer answers",
            says_zh="NVML 丢失了一块 GPU：它不再响应",
            remedies=_BUS,
        ),
        Signature(
            needle="GPU requires reset",
            pattern=r"GPU requires reset|GPU requires reset \(ECC\)",
            says="a GPU has to be reset before it can be used again",
            says_zh="一块 GPU 必须先重置才能再使用",
            remedies=("reset-gpu", "check-memory", "take-it-out"),
        ),
        Signature(
            needle="Unable to determine the device handle for",
            pattern=(
                r"Unable to determine the device handle for [Gg][Pp][Uu] ?\d?:? ?(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+): (?P<error>[\w ]{3,40})"
            ),
            says="nvidia-smi cannot reach GPU {bus}: {error}",
            says_zh="nvidia-smi 无法访问 GPU {bus}：{error}",
            remedies=_BUS,
        ),
        Signature(
            needle="RmInitAdapter failed",
            pattern=r"GPU (?P<bus>[0-9A-Fa-f:.]+): RmInitAdapter failed",
            standing="likely",
            says="the driver could not initialise GPU {bus}",
            says_zh="驱动无法初始化 GPU {bus}",
            remedies=("power-cycle", "update-driver", "check-the-bus"),
        ),
        Signature(
            needle="uncorrectable ECC error encountered",
            says="a GPU met an uncorrectable memory (ECC) error",
            says_zh="一块 GPU 发生不可纠正的显存（ECC）错误",
            remedies=_ECC,
        ),
        Signature(
            needle="CUDA_ERROR_ECC_UNCORRECTABLE",
            pattern=r"CUDA_ERROR_ECC_UNCORRECTABLE\b(?!\s*=)",
            says="a GPU met an uncorrectable memory (ECC) error",
            says_zh="一块 GPU 发生不可纠正的显存（ECC）错误",
            remedies=_ECC,
        ),
        Signature(
            needle="ECC: uncorrected volatile errors on rank(s)",
            pattern=r"on rank\(s\) (?P<ranks>[\d, -]+) \(worst=(?P<count>\d+)\)",
            says="NCCL's own diagnosis found uncorrected memory (ECC) errors on the GPUs of ranks {ranks}",
            says_zh="NCCL 自身的诊断在 rank {ranks} 的 GPU 上发现未纠正的显存（ECC）错误",
            remedies=_ECC,
        ),
        Signature(
            needle="double-bit ECC",
            pattern=r"(?i)(?:detected|volatile|encountered).{0,60}double-bit ECC|double-bit ECC (?:error|memory error).{0,40}(?:detected|GPU)",
            says="a GPU met a double-bit memory (ECC) error",
            says_zh="一块 GPU 发生双比特显存（ECC）错误",
            remedies=_ECC,
        ),
        Signature(
            needle="Invalid access of peer GPU memory over nvlink",
            standing="likely",
            says=(
                "CUDA contained an error: a bad access to a peer's memory over NVLink, or a fault of the hardware (the kernel log's Xid tells which)"
            ),
            says_zh="CUDA 隔离了一个错误：经 NVLink 非法访问了对端显存，或者是硬件故障（看内核日志里的 Xid 可知是哪一种）",
            remedies=("ask-the-kernel-log", "check-nvlink", "reset-gpu"),
        ),
        Signature(
            needle="hardware stack error",
            pattern=r"(?:CUDA|Cuda).{0,160}\bhardware stack error",
            standing="likely",
            says="CUDA met an error in the hardware stack of a GPU",
            says_zh="CUDA 在一块 GPU 上遇到硬件栈错误",
            remedies=("ask-the-kernel-log", "reset-gpu", "take-it-out"),
        ),
        Signature(
            needle="GSP RM heartbeat timed out",
            says="the system processor (GSP) of a GPU stopped answering",
            says_zh="一块 GPU 的系统处理器（GSP）停止响应",
            remedies=_FIRMWARE,
        ),
        Signature(
            needle="Timeout waiting for RPC from GSP",
            says="the system processor (GSP) of a GPU did not answer the driver",
            says_zh="一块 GPU 的系统处理器（GSP）没有响应驱动",
            remedies=_FIRMWARE,
        ),
        Signature(
            needle="Timeout after ",
            pattern=r"Timeout after \d+s of waiting for RPC response from GPU(?P<index>\d+) GSP",
            says="the system processor (GSP) of GPU {index} did not answer the driver",
            says_zh="GPU {index} 的系统处理器（GSP）没有响应驱动",
            remedies=_FIRMWARE,
        ),
        Signature(
            needle="Row remapping failed",
            pattern=r"(?i)row remapping failed|row remap(?:ping)? failure",
            says="a GPU could not replace a faulty row of its memory",
            says_zh="一块 GPU 无法替换显存中的故障行",
            remedies=("take-it-out", "check-memory"),
        ),
        Signature(
            needle="_kgspLogRpcTimeout",
            pattern=r"GPU(?P<index>\d+) _kgspLogRpcTimeout: \*+ GSP Timeout",
            says="the system processor (GSP) of GPU {index} did not answer the driver",
            says_zh="GPU {index} 的系统处理器（GSP）没有响应驱动",
            remedies=(
                "reset-gpu",
                "power-cycle",
                "update-driver",
            ),
        ),
        Signature(
            needle="_kgspIsHeartbeatTimedOut",
            pattern=r"GPU(?P<index>\d+) _kgspIsHeartbeatTimedOut: Heartbeat timed out",
            says="the system processor (GSP) of GPU {index} stopped answering",
            says_zh="GPU {index} 的系统处理器（GSP）停止响应",
            remedies=(
                "reset-gpu",
                "power-cycle",
                "update-driver",
            ),
        ),
        Signature(
            needle="DCGM_FR_",
            pattern=r"DCGM_FR_(?P<code>UNCONTAINED_ERROR|VOLATILE_DBE_DETECTED|ROW_REMAP_FAILURE|FAULTY_MEMORY)\b(?!\s*=)",
            says="DCGM's watch reports a fault of a GPU: {code}",
            says_zh="DCGM 监控报告一块 GPU 有故障：{code}",
            remedies=(
                "reset-gpu",
                "check-memory",
                "take-it-out",
            ),
        ),
        Signature(
            needle="had an uncontained error",
            pattern=r"GPU ?(?P<index>\d*) had an uncontained error",
            says="DCGM's watch reports an uncorrectable memory error that was not contained",
            says_zh="DCGM 监控报告不可纠正的显存错误，未能隔离",
            remedies=(
                "reset-gpu",
                "check-memory",
                "take-it-out",
            ),
        ),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="take-it-out",
            says=(
                "Take the host or the GPU out of the job and run on: drain it in the scheduler, or leave the card out with CUDA_VISIBLE_DEVICES. "
                "Replace a card whose fault comes back after a reset."
            ),
            says_zh=(
                "把这台主机或这块 GPU 移出任务后继续运行：在调度器里 drain 该节点，或用 CUDA_VISIBLE_DEVICES 跳过该卡。重置后故障仍复现的卡应当更换。"
            ),
            command='scontrol update nodename="$(hostname -s)" state=drain reason="GPU fault" || kubectl cordon "$(hostname)"',
        ),
        Remedy(
            id="reset-gpu",
            says="End every process that uses the GPU and reset it; on machines with NVSwitch all GPUs go together, or reboot.",
            says_zh="结束所有使用该 GPU 的进程后重置它；带 NVSwitch 的机器需要所有 GPU 一起重置，或直接重启。",
            command="sudo nvidia-smi --gpu-reset",
            verify=(
                "nvidia-smi --query-gpu=index,pci.bus_id,ecc.errors.uncorrected.volatile.total --format=csv; nvidia-smi -q | grep -i 'recovery "
                "action'"
            ),
        ),
        Remedy(
            id="check-memory",
            says=(
                "Read the error counters and pending replacements of rows or pages; a pending one takes effect at the next reset, a failed one "
                "means another card."
            ),
            says_zh="查看错误计数和待替换的行或页：pending 表示下次重置后生效，failure 表示需要换卡。",
            command="nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
        ),
        Remedy(
            id="power-cycle",
            says=(
                "Switch the host off and on (a warm reboot often does not bring the card back), then reseat it and check its power where the "
                "fault returns."
            ),
            says_zh="给主机断电再上电（热重启往往不能让该卡恢复）；若故障复现，重新插拔该卡并检查供电。",
            verify="nvidia-smi -L; lspci -d 10de: | grep -E 'rev ff|3D|VGA'",
        ),
        Remedy(
            id="check-the-bus",
            says="Look for PCIe errors, power and temperature of the moment before it.",
            says_zh="查看故障前一刻的 PCIe 错误、供电与温度。",
            command="dmesg -T | grep -E 'AER|pcieport|Xid|NVRM'; nvidia-smi -q -d PCIE,TEMPERATURE,POWER",
        ),
        Remedy(
            id="update-driver",
            says=(
                "Update the driver, which brings the firmware of the GSP; a driver whose GSP hangs can run without it where the proprietary "
                "module is used (NVreg_EnableGpuFirmware=0)."
            ),
            says_zh="升级驱动（其中包含 GSP 固件）；如果使用闭源内核模块且 GSP 反复卡死，可以关闭它（NVreg_EnableGpuFirmware=0）。",
            command="echo 'options nvidia NVreg_EnableGpuFirmware=0' | sudo tee /etc/modprobe.d/nvidia-gsp.conf",
            verify="nvidia-smi -q | grep 'GSP Firmware Version'",
        ),
        Remedy(
            id="check-nvlink",
            says="See which links are down or count errors, on this GPU and at the other end of the link.",
            says_zh="查看哪些 NVLink 断开或有错误计数，本端和对端都要看。",
            command="nvidia-smi nvlink --status; nvidia-smi nvlink --errorcounters; systemctl status nvidia-fabricmanager",
        ),
        Remedy(
            id="ask-the-kernel-log",
            says="Look for the Xid of the same moment: 13 and 31 are the application, the others the GPU.",
            says_zh="查看同一时刻内核日志里的 Xid：13 和 31 是程序问题，其余多为 GPU 问题。",
            command="dmesg -T | grep -E 'NVRM: Xid|SXid'",
        ),
    ),
    leads_to=(
        "rank-exception",
        "illegal-memory-access",
        "nvlink-nvswitch-fabric",
        "p2p-broken",
        "gpu-busy-exclusive",
        "device-mapping",
        "backend-unavailable",
        "driver-reboot-needed",
        "ib-transport-retry",
        "process-stuck",
        "premature-exit",
    ),
    mistaken_for={
        "illegal-memory-access": "Xid 13 and 31 are faults of a kernel of the application, 43 and 45 only clean up after another error",
        ("nvlink-nvswitch-fabric"): (
            "Xid 74, 136, 144 to 150 and SXids tell of NVLink or NVSwitch; with Xid 79 or 48 on the same GPU they follow from that fault"
        ),
        "driver-reboot-needed": "a driver whose library was upgraded under it says so (driver/library version mismatch), for all GPUs at once",
    },
    sources=(
        "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
        "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html",
        "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html",
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
    ),
    hits=(
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=4720, name=python3, Ch 00000001 caused by previous Xid 79",
        "NVRM: Xid (PCI:0000:3d:00): 121, pid='<unknown>', name=<unknown>, C2C Link Corrected",
        "[884123.41] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "Nov  3 10:00:01 node7 kernel: NVRM: Xid (PCI:0000:3d:00): 94, pid=4720, name=python3, Ch 00000008",
        (
            "node7 kernel: [ 1843.30] NVRM: Xid (0000:05:00): 48, An uncorrectable double bit error (DBE) has been detected on GPU in the "
            "framebuffer at partition 4, subpartition 0."
        ),
        (
            "NVRM: Xid (PCI:0000:3d:00): 119, pid=4720, name=python3, Timeout after 6s of waiting for RPC response from GPU3 GSP! Expected "
            "function 76 (GSP_RM_CONTROL)."
        ),
        "NVRM: Xid (PCI:0000:1b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.",
        "NVRM: Xid (PCI:0000:1b:00): 92, pid='<unknown>', name=<unknown>, High single-bit ECC error rate",
        (
            "Xid 95 detected 3 times on GPU 0000:1b:00 on host node7. The NVIDIA Xid catalog recommends resetting the affected GPU. Follow the "
            "documented GPU-reset capabilities"
        ),
        "nvidia-device-plugin: XidCriticalError: Xid=48 on Device=GPU-1f2e3d4c-0000-1111-2222-333344445555, the device will go unhealthy.",
        "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
        (
            "[ 1843.30] NVRM: The NVIDIA GPU 0000:1b:00.0\n               NVRM: (PCI ID: 10de:2330) installed in this system has\n               "
            "NVRM: fallen off the bus and is not responding to commands."
        ),
        (
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ "
            "kernel_channel.c:2874"
        ),
        "NVRM: _kgspProcessRpcEvent: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)",
        "Unable to determine the device handle for gpu 0000:1B:00.0: GPU is lost.  Reboot the system to recover this GPU",
        "pynvml.nvml.NVMLError_ResetRequired: GPU requires reset",
        "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
        "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x24:0x65:1423)",
        (
            "[rank12]:[E1103 10:00:01.113 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 12] Process group watchdog thread terminated with "
            "exception: CUDA error: uncorrectable ECC error encountered"
        ),
        "RuntimeError: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable memory error",
        "ECC: uncorrected volatile errors on rank(s) 3, 11 (worst=2) across 16 ranks in comm 0x6b1d00ff",
        "DCGM: Detected 1 volatile double-bit ECC error(s) in GPU 3",
        "torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        "RuntimeError: CUDA error: hardware stack error",
        "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out for GPU 3",
        "NVRM: Timeout waiting for RPC from GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4).",
        "health check: GPU 3: Row remapping failed",
        ("[  812.120441] NVRM: GPU2 _kgspLogRpcTimeout: ******************************** GSP Timeout **********************************"),
        ("[  741.002113] NVRM: GPU2 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 7400211 heartbeat 7394000 diff 6211 timeout 5200"),
        ('{"level":"INFO","msg":"health event","checkName":"GpuMemWatch","errorCode":["DCGM_FR_UNCONTAINED_ERROR"],"entityValue":"3"}'),
        ("GPU 3 had an uncontained error (XID 95) Drain the GPU and reset it or reboot the node."),
    ),
    near_misses=(
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 24007, Severity 1 Engine instance 12 Sub-engine instance 00",
        "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=4720, name=python3, Ch 00000001 caused by previous Xid 149",
        (
            "NVRM: Xid (PCI:0000:1b:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, "
            "0x0, 0x0)"
        ),
        "NVRM: Xid (PCI:0000:66:00): 145, RLW_REMAP Nonfatal XC1 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
        "NVRM: Xid (PCI:0000:d4:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x024501c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        "NVRM: Xid (PCI:0000:1b:00): 31, pid=4720, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_1 faulted",
        "NVRM: Xid (PCI:0000:1b:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): Out Of Range Address",
        "NVRM: Xid (PCI:0000:1b:00): 43, pid=4720, name=python3, Ch 00000008",
        "NVRM: Xid (PCI:0000:1b:00): 45, pid=4720, name=python3, Ch 00000001",
        "NVRM: Xid (PCI:0000:1b:00): 45, pid=4720, name=python3, Ch 00000001 caused by previous Xid 13",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "Failed to initialize NVML: Driver/library version mismatch",
        "ECC: no uncorrected volatile errors across 16 ranks in comm 0x6b1d00ff",
        "    ECC Mode: Current Enabled, Volatile Uncorrectable 0",
        "RuntimeError: CUDA error: system not yet initialized",
        "Xid/SXid: no events requiring immediate attention across 2 hosts",
        "Xid 13 detected 1 time on GPU 0000:1b:00 on host node7. Restart the affected application. For guidance, see the NVIDIA Xid documentation",
        "[ 12.01] nvidia-nvswitch0: using MSI",
        ("NVRM: GPU2 _kgspIsHeartbeatTimedOut: heartbeat is current"),
        ("#define DCGM_FR_UNCONTAINED_ERROR = 94"),
        ("GPU 3 had no uncontained errors"),
    ),
    explain={
        "en": (
            "The GPU, its memory, its link or its firmware failed, and the driver wrote it down. Whatever the ranks print after that moment "
            "(illegal memory access, launch failure, NCCL timeouts) is a consequence. The Xid says what to do: memory errors (48, 63, 64, 94, 95, "
            "140) want a reset and a look at the row remapper, 79 a power cycle, 119 and 120 a reset and a newer driver, 74 and 144 to 150 a look "
            "at NVLink on both ends. Xid 13 and 31 are faults of the program, 43 and 45 only clean up. Leave the card out and run on; if the same "
            "card fails again after a reset, replace it."
        ),
        "zh": (
            "GPU 本体、显存、链路或固件出了故障，驱动已经记录下来。此后各进程打印的非法访存、启动失败、NCCL 超时都只是后果。Xid 编号说明该怎么做："
            "显存错误（48、63、64、94、95、140）需要重置并查看 row remapper；79 需要断电重启；119、120 需要重置并升级驱动；74 和 144 到 150 要检查"
            " NVLink 的两端。Xid 13 和 31 是程序问题，43 和 45 只是清理动作。先把这块卡移出任务继续运行；如果重置后同一块卡再次出错，就更换它。"
        ),
    },
)
