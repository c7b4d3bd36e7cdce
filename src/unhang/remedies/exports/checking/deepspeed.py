"""DeepSpeed's JSON: the arithmetic of batches, and `auto`."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.knowledge.text import Text, same
from unhang.remedies.exports.checking.documents import Key
from unhang.remedies.exports.checking.problem import Layout, Problem

_TRAIN, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def check(keys: tuple[Key, ...], layout: Layout) -> Iterator[Problem]:
    for key in keys:
        if key.value == "auto":
            name = ".".join(map(str, key.path))
            yield Problem(
                line=key.line,
                says=Text(
                    f"{name} is auto: only the Hugging Face Trainer (and accelerate, for some) fills that in; DeepSpeed itself does not",
                    f"{name} 为 auto：只有 Hugging Face Trainer（accelerate 支持其中一部分）会填写，DeepSpeed 自身不会",
                ),
                instead=Text("a number or true/false, unless the Trainer is given this file", "写成具体数值；除非该文件由 Trainer 读取"),
            )
    top = {str(k.path[0]): k for k in keys if len(k.path) == 1}
    if "backend" in top:
        yield Problem(
            line=top["backend"].line,
            says=Text("DeepSpeed's JSON has no key for the backend", "DeepSpeed 的 JSON 没有指定后端的键"),
            instead=same('deepspeed.init_distributed(dist_backend="gloo")'),
        )
    numbers = {n: top[n].value for n in (_TRAIN, _MICRO, _STEPS) if n in top and type(top[n].value) is int}
    for name, value in numbers.items():
        if value < 1:
            yield Problem(line=top[name].line, says=Text(f"{name} is {value}: it is at least 1", f"{name} 为 {value}：至少为 1"))
            return
    if _TRAIN not in numbers:
        return
    train, micro, steps = numbers[_TRAIN], numbers.get(_MICRO), numbers.get(_STEPS)
    line = top[_TRAIN].line
    world = layout.world
    if micro is not None and steps is not None and world is not None:
        if train != micro * steps * world:
            says = Text(
                f"train_batch_size is {train}, but {micro} per GPU x {steps} accumulation steps x {world} ranks is {micro * steps * world}",
                f"train_batch_size 为 {train}，但每卡 {micro} × 累积 {steps} 步 × {world} 个 rank 是 {micro * steps * world}",
            )
            yield Problem(line=line, says=says, instead=same(f'"train_batch_size": {micro * steps * world}'))
        return
    product = (micro or 1) * (steps or 1) * (world or 1)
    if train % product:
        # Whatever is not given is a whole number.
        says = Text(
            f"train_batch_size is {train}, which no whole number times {product} (the other factors that are known) makes",
            f"train_batch_size 为 {train}，不是已知其他因子之积 {product} 的整数倍",
        )
        yield Problem(line=line, says=says, instead=Text("micro-batch x accumulation x ranks", "微批量 × 累积步数 × rank 数"))
