"""accelerate: a YAML file of settings for `accelerate launch`. It has no key for variables, nor for a backend: the line that starts it does."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.exported import Form
from unhang.remedies.exports.layout import Layout
from unhang.remedies.exports.rendering import render


def write(layout: Layout, carried: Carried, through: bool) -> tuple[str, Mapping[str, str]]:
    # MULTI_CPU leaves all but one process to mpirun: torchrun is started for MULTI_GPU, and this variable keeps GPUs out.
    env = {**({} if layout.gpus else {"ACCELERATE_USE_CPU": "true"}), **carried.env}
    start = (
        *(("env", *(f"{name}={value}" for name, value in env.items())) if env else ()),
        *starting.through_unhang(carried, through),
        *("accelerate", "launch", "--config_file"),
    )
    return render(
        "accelerate",
        layout=layout,
        carried=carried,
        start=start,
        options=starting.options(carried),
        script=(*starting.script(layout), *carried.arguments),
        precision=carried.native.get("precision", "no"),
        address=layout.address or "first-host",
        gloo="backend=gloo" in carried.sets,
    ), {}


FORM = Form(
    name="accelerate",
    file="accelerate.yaml",
    title=Text("settings for accelerate launch --config_file", "accelerate launch --config_file 的配置"),
    launcher="accelerate",
    write=write,
    native=("precision",),
    reads=("address", "port"),
    alone=("port",),
)
