"""Slurm: a batch script with one task on each host, which starts torchrun there."""

from __future__ import annotations

from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.exported import Form

FORM = Form(
    name="slurm",
    file="train.sbatch",
    title=Text("a batch script for sbatch, one torchrun on each host", "sbatch 批处理脚本，每台主机一个 torchrun"),
    launcher="torchrun",
    write=starting.by_torchrun("slurm"),
    reads=("address", "port", "name"),
    alone=("address", "port", "name"),
)
