"""driver-reboot-needed: the driver was upgraded under a running kernel module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause
from unhang.knowledge.text import NOTHING, Text, joined, same
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu, kernel_log

    seen = host.get(gpu.SUBJECT)
    if seen is None:
        return
    versions = {name: sorted({lib.version for lib in seen.libraries if lib.name == name}) for name in ("libnvidia-ml", "libcuda")}
    files = tuple(Evidence(source=lib.path, text=lib.version) for lib in seen.libraries[:4])
    module = Evidence(source="/proc/driver/nvidia/version", text=seen.driver or "")
    error = seen.nvml_error or ""
    differ = seen.driver is not None and bool(versions["libnvidia-ml"]) and seen.driver not in versions["libnvidia-ml"]
    if "version mismatch" in error.lower() or (seen.nvml_error is not None and differ):
        libraries = joined(map(same, versions["libnvidia-ml"]), Text(" and ", " 和 "))
        disk = Text(", its libraries are {versions}", "，而驱动库的版本是 {versions}").fill(versions=libraries) if libraries else NOTHING
        yield CAUSE.host_finding(
            area="gpu",
            severity="error",
            says=Text("the kernel runs the NVIDIA module {version}{disk}", "内核正在运行的 NVIDIA 模块是 {version}{disk}").fill(
                version=seen.driver or Text("of another version", "另一版本"), disk=disk
            ),
            leads_to=Text("nothing new can open a GPU; what runs already goes on", "新进程都无法打开 GPU；已在运行的不受影响"),
            evidence=(module, *files, *((Evidence(source="NVML", text=error),) if error else ())),
            remedies=("reboot", "hold-the-driver"),
        )
    elif seen.driver is not None and versions["libcuda"] and seen.driver not in versions["libcuda"]:
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning",
            says=Text("libcuda is {versions}, the driver {driver}", "libcuda 的版本是 {versions}，驱动是 {driver}").fill(
                versions=joined(map(same, versions["libcuda"]), Text(" and ", " 和 ")), driver=seen.driver
            ),
            leads_to=Text(
                "CUDA does not start: error 803, unsupported display driver / cuda driver combination",
                "CUDA 无法启动：错误 803，unsupported display driver / cuda driver combination",
            ),
            evidence=(module, *files),
            remedies=("which-libcuda", "reboot"),
        )
    elif seen.driver is None and seen.libraries and seen.kernel_drivers and not any(seen.kernel_drivers.values()):
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning",
            says=Text(
                f"the driver's libraries ({seen.libraries[0].version}) are installed, and its kernel module is not loaded",
                f"驱动的库（{seen.libraries[0].version}）已安装，内核模块却没有加载",
            ),
            leads_to=Text("CUDA finds no GPU", "CUDA 找不到 GPU"),
            evidence=files,
            remedies=("rebuild-the-module", "reboot"),
        )
    log = host.get(kernel_log.SUBJECT)
    for e in log.events if log is not None and seen.nvml_error is None else ():
        if e.kind == "driver-mismatch" and e.last_age_s is not None and e.last_age_s < 86400:
            yield CAUSE.host_finding(
                area="kernel",
                severity="warning",
                says=Text(
                    f"a program came with another version of the driver's libraries ({kernel_log.ago(e.last_age_s)}, {e.count} times)",
                    f"有程序带着另一版本的驱动库（{kernel_log.ago_zh(e.last_age_s)}，共 {e.count} 次）",
                ),
                leads_to=Text(
                    "that program finds no GPU; a container or environment brings libraries of its own", "那个程序找不到 GPU；容器或环境会带自己的库"
                ),
                evidence=(Evidence(source="kernel log", text=e.text),),
                remedies=("which-libcuda",),
            )


CAUSE = cause("driver-reboot-needed", on_host=_on_host)
