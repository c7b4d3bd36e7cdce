"""gpu-newer-than-nccl: this NCCL release was made before the GPU."""

from __future__ import annotations

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.knowledge.words import msg, same
from unhang.patterns import lazily

CAUSE = cause("gpu-newer-than-nccl")

_KERNELS = lazily(r"NCCL WARN Cuda failure (?:\d+ )?'(?:named symbol not found|invalid device function|no kernel image)")
# The first release for GPUs of a compute capability, from NVIDIA's release notes; the largest that a GPU reaches counts.
_FIRST = {(8, 0): (2, 8), (9, 0): (2, 15), (10, 0): (2, 25, 1), (12, 0): (2, 26, 2)}


def in_logs(view: LogView) -> Answer:
    """A new GPU beside an old NCCL is no failure by itself: something has to have failed, and torch itself has to know the GPU."""
    own = view.hits_of(CAUSE.id)
    builds = view.hits_of("arch-not-in-build")
    if any("gpu" in h.groups for h in builds):
        return None
    failed = next((h for h in builds if _KERNELS.search(h.text)), None)
    capable = next((h for h in own if "capability" in h.groups), None)
    if failed is not None and capable is not None:
        release = next(map(same, view.nccl.versions), msg("this release"))
        return Found(
            "no-kernels",
            ranks=builds,
            evidence=(failed, capable),
            hosts=builds,
            release=release,
            capable=capable,
        )
    broken = view.tracebacks or view.timeouts or any(e.code for e in view.exits) or any(c != CAUSE.id and hits for c, hits in view.hits.items())
    return CAUSE.of_hits([h for h in own if "capability" not in h.groups and (broken or "old" not in h.groups)], view)


def on_host(host: HostView) -> Findings:
    from unhang.facts import libraries

    seen = host.libraries
    nccl = seen.copy("nccl")
    release = (nccl.version if nccl is not None else None) or seen.torch.nccl_inside
    if release is None:
        return
    gpus = libraries.usable_gpus(host.snapshot)
    told: set[str] = set()
    for card in gpus:
        capability = card.compute_capability
        first = max((f for c, f in _FIRST.items() if capability and c <= libraries.number(capability)), default=())
        if capability is None or capability in told or libraries.number(release) >= first:
            continue
        told.add(capability)
        yield Found(
            "too-old",
            severity="error" if len(gpus) > 1 else "warning",
            release=release,
            gpu=card.name or "this-gpu",
            first=".".join(map(str, first)),
            path=nccl.path if nccl is not None else seen.torch.path,
        )
