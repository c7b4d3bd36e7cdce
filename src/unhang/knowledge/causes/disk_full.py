"""disk-full: no space where checkpoints, logs or caches go."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView

_MIB = 1024 * 1024
# Below the first nothing of a training fits; below the second a checkpoint may not.
_NO_ROOM = 256 * _MIB
_LITTLE = 2048 * _MIB


def on_host(host: HostView) -> Findings:
    from unhang.facts import storage

    said: set[str | None] = set()
    for place in host.storage.places:
        if place.space is None or place.mount in said:
            continue
        free, total = place.space.free_bytes, place.space.total_bytes
        inodes = place.space.inodes and place.space.free_inodes < 1000
        if not inodes and free >= _LITTLE:
            continue
        said.add(place.mount)
        yield Found(
            "no-inodes" if inodes else "no-room",
            severity="error" if inodes or free < _NO_ROOM else "warning",
            remedies=("what-fills-it", *(("move-caches",) if "cache" in place.purpose or "temporary" in place.purpose else ("keep-fewer",))),
            place=place,
            purpose=storage.purpose(place.purpose),
            free=free,
            total=total,
            mount=place.mount or place.path,
        )
