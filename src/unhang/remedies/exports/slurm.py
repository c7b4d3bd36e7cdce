"""Slurm: a batch script with one task on each host, which starts torchrun there."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.exported import Form
from unhang.remedies.exports.layout import Layout
from unhang.remedies.exports.rendering import render


def write(layout: Layout, carried: Carried, through: bool) -> tuple[str, Mapping[str, str]]:
    return render(
        "slurm",
        layout=layout,
        carried=carried,
        env=starting.env(carried),
        start=starting.through_unhang(carried, through),
        options=starting.options(carried),
        script=(*starting.script(layout), *carried.arguments),
    ), {}


FORM = Form(
    name="slurm",
    file="train.sbatch",
    title=Text("a batch script for sbatch, one torchrun on each host", "sbatch 批处理脚本，每台主机一个 torchrun"),
    launcher="torchrun",
    write=write,
)
