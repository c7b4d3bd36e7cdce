"""SkyPilot: a task whose hosts find one another by SkyPilot's own variables."""

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
        "skypilot",
        layout=layout,
        carried=carried,
        env=starting.env(carried),
        start=starting.through_unhang(carried, through),
        options=starting.options(carried),
        script=(*starting.script(layout), *carried.arguments),
    ), {}


FORM = Form(
    name="skypilot",
    file="task.yaml",
    title=Text("a task for sky launch", "sky launch 的任务"),
    launcher="torchrun",
    write=write,
)
