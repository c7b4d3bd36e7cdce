"""arch-not-in-build: a library holds no machine code for this GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView

CAUSE = cause("arch-not-in-build")


def in_logs(view: LogView) -> Answer:
    """The error names no GPU; torch's warning at the first use of it does."""
    hits = view.hits_of(CAUSE.id)
    named = next((h for h in hits if "gpu" in h.groups), None)
    broken = any("no kernel image" in h.text or "NCCL WARN Cuda failure" in h.text for h in hits)
    if named is None or not broken:
        return CAUSE.of_hits(hits, view)
    gpu, arch = named.groups["gpu"].strip(), named.groups.get("arch")
    return CAUSE.of_hits(hits, view, Found("no-kernel", gpu=gpu, arch=arch))


def on_host(host: HostView) -> Findings:
    from unhang.facts import libraries

    torch, gpus = host.libraries.torch, libraries.usable_gpus(host.snapshot)
    if gpus and torch.cuda is None:
        yield Found("wrong-build", torch=torch, n=len(gpus), gpu=gpus[0].name or "NVIDIA GPU")
    lacking = {
        c: g
        for g in gpus
        if (c := g.compute_capability) and re.fullmatch(r"[0-9]+\.[0-9]+", c) and torch.architectures and not _runs(c, torch.architectures)
    }
    for capability, card in lacking.items():
        yield Found(
            "no-code",
            torch=torch,
            gpu=card.name or "this-gpu",
            capability=capability,
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
