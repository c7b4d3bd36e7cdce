"""NCCL_ALGO and NCCL_PROTO: words, separated by commas; since 2.24 also for one collective each, `ring;allreduce:tree,ring;broadcast:^ll128`.

`parseList` of NCCL's tuning.cc: without regard to case, blanks are a part of a word, `^` excludes, only the first part may be without a collective.
"""

from __future__ import annotations

from collections.abc import Sequence

from unhang.knowledge.variables.variable import Text
from unhang.model import Severity

# The last two only in newer releases.
_COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "AlltoAll")


def wrong(value: str, words: Sequence[str]) -> tuple[Severity, Text] | None:
    """The first thing in it that NCCL does not know; None where it knows all."""
    for n, part in enumerate(p for p in value.split(";") if p):
        collective, colon, rest = part.partition(":")
        if colon and collective.lower() not in {c.lower() for c in _COLLECTIVES}:
            return _unknown(collective, _COLLECTIVES)
        if n and not colon:
            return "error", Text(
                f"{part!r} names no collective, which only the first part may leave out: since 2.24 NCCL refuses all of it, and the start fails",
                f"{part!r} 没有写明集合操作，只有第一段可以省略：2.24 起 NCCL 拒绝整个值，启动失败",
            )
        for word in (rest if colon else part).removeprefix("^").split(","):
            if word and word.lower() not in {w.lower() for w in words}:
                return _unknown(word, words)
    return None


def _unknown(word: str, words: Sequence[str]) -> tuple[Severity, Text]:
    shown = ", ".join(words)
    return "error", Text(
        f"{word!r} is none of {shown}: since 2.24 the start fails, before it is passed over",
        f"{word!r} 不在可取值之内（{shown}）：2.24 起启动失败，此前被忽略",
    )
