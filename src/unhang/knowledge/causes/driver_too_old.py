"""driver-too-old: the NVIDIA driver of the host is older than the CUDA that the program was built with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, Finding, HostFinding
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

# The oldest drivers for any minor release of a CUDA major version, from the release notes of the toolkit.
_MINIMUM = {10: "440.33", 11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# Forward compatibility is refused on these.
_CONSUMER = lazily(r"GeForce|TITAN", re.IGNORECASE)


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    found = next((h for h in hits if "found" in h.groups), None)
    if found is None:
        return CAUSE.of_hits(hits, view)
    # "11040" is CUDA 11.4.
    number = int(found.groups["found"])
    serves = f"{number // 1000}.{number % 1000 // 10}"
    return CAUSE.of_hits(
        hits,
        view,
        says=Text(
            f"the NVIDIA driver of this host serves CUDA up to {serves}, and this torch was built for a newer one",
            f"本机的 NVIDIA 驱动最高支持 CUDA {serves}，而这个 torch 面向更新的 CUDA 编译",
        ),
        remedies=("upgrade-the-driver", "older-cuda-build"),
    )


def oldest_driver(cuda: str) -> str | None:
    """The oldest driver that serves a release of CUDA ("12.8"); None where that is not known."""
    from unhang.facts.libraries import number

    return _MINIMUM.get((number(cuda) or (0,))[0])


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu, libraries

    seen, gpus, usable = host.get(libraries.SUBJECT), host.get(gpu.SUBJECT), libraries.usable_gpus(host)
    if seen is None or gpus is None or not usable or seen.torch.cuda is None:
        return
    driver = gpus.driver or gpus.nvml_driver
    wants = libraries.number(seen.torch.cuda)
    minimum = _MINIMUM.get(wants[0] if wants else 0)
    # Jetson's drivers (35, 540 on Tegra) are counted otherwise.
    if driver is None or minimum is None or libraries.number(driver)[:1] < (100,):
        return
    library = seen.copy("cuda")
    forward = library is not None and "/compat" in library.path and libraries.number(library.version or "") > libraries.number(driver)
    compat = library if forward else None
    if compat is not None and (card := next((g.name for g in usable if g.name and _CONSUMER.search(g.name)), None)):
        yield CAUSE.host_finding(
            area="libraries",
            severity="error",
            says=Text(
                f"the driver is {driver}, and libcuda {compat.version} of a compat package ({compat.path}) comes before its own, on a {card}",
                f"驱动是 {driver}，compat 包的 libcuda {compat.version}（{compat.path}）却排在驱动自带的之前，而 GPU 是 {card}",
            ),
            leads_to=Text(
                "CUDA does not start: error 804, forward compatibility was attempted on non supported HW",
                "CUDA 无法启动：错误 804，forward compatibility was attempted on non supported HW",
            ),
            evidence=(Evidence(source=compat.path, text=compat.version or ""), Evidence(source="/proc/driver/nvidia/version", text=driver)),
            remedies=("without-compat", "upgrade-the-driver"),
        )
    serves = libraries.number(gpus.cuda) if gpus.cuda else ()
    old = serves[0] < wants[0] if serves else libraries.number(driver) < libraries.number(minimum)
    if old and compat is None:
        upto = Text(f", which serves CUDA up to {gpus.cuda}", f"，最高支持 CUDA {gpus.cuda}") if gpus.cuda else NOTHING
        yield CAUSE.host_finding(
            area="libraries",
            severity="error",
            says=Text(
                "the NVIDIA driver is {driver}{upto}; torch {version} was built for CUDA {cuda}, which needs {minimum} or newer",
                "NVIDIA 驱动是 {driver}{upto}；torch {version} 面向 CUDA {cuda} 编译，需要 {minimum} 或更新的驱动",
            ).fill(driver=driver, upto=upto, version=seen.torch.version, cuda=seen.torch.cuda, minimum=minimum),
            leads_to=Text(
                "torch finds no usable GPU: The NVIDIA driver on your system is too old",
                "torch 找不到可用的 GPU：The NVIDIA driver on your system is too old",
            ),
            evidence=(
                Evidence(source="/proc/driver/nvidia/version", text=driver),
                Evidence(source=f"{seen.torch.path}/version.py", text=f"cuda = {seen.torch.cuda}"),
            ),
            remedies=("upgrade-the-driver", "older-cuda-build"),
        )


CAUSE = cause("driver-too-old", in_logs=_in_logs, on_host=_on_host)
