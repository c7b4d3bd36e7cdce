"""arch-not-in-build: a library holds no machine code for this GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.text import Text
from unhang.model import Evidence, Finding, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot


def _in_logs(view: LogView) -> Finding | None:
    """The error names no GPU; torch's warning at the first use of it does."""
    hits = view.hits_of(CAUSE.id)
    named = next((h for h in hits if "gpu" in h.groups), None)
    broken = any("no kernel image" in h.text or "NCCL WARN Cuda failure" in h.text for h in hits)
    if named is None or not broken:
        return CAUSE.of_hits(hits, view)
    gpu, arch = named.groups["gpu"].strip(), named.groups.get("arch")
    return CAUSE.of_hits(
        hits,
        view,
        standing="established",
        says=Text(
            "no kernel was built for {gpu}{arch}: this torch holds no code for it", "没有为 {gpu}{arch} 编译的 kernel：这个 torch 不含它的代码"
        ).fill(gpu=gpu, arch=Text(" ({arch})", "（{arch}）").fill(arch=arch) if arch else ""),
        remedies=("torch-for-this-gpu",),
    )


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import libraries

    seen, gpus = host.get(libraries.SUBJECT), libraries.usable_gpus(host)
    if seen is None or not gpus:
        return
    torch = seen.torch
    version = Evidence(source=f"{torch.path}/version.py", text=f"{torch.version}, cuda = {torch.cuda}")
    if torch.cuda is None:
        kind = (
            Text(f"was built for ROCm {torch.hip}", f"是 ROCm {torch.hip} 版") if torch.hip else Text("is a build without CUDA", "是不含 CUDA 的版本")
        )
        yield CAUSE.host_finding(
            area="libraries",
            severity="warning",
            says=Text("torch {version} {kind}, and this machine has {n} {gpu}", "torch {version} {kind}，而本机有 {n} 块 {gpu}").fill(
                version=torch.version, kind=kind, n=len(gpus), gpu=gpus[0].name or "NVIDIA GPU"
            ),
            leads_to=Text(
                "torch.cuda.is_available() is False: the training goes over CPUs, or NCCL is not there",
                "torch.cuda.is_available() 为 False：训练走 CPU，或没有 NCCL",
            ),
            evidence=(version,),
            remedies=("torch-for-this-gpu",),
        )
    lacking = {
        c: g
        for g in gpus
        if (c := g.compute_capability) and re.fullmatch(r"[0-9]+\.[0-9]+", c) and torch.architectures and not _runs(c, torch.architectures)
    }
    for capability, card in lacking.items():
        yield CAUSE.host_finding(
            area="libraries",
            severity="error",
            says=Text(
                "torch {version} holds no code for {gpu} (compute capability {capability})",
                "torch {version} 不含 {gpu} 的代码（compute capability {capability}）",
            ).fill(version=torch.version, gpu=card.name or Text("this GPU", "这种 GPU"), capability=capability),
            leads_to=Text(
                "the first operation on the GPU fails: no kernel image is available for execution on the device",
                "GPU 上的第一个操作就失败：no kernel image is available for execution on the device",
            ),
            evidence=(version, Evidence(source=f"{torch.path}/lib/libtorch_python.so", text=" ".join(torch.architectures or ()))),
            remedies=("torch-for-this-gpu",),
        )


def _runs(capability: str, architectures: Iterable[str]) -> bool:
    """Machine code runs on its own major version from its minor one on, PTX on all that is newer; "a" and "f" variants on their own kind only."""
    major, minor = (int(n) for n in capability.split("."))
    for kind, digits, variant in (m.groups() for a in architectures if (m := re.fullmatch(r"(sm|compute)_(\d+)([af]?)", a))):
        built = (int(digits[:-1] or 0), int(digits[-1]))
        if variant == "a":
            runs = built == (major, minor)
        elif kind == "compute" and not variant:
            runs = built <= (major, minor)
        else:
            runs = built[0] == major and built[1] <= minor
        if runs:
            return True
    return False


CAUSE = cause("arch-not-in-build", in_logs=_in_logs, on_host=_on_host)
