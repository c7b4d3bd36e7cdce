"""DeepSpeed: its JSON, and beside it a script that starts it. JSON has no comments, so that the script says what the numbers are."""

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
    micro = int(carried.native.get("batch", 1))
    accumulation = int(carried.native.get("accumulation", 1))
    precision = carried.native.get("precision", "bf16")
    if precision == "fp8":
        raise UnhangError("DeepSpeed's file has no fp8", hint="--set precision=bf16")
    text = render("deepspeed", layout=layout, micro=micro, accumulation=accumulation, precision=precision)
    start = render(
        "deepspeed_start",
        layout=layout,
        carried=carried,
        env=starting.env(carried),
        start=starting.through_unhang(carried, through),
        options=starting.options(carried),
        script=(*("--module" if i == 0 and word == "-m" else word for i, word in enumerate(starting.script(layout))), *carried.arguments),
        micro=micro,
        accumulation=accumulation,
        gloo="backend=gloo" in carried.sets,
    )
    return text, {".start.sh": start}


FORM = Form(
    name="deepspeed",
    file="deepspeed.json",
    title=Text("DeepSpeed's JSON (ZeRO-2), and the script that starts it", "DeepSpeed 的 JSON（ZeRO-2）及启动脚本"),
    launcher="deepspeed",
    write=write,
    native=("batch", "accumulation", "precision"),
    reads=("address", "port"),
)
