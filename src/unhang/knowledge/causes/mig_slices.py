"""mig-slices: slices of a partitioned GPU (MIG) stand where NCCL wants whole GPUs."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView


def on_host(host: HostView) -> Findings:

    seen = host.gpu
    sliced = [g for g in seen.gpus if g.mig]
    empty = [g for g in sliced if g.mig_instances == 0]
    cut = [g for g in sliced if g not in empty]
    if empty:
        none = len(empty) == len(seen.gpus)
        yield Found("without-slices", none=none, indexes=[g.index for g in empty], empty=empty, seen=seen, each=empty[:3])
    if cut:
        yield Found("sliced", indexes=[g.index for g in cut], cut=cut, seen=seen, each=cut[:3])
