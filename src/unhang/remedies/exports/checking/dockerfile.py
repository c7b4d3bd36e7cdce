"""Dockerfiles: the shared memory that a container gets, and what it starts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

from unhang.knowledge.text import Text
from unhang.remedies.exports.checking import script
from unhang.remedies.exports.checking.problem import Problem

_STARTS = re.compile(r"^[ \t]*(?:CMD|ENTRYPOINT)\b(?P<words>(?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE | re.IGNORECASE)
# Where ranks meet is told to the container, not written into its image.
_GIVEN = ("MASTER_PORT", "PET_MASTER_ADDR", "PET_NODE_RANK")
_TRAINS = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|llamafactory|unhang|python", re.IGNORECASE)


def check(text: str) -> Iterator[Problem]:
    starts = [m for m in _STARTS.finditer(text) if _TRAINS.search(m[0])]
    line, at = 1, 0
    for one in starts:
        line, at = line + text.count("\n", at, one.start()), one.start()
        yield from script.check(_shell(one["words"]), first=line, given=_GIVEN)
    if starts and not re.search(r"--shm-size|--ipc[= ]host", text):
        says = Text(
            "nothing says that its containers need --shm-size: their /dev/shm has 64 MiB",
            "没有说明容器需要 --shm-size：其 /dev/shm 只有 64 MiB",
        )
        instead = Text("a comment: # docker run --gpus all --shm-size=8g IMAGE", "写一行注释：# docker run --gpus all --shm-size=8g IMAGE")
        yield Problem(line=text.count("\n", 0, starts[0].start()) + 1, says=says, instead=instead)


def _shell(words: str) -> str:
    """What is written as a list of JSON is started without a shell."""
    try:
        listed = json.loads(words.replace("\\\n", " "))
    except ValueError:
        return words
    return shlex.join(map(str, listed)) if isinstance(listed, list) else words
