"""mig-slices: slices of a partitioned GPU (MIG) stand where NCCL wants whole GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Command, cause, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.nvml import Gpu
    from unhang.facts.snapshot import Snapshot


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu

    seen = host.get(gpu.SUBJECT)
    sliced = [g for g in seen.gpus if g.mig] if seen is not None else []
    empty = [g for g in sliced if g.mig_instances == 0]
    cut = [g for g in sliced if g not in empty]
    if seen is not None and empty:
        yield CAUSE.host_finding(
            area="gpu",
            severity="error" if len(empty) == len(seen.gpus) else "warning",
            says=Text("{gpus} of {n}: in MIG mode without a slice", "{gpus}（共 {n} 块）：处于 MIG 模式，却没有切片").fill(
                gpus=gpu.named(g.index for g in empty), n=len(seen.gpus)
            ),
            leads_to=Text(
                "CUDA shows nothing of such a GPU: a rank that is meant for it has none", "CUDA 看不到这样的 GPU：要用它的 rank 没有 GPU 可用"
            ),
            evidence=tuple(Evidence(source="NVML", text=f"{gpu.label(g)}: MIG enabled, no instances") for g in empty[:3]),
            remedies=("whole-gpus",),
            commands={"whole-gpus": _off(empty)},
        )
    if seen is not None and cut:
        yield CAUSE.host_finding(
            area="gpu",
            severity="warning" if len(seen.gpus) > 1 else "note",
            says=Text("{gpus} of {n}: in MIG mode", "{gpus}（共 {n} 块）：处于 MIG 模式").fill(
                gpus=gpu.named(g.index for g in cut), n=len(seen.gpus)
            ),
            leads_to=Text(
                "a process sees one slice only, and NCCL before 2.32 takes two slices of one GPU for the same GPU",
                "一个进程只看得到一个切片，2.32 之前的 NCCL 会把同一 GPU 的两个切片当作同一个 GPU",
            ),
            evidence=tuple(Evidence(source="NVML", text=f"{gpu.label(g)}: MIG enabled") for g in cut[:3]),
            remedies=("whole-gpus", "one-slice-per-process", "newer-nccl"),
            commands={"whole-gpus": _off(cut)},
        )


def _off(gpus: Sequence[Gpu]) -> Command | None:
    return command("sudo nvidia-smi -i {gpus:number,} -mig 0", gpus=[g.index for g in gpus])


CAUSE = cause("mig-slices", on_host=_on_host)
