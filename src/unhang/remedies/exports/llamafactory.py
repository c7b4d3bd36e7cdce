"""LLaMA-Factory: the YAML of `llamafactory-cli train`. The Trainer that it uses has keys of its own for Gloo, timeouts and loaders."""

from __future__ import annotations

import json
from collections.abc import Mapping

from unhang.errors import UnhangError
from unhang.knowledge.text import Text
from unhang.remedies.exports import starting
from unhang.remedies.exports.carrying import TODAY, Carried
from unhang.remedies.exports.exported import Form
from unhang.remedies.exports.layout import Layout
from unhang.remedies.exports.rendering import render

_KEYS = {
    "backend": "ddp_backend",
    "timeout": "ddp_timeout",
    "batch": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "loader-workers": "dataloader_num_workers",
    "pin-memory": "dataloader_pin_memory",
    "persistent-workers": "dataloader_persistent_workers",
    "prefetch": "dataloader_prefetch_factor",
}
_EXAMPLE: Mapping[str, str | int | float | bool] = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "template": "qwen",
    "dataset": "identity",
    "cutoff_len": 2048,
    "output_dir": "saves/training",
    "learning_rate": 0.0001,
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "ddp_timeout": 1800,
}


def write(layout: Layout, carried: Carried, through: bool) -> tuple[str, Mapping[str, str]]:
    given: dict[str, object] = {}
    for word in layout.command:
        key, joined, value = word.partition("=")
        if not joined or not key.isidentifier():
            raise UnhangError(f"{word!r}: of this form COMMAND is fields of LLaMA-Factory", hint="unhang export llamafactory -- dataset=mine")
        given[key] = _typed(value)
    precision = carried.native.get("precision", "bf16" if layout.gpus else "no")
    if precision == "fp8":
        raise UnhangError("LLaMA-Factory's file has no fp8", hint="--set precision=bf16")
    chosen = {_KEYS[key]: value for key, value in carried.native.items() if key in _KEYS}
    start = (
        "env",
        "FORCE_TORCHRUN=1",
        f"NPROC_PER_NODE={layout.processes}",
        *(f"{name}={value}" for name, value in carried.env.items()),
        *((f"NNODES={layout.nodes}", f"MASTER_ADDR={layout.address or 'first-host'}", f"MASTER_PORT={layout.port}") if layout.nodes > 1 else ()),
    )
    text = render(
        "llamafactory",
        layout=layout,
        carried=carried,
        start=start,
        command=(*starting.through_unhang(carried, through), "llamafactory-cli", "train"),
        fields={
            **_EXAMPLE,
            "bf16": precision == "bf16",
            "fp16": precision == "fp16",
            **({} if layout.gpus else {"use_cpu": True}),
            **chosen,
            **given,
        },
        chosen={_KEYS[key]: key for key in carried.native if key in _KEYS},
    )
    if given:
        _refuse(text)
    return text, {}


def _refuse(text: str) -> None:
    """Raises UnhangError for what LLaMA-Factory would not take of the fields that were given."""
    # Who writes has no use for who reads, but for this.
    from unhang.remedies.exports.checking import documents, llamafactory
    from unhang.remedies.exports.checking.problem import Layout as Any

    wrong = next(llamafactory.check(documents.keys(FORM.file, text), Any()), None)
    if wrong is not None:
        raise UnhangError(
            wrong.says.en,
            says_zh=wrong.says.zh,
            hint=wrong.instead.en
            or f"leave it out; a field of another release of LLaMA-Factory than {TODAY.packages['llamafactory']} is added to the file by hand",
        )


def _typed(word: str) -> object:
    """As in words behind LLaMA-Factory's own file: 5, 1e-4, true, null and [1, 2] are no text. Its reader of files converts nothing."""
    try:
        found: object = json.loads(word.lower() if word.lower() in ("true", "false", "null") else word)
    except ValueError:
        return word
    return found


FORM = Form(
    name="llamafactory",
    file="llamafactory.yaml",
    title=Text("fields for llamafactory-cli train", "llamafactory-cli train 的配置"),
    launcher="llamafactory",
    write=write,
    native=(*_KEYS, "precision"),
    reads=("address", "port"),
)
