"""LLaMA-Factory's YAML: its own fields and the Trainer's. A field of neither is refused, unless ALLOW_EXTRA_ARGS is set."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.knowledge.text import Text, same
from unhang.remedies.exports.checking.documents import Key
from unhang.remedies.exports.checking.names import known, nearest
from unhang.remedies.exports.checking.problem import Layout, Problem

_VALUES = {
    "stage": ("pt", "sft", "rm", "ppo", "dpo", "kto"),
    "finetuning_type": ("lora", "oft", "freeze", "full"),
    "ddp_backend": ("nccl", "gloo", "mpi", "ccl", "hccl", "cncl", "mccl", "xccl"),
}
# Written in many a file, and a field of none.
_OTHERS = {"backend": "ddp_backend", "dist_backend": "ddp_backend", "batch_size": "per_device_train_batch_size", "timeout": "ddp_timeout"}


def check(keys: tuple[Key, ...], layout: Layout) -> Iterator[Problem]:
    top = {str(k.path[0]): k for k in keys if len(k.path) == 1}
    fields = known("llamafactory")["own"] | known("llamafactory")["trainer"]
    # A file for `llamafactory-cli eval` has others.
    for name, key in () if "task" in top else top.items():
        if name not in fields:
            says = Text(f"LLaMA-Factory has no field `{name}`, and refuses the file", f"LLaMA-Factory 没有字段 {name}，会拒绝该文件")
            yield Problem(line=key.line, says=says, instead=same(_OTHERS[name]) if name in _OTHERS else nearest(name, fields))
    for name, valid in _VALUES.items():
        if name in top and top[name].value is not None and top[name].value not in valid:
            says = Text(f"{name} is {top[name].value}: there is no such one", f"{name} 为 {top[name].value}：没有这个值")
            yield Problem(line=top[name].line, says=says, instead=same(", ".join(valid)))
    if (both := top.get("fp16")) is not None and both.value is True and "bf16" in top and top["bf16"].value is True:
        yield Problem(line=both.line, says=Text("bf16 and fp16 are both on: the Trainer refuses that", "bf16 与 fp16 同时开启：Trainer 会拒绝"))
    workers = top.get("dataloader_num_workers")
    for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
        if name in top and top[name].value and (workers is None or not workers.value):
            says = Text(f"{name} without workers: DataLoader raises ValueError", f"没有工作进程却设置 {name}：DataLoader 会抛出 ValueError")
            yield Problem(line=top[name].line, says=says, instead=same("dataloader_num_workers: 2"))
