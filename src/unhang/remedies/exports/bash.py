"""A start that asks: Gloo, NCCL without shared memory, or one process; and a diagnoser. It needs no terminal, and begins with the first."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.errors import UnhangError
from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.exported import Form
from unhang.remedies.exports.layout import Layout
from unhang.remedies.exports.rendering import render


def write(layout: Layout, carried: Carried, through: bool) -> tuple[str, Mapping[str, str]]:
    if layout.nodes > 1:
        raise UnhangError("the menu is for one host", hint="unhang export torchrun --nodes 2, or slurm, kubernetes, ray, skypilot")
    return render(
        "bash",
        layout=layout,
        carried=carried,
        env=starting.env(carried),
        sets=tuple(word for one in carried.sets if not one.startswith("backend=") for word in ("--set", one)),
        options=starting.options(carried),
        script=(*starting.script(layout), *carried.arguments),
    ), {}


FORM = Form(
    name="bash",
    file="start.sh",
    title=Text("a quick start with a menu of three ways, and a diagnoser", "带三种方式菜单的快速启动脚本，并含诊断"),
    launcher="torchrun",
    write=write,
    needs_unhang=True,
)
