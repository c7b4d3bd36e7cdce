"""torchrun: a script of bash for each host, the same on all of them."""

from __future__ import annotations

from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.exported import Form

FORM = Form(
    name="torchrun",
    file="train.sh",
    title=Text("a script of bash that starts torchrun, the same on every host", "启动 torchrun 的 bash 脚本，各主机相同"),
    launcher="torchrun",
    write=starting.by_torchrun("torchrun"),
    reads=("address", "port"),
)
