"""Who wrote a place in a line: where the texts of two processes interleave, the marker nearest before it tells."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unhang.patterns import lazily
from unhang.records.logs.prefix import IN_BRACKETS


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A process as its own marker names it. `group_rank` is the number inside `[Rank 1]`, which in any group but the default one is not the rank."""

    rank: int | None = None
    group_rank: int | None = None
    host: str | None = None
    pid: int | None = None


_MARKER = lazily(
    r"\[rank(\d{1,7})\]:"
    rf"|{IN_BRACKETS}:?"
    # NCCL: host:pid:tid [device]
    r"|(?<![\w.-])([\w.-]{1,253}):(\d{1,8}):\d{1,8} \[-?\d{1,4}\]"
    # Ray and vLLM
    r"|\((?:[^()]{1,200} )?pid=(\d{1,8})(?:, ip=([\w.:-]{1,64}))?[^()]{0,100}\)",
    re.ASCII,
)
# Between markers of one writer stand spaces and the time at most.
_BETWEEN = lazily(r"[\s:]*(?:\[[EWIF]?[\d:. ,/T-]{4,40}[^\]]{0,80}\][\s:]*)?", re.ASCII)

# How far before a place its marker may stand, and the length of one.
_REACH, _LONGEST = 4096, 400


def writer_at(text: str, position: int) -> Writer:
    """Whose text stands at `position`: what the nearest marker at or before it says, and the markers that stand with it.

    The empty Writer where there is none; without rank where the nearest marker is NCCL's alone, though another writer's rank stands farther left.
    """
    found: re.Match[str] | None = None
    rank: int | None = None
    group_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    for marker in _MARKER.finditer(text, max(0, position - _REACH), position + _LONGEST):
        if marker.start() > position:
            break
        if found is None or not _BETWEEN.fullmatch(text, found.end(), marker.start()):
            rank = group_rank = host = pid = None
        torch, group, nccl_host, nccl_pid, ray_pid, ray_ip = marker.groups()
        if torch:
            rank = int(torch)
        if group:
            group_rank = int(group)
        host = nccl_host or ray_ip or host
        if process := nccl_pid or ray_pid:
            pid = int(process)
        found = marker
    return Writer(rank=rank, group_rank=group_rank, host=host, pid=pid)


def rank_at(text: str, position: int) -> int | None:
    """The rank whose text stands at `position`; None where the nearest marker before it names none."""
    writer = writer_at(text, position)
    return writer.group_rank if writer.rank is None else writer.rank
