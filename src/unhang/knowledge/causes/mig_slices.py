"""mig-slices: slices of a partitioned GPU (MIG) stand where NCCL wants whole GPUs."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView


def on_host(host: HostView) -> Findings:

    seen = host.gpu
    sliced = [g for g in seen.gpus if g.mig]
    empty = [g for g in sliced if g.mig_instances == 0]
    cut = [g for g in sliced if g not in empty]
    if empty:
        yield Found(
            "without-slices",
            severity="error" if len(empty) == len(seen.gpus) else "warning",
            indexes=[g.index for g in empty],
            empty=empty,
            seen=seen,
            each=empty[:3],
        )
    if cut:
        yield Found(
            "sliced",
            severity="warning" if len(seen.gpus) > 1 else "note",
            indexes=[g.index for g in cut],
            cut=cut,
            seen=seen,
            each=cut[:3],
        )
