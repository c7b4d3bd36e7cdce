"""disk-full: no space where checkpoints, logs or caches go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot


_MIB = 1024 * 1024
# Below the first nothing of a training fits; below the second a checkpoint may not.
_NO_ROOM = 256 * _MIB
_LITTLE = 2048 * _MIB
_FILLED_BY = "df -h {path:path}; df -i {path:path}; du -xh --max-depth=2 {mount:path} 2>/dev/null | sort -h | tail -20"


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import storage
    from unhang.facts.units import size

    seen = host.get(storage.SUBJECT)
    said: set[str | None] = set()
    for place in seen.places if seen is not None else ():
        if place.space is None or place.mount in said:
            continue
        on = Text("{path} ({purpose}, on {mount})", "{path}（{purpose}，位于 {mount}）").fill(
            path=place.path, purpose=storage.purpose(place.purpose), mount=str(place.mount)
        )
        free, total = place.space.free_bytes, place.space.total_bytes
        text = f"{size(free)} of {size(total)} free, {place.space.free_inodes} of {place.space.inodes} inodes"
        inodes = place.space.inodes and place.space.free_inodes < 1000
        if not inodes and free >= _LITTLE:
            continue
        said.add(place.mount)
        yield CAUSE.host_finding(
            area="storage",
            severity="error" if inodes or free < _NO_ROOM else "warning",
            says=Text("{on} has {free} of {all} inodes free", "{on}的 {all} 个 inode 只剩 {free} 个").fill(
                on=on, free=place.space.free_inodes, all=place.space.inodes
            )
            if inodes
            else Text("{on} has {free} of {all} free", "{on}共 {all}，只剩 {free}").fill(on=on, free=size(free), all=size(total)),
            leads_to=Text(
                "new files are refused with 'No space left on device' although df shows room",
                "虽然 df 显示还有空间，新文件仍被拒绝：'No space left on device'",
            )
            if inodes
            else Text(
                "new files are refused with 'No space left on device', in the middle of a checkpoint",
                "checkpoint 写到一半时新文件被拒绝：'No space left on device'",
            ),
            evidence=(Evidence(source=place.mount or place.path, text=text),),
            remedies=("what-fills-it", *(("move-caches",) if "cache" in place.purpose or "temporary" in place.purpose else ("keep-fewer",))),
            commands={"what-fills-it": command(_FILLED_BY, path=place.path, mount=place.mount)},
        )


CAUSE = cause("disk-full", on_host=_on_host)
