"""torchrun: a script of bash for each host, the same on all of them."""

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
        "torchrun",
        layout=layout,
        carried=carried,
        env=starting.env(carried),
        start=starting.through_unhang(carried, through),
        options=starting.options(carried),
        script=(*starting.script(layout), *carried.arguments),
    ), {}


FORM = Form(
    name="torchrun",
    file="train.sh",
    title=Text("a script of bash that starts torchrun, the same on every host", "启动 torchrun 的 bash 脚本，各主机相同"),
    launcher="torchrun",
    write=write,
)
