"""shm-stale-or-missing: a segment vanished before its peer attached, or files of a dead job stand in the way."""

from __future__ import annotations

from unhang.facts.shm import Segment
from unhang.knowledge.judge import Findings, Found, HostView
from unhang.model import Evidence

# A job that is starting makes its segments before anybody attaches.
_YOUNG_S = 60.0
_MUCH_BYTES = 1 << 30


def on_host(host: HostView) -> Findings:

    seen = host.shm
    old = [s for s in seen.segments if s.of_trainings and s.age_s >= _YOUNG_S]
    dead = [s for s in old if s.abandoned]
    # Where not all processes are seen, those of this user still are: what none of them has mapped is worth asking the kernel about.
    unseen = [s for s in old if s.abandoned is None and s.uid == seen.uid]
    total = seen.space.total_bytes if seen.space is not None else 0
    for segments in (dead, unseen):
        if not segments:
            continue
        held = sum(s.size_bytes for s in segments)
        ours = [s for s in segments if s.uid == seen.uid]
        yield Found(
            "left",
            severity="warning" if held > (min(_MUCH_BYTES, total // 10) if total else _MUCH_BYTES) else "note",
            remedies=("remove-dead",) if ours else ("of-others",),
            evidence=tuple(_evidence(s) for s in sorted(segments, key=lambda s: -s.size_bytes)[:3]),
            n=len(segments),
            held=held,
            seen=segments is unseen,
            others=len(segments) - len(ours) or None,
            files=[f"/dev/shm/{s.name}" for s in segments[:3]],
        )


def _evidence(segment: Segment) -> Evidence:
    from unhang.text import size

    who = segment.owner or f"user {segment.uid}"
    return Evidence(source=f"/dev/shm/{segment.name}", text=f"{size(segment.size_bytes)}, of {who}, {segment.age_s / 3600:.1f} h old")
