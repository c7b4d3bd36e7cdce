"""Kubernetes and Dockerfiles: the shared memory that a container gets, and its GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unhang.knowledge.text import Text, same
from unhang.remedies.exports.checking.documents import Key
from unhang.remedies.exports.checking.problem import Problem

_TRAINS = re.compile(r"torchrun|accelerate|deepspeed|llamafactory|train", re.IGNORECASE)


def kubernetes(keys: tuple[Key, ...], text: str) -> Iterator[Problem]:
    if not _TRAINS.search(text):
        return
    pods = [k for k in keys if k.path[-1] == "containers"]
    mounted = any(k.path[-1] == "mountPath" and k.value == "/dev/shm" for k in keys)
    in_memory = any(k.path[-2:] == ("emptyDir", "medium") and k.value == "Memory" for k in keys)
    if pods and not mounted:
        says = Text(
            "no volume at /dev/shm: a container's own has 64 MiB, too little for NCCL and loader workers",
            "没有挂载 /dev/shm：容器默认只有 64 MiB，NCCL 和数据加载进程不够用",
        )
        yield Problem(line=pods[0].line, says=says, instead=same("volumes: [{name: shm, emptyDir: {medium: Memory}}], mountPath: /dev/shm"))
    elif mounted and not in_memory and not any(k.path[-1] in ("hostPath", "persistentVolumeClaim") for k in keys):
        line = next(k.line for k in keys if k.path[-1] == "mountPath" and k.value == "/dev/shm")
        says = Text("the volume at /dev/shm is on disk", "挂载到 /dev/shm 的卷在磁盘上")
        yield Problem(line=line, says=says, instead=same("emptyDir: {medium: Memory}"))


def dockerfile(text: str) -> Iterator[Problem]:
    starts = re.search(r"^\s*(?:CMD|ENTRYPOINT)\b.*(?:torchrun|accelerate|deepspeed|llamafactory|unhang|python)", text, re.MULTILINE)
    if starts is not None and not re.search(r"--shm-size|--ipc[= ]host", text):
        says = Text(
            "nothing says that its containers need --shm-size: their /dev/shm has 64 MiB",
            "没有说明容器需要 --shm-size：其 /dev/shm 只有 64 MiB",
        )
        line = text.count("\n", 0, starts.start()) + 1
        yield Problem(
            line=line,
            says=says,
            instead=Text("a comment: # docker run --gpus all --shm-size=8g IMAGE", "写一行注释：# docker run --gpus all --shm-size=8g IMAGE"),
        )
