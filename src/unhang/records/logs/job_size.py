"""How many ranks a job has, as its logs tell."""

from __future__ import annotations

from collections.abc import Iterable

from unhang.records.logs.signature import Hit, Signature


def _size(needle: str, pattern: str) -> Signature:
    return Signature(needle=needle, pattern=pattern, role="context", keep=8)


SIGNATURES = (
    _size("world_size", r"world_size['\"]?\s*[:=]\s*(?P<world_size>\d+)"),
    _size("World size", r"World size\s*[:=]\s*(?P<world_size>\d+)"),
    _size("world size", r"world size\s*[:=]\s*(?P<world_size>\d+)"),
    _size("WORLD_SIZE", r"WORLD_SIZE['\"]?\s*[:=]\s*['\"]?(?P<world_size>\d+)"),
    # Lightning: Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8
    _size("Initializing distributed: GLOBAL_RANK", r"MEMBER: \d+/(?P<world_size>\d+)"),
    _size("clients joined", r"\d+/(?P<world_size>\d+) clients joined"),
    _size("distributed_type=", r"num_processes=(?P<world_size>\d+)"),
)


def read(hits: Iterable[Hit]) -> int | None:
    """The world size: what the logs say most often of it, but never less than the largest communicator."""
    told: dict[int, int] = {}
    largest = 0
    for h in hits:
        if "world_size" in h.groups:
            size = int(h.groups["world_size"])
            told[size] = told.get(size, 0) + 1
        elif "nranks" in h.groups:
            largest = max(largest, int(h.groups["nranks"]))
    said = max(told, key=lambda n: (told[n], n), default=0)
    return max(said, largest) or None
