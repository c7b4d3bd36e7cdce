"""Lightning: a module with a Trainer and settings of loaders, for the script to import. All of it is Lightning's own, and needs no hook."""

from __future__ import annotations

from collections.abc import Mapping

from unhang.errors import UnhangError
from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.carrying import Carried
from unhang.remedies.exports.exported import Form
from unhang.remedies.exports.layout import Layout
from unhang.remedies.exports.rendering import render

_LOADER = {
    "batch": "batch_size",
    "loader-workers": "num_workers",
    "pin-memory": "pin_memory",
    "persistent-workers": "persistent_workers",
    "prefetch": "prefetch_factor",
}
_PRECISION = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}


def write(layout: Layout, carried: Carried, through: bool) -> tuple[str, Mapping[str, str]]:
    precision = str(carried.native.get("precision", "no"))
    if precision not in _PRECISION:
        raise UnhangError("Lightning has fp8 by a plugin of its own only", hint="--set precision=bf16")
    return render(
        "lightning",
        layout=layout,
        carried=carried,
        env=starting.env(carried),
        backend=carried.native.get("backend", "nccl" if layout.gpus else "gloo"),
        timeout_s=int(carried.native.get("timeout", 1800)),
        accumulation=int(carried.native.get("accumulation", 1)),
        precision=_PRECISION[precision],
        loader={_LOADER[key]: value for key, value in carried.native.items() if key in _LOADER},
        script=(*starting.script(layout), *carried.arguments),
    ), {}


FORM = Form(
    name="lightning",
    file="unhang_lightning.py",
    title=Text("a Python module with a Trainer for Lightning", "含 Lightning Trainer 的 Python 模块"),
    launcher="python",
    write=write,
    native=("backend", "timeout", "accumulation", "precision", *_LOADER),
    runs_unhang=False,
    reads=("address", "port"),
)
