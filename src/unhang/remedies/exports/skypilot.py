"""SkyPilot: a task whose hosts find one another by SkyPilot's own variables."""

from __future__ import annotations

from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.exported import Form

FORM = Form(
    name="skypilot",
    file="task.yaml",
    title=Text("a task for sky launch", "sky launch 的任务"),
    launcher="torchrun",
    write=starting.by_torchrun("skypilot"),
    reads=("port", "name"),
    alone=("name",),
)
