"""Kubernetes: a runtime and a job for Kubeflow Trainer, with a /dev/shm that is large enough."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.exported import Form
from unhang.remedies.exports.layout import Layout
from unhang.remedies.exports.rendering import literal, render


def write(layout: Layout, carried: Carried, through: bool) -> tuple[str, Mapping[str, str]]:
    command = (
        *map(literal, starting.through_unhang(carried, through)),
        "torchrun",
        *map(literal, (*starting.options(carried), *starting.script(layout), *carried.arguments)),
    )
    return render("kubernetes", layout=layout, carried=carried, env=starting.env(carried), command=command, start=through), {}


FORM = Form(
    name="kubernetes",
    file="trainjob.yaml",
    title=Text("a TrainingRuntime and a TrainJob for Kubeflow Trainer", "Kubeflow Trainer 的 TrainingRuntime 与 TrainJob"),
    launcher="torchrun",
    write=write,
    reads=("name", "image"),
    alone=("name", "image"),
)
