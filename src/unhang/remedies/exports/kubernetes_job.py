"""Kubernetes without an operator: an Indexed Job with a Service that gives its pods names, and a /dev/shm that is large enough."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.errors import UnhangError
from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.exported import Form
from unhang.remedies.exports.layout import Layout
from unhang.remedies.exports.rendering import literal, render

# A pod of an Indexed Job is called JOB-INDEX, and that is its name in DNS.
_MAX_NAME = 63


def write(layout: Layout, carried: Carried, through: bool) -> tuple[str, Mapping[str, str]]:
    last = f"{layout.name}-{layout.nodes - 1}"
    if len(last) > _MAX_NAME:
        raise UnhangError(f"name {layout.name!r}: its last pod is {last}, which is longer than {_MAX_NAME} letters", hint="--name training")
    meeting = (
        ("--standalone",)
        if layout.nodes == 1
        else (f"--nnodes={layout.nodes}", "--node-rank=$(NODE_RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)")
    )
    command = (
        *map(literal, starting.through_unhang(carried, through)),
        "torchrun",
        *meeting,
        f"--nproc-per-node={layout.processes}",
        *map(literal, (*starting.options(carried), *starting.script(layout), *carried.arguments)),
    )
    master = layout.address or f"{layout.name}-0.{layout.name}"
    return render("kubernetes_job", layout=layout, carried=carried, env=starting.env(carried), command=command, start=through, master=master), {}


FORM = Form(
    name="kubernetes-job",
    file="job.yaml",
    title=Text(
        "an Indexed Job and a headless Service, for Kubernetes without an operator", "Indexed Job 与无头 Service，无需 operator 的 Kubernetes"
    ),
    launcher="torchrun",
    write=write,
    reads=("address", "port", "name", "image"),
    alone=("name", "image"),
)
