"""driver-reboot-needed: the driver was upgraded under a running kernel module."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView
from unhang.model import Evidence


def on_host(host: HostView) -> Findings:
    seen = host.gpu
    versions = {name: sorted({lib.version for lib in seen.libraries if lib.name == name}) for name in ("libnvidia-ml", "libcuda")}
    files = tuple(Evidence(source=lib.path, text=lib.version) for lib in seen.libraries[:4])
    module = Evidence(source="/proc/driver/nvidia/version", text=seen.driver or "")
    error = seen.nvml_error or ""
    differ = seen.driver is not None and bool(versions["libnvidia-ml"]) and seen.driver not in versions["libnvidia-ml"]
    if "version mismatch" in error.lower() or (seen.nvml_error is not None and differ):
        yield Found(
            "other-module",
            evidence=(module, *files, *((Evidence(source="NVML", text=error),) if error else ())),
            module=seen.driver or "another",
            libraries=versions["libnvidia-ml"],
        )
    elif seen.driver is not None and versions["libcuda"] and seen.driver not in versions["libcuda"]:
        yield Found("other-libcuda", evidence=(module, *files), versions=versions["libcuda"], seen=seen)
    elif seen.driver is None and seen.libraries and seen.kernel_drivers and not any(seen.kernel_drivers.values()):
        yield Found("no-module", version=seen.libraries[0].version, each=seen.libraries[:4])
    for e in host.events if seen.nvml_error is None else ():
        if e.kind == "driver-mismatch" and e.last_age_s is not None and e.last_age_s < 86400:
            yield Found("other-version", event=e)
