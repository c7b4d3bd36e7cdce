"""Ray Train: a program that runs a script in Ray's workers, in a group that Ray makes."""

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
    if layout.command[:1] == ("-m",):
        raise UnhangError("Ray's program runs a file, not a module", hint="unhang export ray -- train.py")
    return render(
        "ray",
        layout=layout,
        carried=carried,
        env=dict(carried.env),
        backend=carried.native.get("backend", "nccl" if layout.gpus else "gloo"),
        timeout_s=int(carried.native.get("timeout", 1800)),
        script=[*starting.script(layout), *carried.arguments],
    ), {}


FORM = Form(
    name="ray",
    file="ray_train.py",
    title=Text("a Python program for Ray Train", "Ray Train 的 Python 程序"),
    launcher="python",
    write=write,
    native=("backend", "timeout"),
    runs_unhang=False,
    reads=("name",),
    alone=("name",),
)
