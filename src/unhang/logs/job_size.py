"""How many ranks a job has, as its logs tell."""

from __future__ import annotations

from collections.abc import Iterable

from unhang.logs.signature import Hit, Signature

# No job is larger: such a number stands in a torn line, or is no size. Ranks are counted up to the size by those who read it.
MAX_WORLD_SIZE = 2**20


def _size(needle: str, pattern: str) -> Signature:
    return Signature(needle=needle, pattern=pattern, role="context", keep=8)


SIGNATURES = (
    _size("world_size", r"world_size['\"]?\s{0,8}[:=]\s{0,8}(?P<world_size>\d{1,9})(?!\d)"),
    _size("World size", r"World size\s{0,8}[:=]\s{0,8}(?P<world_size>\d{1,9})(?!\d)"),
    _size("world size", r"world size\s{0,8}[:=]\s{0,8}(?P<world_size>\d{1,9})(?!\d)"),
    _size("WORLD_SIZE", r"WORLD_SIZE['\"]?\s{0,8}[:=]\s{0,8}['\"]?(?P<world_size>\d{1,9})(?!\d)"),
    # Lightning: Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8
    _size("Initializing distributed: GLOBAL_RANK", r"MEMBER: \d{1,9}/(?P<world_size>\d{1,9})(?!\d)"),
    _size("clients joined", r"\d{1,9}/(?P<world_size>\d{1,9})(?!\d) clients joined"),
    _size("distributed_type=", r"num_processes=(?P<world_size>\d{1,9})(?!\d)"),
)


def read(hits: Iterable[Hit]) -> int | None:
    """The world size: what the logs say most often of it, but never less than the largest communicator.

    From 1 to MAX_WORLD_SIZE; None where nothing tells it.
    """
    told: dict[int, int] = {}
    largest = 0
    for h in hits:
        size = int(h.groups.get("world_size") or h.groups.get("nranks") or 0)
        if size > MAX_WORLD_SIZE:
            continue
        if "world_size" in h.groups:
            told[size] = told.get(size, 0) + 1
        else:
            largest = max(largest, size)
    said = max(told, key=lambda n: (told[n], n), default=0)
    return max(said, largest) or None
