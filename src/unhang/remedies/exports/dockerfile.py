"""A Dockerfile: variables, and torchrun as what a container starts."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.exported import Form
from unhang.remedies.exports.layout import Layout
from unhang.remedies.exports.rendering import render


def write(layout: Layout, carried: Carried, through: bool) -> tuple[str, Mapping[str, str]]:
    command = (
        *starting.through_unhang(carried, through),
        "torchrun",
        f"--nnodes={layout.nodes}",
        f"--nproc-per-node={layout.processes}",
        *(("--standalone",) if layout.nodes == 1 else ()),
        *starting.options(carried),
        *starting.script(layout),
        *carried.arguments,
    )
    return render("dockerfile", layout=layout, carried=carried, env=starting.env(carried), command=command, start=through), {}


FORM = Form(
    name="dockerfile",
    file="Dockerfile",
    title=Text("a Dockerfile whose containers train", "启动训练的 Dockerfile"),
    launcher="torchrun",
    write=write,
    reads=("address", "port", "name", "image"),
    alone=("name", "image"),
)
