"""nvlink-nvswitch-fabric: NVLink, NVSwitch or the services that manage them do not work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.gpu import Gpus
    from unhang.facts.snapshot import Snapshot

_XIDS = frozenset({74, 136, 137, *range(144, 151), 155})


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu, kernel_log

    seen = host.get(gpu.SUBJECT)
    if seen is not None:
        yield from _manager(seen)
        yield from _links(seen)
    log = host.get(kernel_log.SUBJECT)
    told = [e for e in (log.events if log else ()) if (e.kind == "xid" and e.code in _XIDS) or (e.kind == "sxid" and e.severity == "Fatal")]
    for device in dict.fromkeys(e.device for e in told):
        events = sorted((e for e in told if e.device == device), key=lambda e: e.last_age_s or 0.0)
        newest = events[0]
        what = (
            Text(f"NVSwitch {device}: fatal SXid", f"NVSwitch {device}：致命 SXid")
            if newest.kind == "sxid"
            else Text(f"GPU {device}: the NVLink error Xid", f"GPU {device}：NVLink 错误 Xid")
        )
        yield CAUSE.host_finding(
            area="kernel",
            severity="warning" if newest.last_age_s is None or newest.last_age_s < 86400 else "note",
            says=what + Text(f" {newest.code} ({kernel_log.times(newest)})", f" {newest.code}（{kernel_log.times_zh(newest)}）"),
            leads_to=Text(
                "traffic over NVLink ends with an error, or hangs; the fault may sit at either end of the link",
                "NVLink 上的流量以错误结束或挂起；故障可能在链路的任意一端",
            ),
            evidence=tuple(Evidence(source="kernel log", text=e.text) for e in events[:3]),
            remedies=("check-links", "reset-in-order", "take-it-out"),
        )


def _manager(seen: Gpus) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    # Slices of a GPU need no NVLink.
    whole = [g for g in seen.gpus if not g.mig]
    unready = [g for g in whole if g.fabric in ("not-started", "in-progress") or g.fabric_error]
    manager = seen.fabric_manager
    if unready:
        states = sorted({g.fabric_error or g.fabric or "" for g in unready})
        stopped = (
            Text("; the fabric manager does not run", "；fabric manager 没有运行") if manager is not None and manager.running is False else NOTHING
        )
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text(
                "{gpus}: not registered with the NVLink fabric ({states}){stopped}", "{gpus}：没有注册到 NVLink fabric（{states}）{stopped}"
            ).fill(gpus=gpu.named(g.index for g in unready), states=", ".join(states), stopped=stopped),
            leads_to=Text("CUDA does not start: error 802, system not yet initialized", "CUDA 无法启动：错误 802，system not yet initialized"),
            evidence=tuple(Evidence(source="NVML", text=f"{gpu.label(g)}: fabric state {g.fabric_error or g.fabric}") for g in unready[:3]),
            remedies=("start-the-manager", "reset-in-order", "match-versions"),
        )
    elif seen.nvswitches and manager is not None and manager.running is False and all(g.fabric is None for g in seen.gpus):
        # GPUs before Hopper do not tell of their registration.
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text(
                f"there are {len(seen.nvswitches)} NVSwitches, and no fabric manager runs",
                f"有 {len(seen.nvswitches)} 个 NVSwitch，却没有运行 fabric manager",
            ),
            leads_to=Text("CUDA does not start: error 802, system not yet initialized", "CUDA 无法启动：错误 802，system not yet initialized"),
            evidence=(Evidence(source="/proc", text="no process nv-fabricmanager"),),
            remedies=("start-the-manager", "match-versions"),
        )
    driver = seen.driver or seen.nvml_driver
    if manager is not None and manager.version and driver and manager.version != driver:
        ready = any(g.fabric == "completed" for g in seen.gpus)
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning" if ready else "error",
            says=Text(
                f"the fabric manager is version {manager.version}, the driver {driver}", f"fabric manager 的版本是 {manager.version}，驱动是 {driver}"
            ),
            leads_to=Text("it refuses to start with any other driver than its own", "驱动版本与它不同时，它拒绝启动")
            + (Text(", so the next boot leaves CUDA without NVLink", "，因此下次开机后 CUDA 没有 NVLink 可用") if ready else NOTHING),
            evidence=(Evidence(source="nv-fabricmanager --version", text=manager.version),),
            remedies=("match-versions", "start-the-manager"),
        )


def _links(seen: Gpus) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    degraded = [g for g in seen.gpus if g.fabric_degraded]
    switched = [g for g in seen.gpus if any(link.remote_kind == "switch" for link in g.nvlinks)]
    for model in dict.fromkeys(g.name for g in switched):
        alike = [g for g in seen.gpus if g.name == model and g.error is None and not g.mig and g.nvlinks]
        up = {g.index: sum(link.active for link in g.nvlinks) for g in alike}
        fewer = [g for g in alike if up[g.index] < max(up.values())]
        degraded = [g for g in degraded if g not in fewer]
        for g in fewer:
            down = ", ".join(str(link.link) for link in g.nvlinks if not link.active)
            yield CAUSE.host_finding(
                area="gpu",
                severity="warning",
                says=Text(
                    f"{gpu.label(g)}: {up[g.index]} NVLinks are up, {max(up.values())} on its neighbours",
                    f"{gpu.label(g)}：{up[g.index]} 条 NVLink 可用，其他同型号 GPU 有 {max(up.values())} 条",
                ),
                leads_to=Text(
                    "collectives run at the pace of this GPU, or NCCL finds no NVLink path for it",
                    "集合通信的速度取决于这个 GPU，或 NCCL 为它找不到 NVLink 路径",
                ),
                evidence=(Evidence(source="NVML", text=f"{gpu.label(g)}: links {down or 'none'} inactive"),),
                remedies=("check-links", "reset-in-order", "take-it-out"),
            )
    if degraded:
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning",
            says=Text("{gpus}: the NVLink fabric runs at a reduced bandwidth", "{gpus}：NVLink fabric 以降低的带宽运行").fill(
                gpus=gpu.named(g.index for g in degraded)
            ),
            leads_to=Text("collectives run at the pace of the slowest link", "集合通信的速度取决于最慢的链路"),
            evidence=(Evidence(source="NVML", text="fabric health: degraded bandwidth"),),
            remedies=("check-links", "take-it-out"),
        )


CAUSE = cause("nvlink-nvswitch-fabric", on_host=_on_host)
