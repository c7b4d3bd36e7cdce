"""disk-full: no space where checkpoints, logs or caches go."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView

_MIB = 1024 * 1024
# Below the first nothing of a training fits; below the second a checkpoint may not.
_NO_ROOM = 256 * _MIB
_LITTLE = 2048 * _MIB


def on_host(host: HostView) -> Findings:
    from unhang.facts import storage
    from unhang.facts.units import size

    seen = host.get(storage.SUBJECT)
    said: set[str | None] = set()
    for place in seen.places if seen is not None else ():
        if place.space is None or place.mount in said:
            continue
        free, total = place.space.free_bytes, place.space.total_bytes
        text = f"{size(free)} of {size(total)} free, {place.space.free_inodes} of {place.space.inodes} inodes"
        inodes = place.space.inodes and place.space.free_inodes < 1000
        if not inodes and free >= _LITTLE:
            continue
        said.add(place.mount)
        yield Found(
            "no-inodes",
            severity="error" if inodes or free < _NO_ROOM else "warning",
            remedies=("what-fills-it", *(("move-caches",) if "cache" in place.purpose or "temporary" in place.purpose else ("keep-fewer",))),
            place=place,
            purpose=storage.purpose(place.purpose),
            free=free,
            total=total,
            what="inodes" if inodes else "room",
            leads="despite-df" if inodes else "in-a-checkpoint",
            mount=place.mount or place.path,
            text=text,
        )
