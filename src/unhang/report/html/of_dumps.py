"""A scene out of flight-recorder dumps alone, beside the verdict that was drawn from them. They tell what ranks wait in, and of those that wait in
nothing no more than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from unhang.diagnosis.recorders import Examined
from unhang.diagnosis.redact import redact_data
from unhang.flight.outcome import Outcome
from unhang.flight.recording import ENDED, Recording
from unhang.model import frozen
from unhang.report.html import of_lanes
from unhang.report.html.of_lanes import focus_on, group_at, sides_of, with_missing
from unhang.report.html.scene import Concern, Divergence, RankRow, Scene, Track

_PARTED = ("op", "shape", "dtype", "order", "extra", "lacking")
_MESSAGES = ("send to", "receive from")
_NEVER_CAME = ("missing", "p2p-alone")
# A dump that counts more ranks is damaged.
_MOST_ROWS = 20_000


def scene_of(examined: Examined, *, title: str = "") -> Scene:
    """The scene of dumps that were read to be drawn. Without credentials."""
    recorded, outcome = examined.recorded, examined.outcome
    if outcome is None:
        return Scene(title=title)
    scene = of_lanes.scene_of({rank: recorded.lanes.get(rank, ()) for rank in recorded.recordings}, hosts=recorded.hosts)
    divergence = _divergence(scene, outcome, examined.odd)
    tracks: dict[int, list[Track]] = {}
    for track in scene.tracks:
        tracks.setdefault(track.rank, []).append(track)
    rows = [
        replace(_row(rank, recording, scene, tracks.get(rank, ()), outcome, examined.odd), host=recorded.hosts.get(rank, ""))
        for rank, recording in recorded.recordings.items()
    ]
    rows += [RankRow(rank=rank, unseen=True) for rank in _absent(recorded.recordings, outcome)]
    # Where ranks wait for each other in two groups, or for whom cannot be told, the largest group is seldom the one to look at.
    focus = None
    if divergence is not None:
        scene = with_missing(scene, divergence)
    elif not outcome.call.startswith(_MESSAGES):
        focus = focus_on(scene, outcome.group_name, outcome.number, outcome.waiting)
    told = set(recorded.hosts.values()) if len(recorded.hosts) == len(recorded.recordings) else set()
    scene = replace(
        scene,
        title=title,
        ranks=tuple(sorted(rows, key=lambda r: r.rank)),
        divergences=(divergence,) if divergence is not None else (),
        focus=focus,
        # Only digests tell hosts.
        hosts_differ=len(recorded.recordings) > 1 and len(told) != 1,
    )
    return redact_data(scene)


def _absent(recordings: Mapping[int, Recording], outcome: Outcome) -> list[int]:
    """Ranks that others tell of, and of which there is no dump."""
    groups = {id(g): g for r in recordings.values() for g in (*(t.group for t in r.tracks), *r.groups)}
    members = {rank for g in groups.values() for rank in g.members}
    return sorted({*members, *outcome.members, *outcome.unseen}.difference(recordings))[:_MOST_ROWS]


def _divergence(scene: Scene, outcome: Outcome, odd: tuple[int, ...]) -> Divergence | None:
    """Where ranks parted or somebody never came, if it is drawn. Who went astray may not be known."""
    o = outcome
    if o.number is None or o.kind not in ("missing", *_PARTED):
        return None
    missing = o.ranks if o.kind == "missing" else ()
    group = group_at(scene, o.group_name, o.members)
    if group is None:
        return None
    sides = sides_of(scene, group, o.number, odd, missing, o.unseen)
    return Divergence(group=group, number=o.number, odd=odd, missing=missing, sides=sides)


def _row(rank: int, recording: Recording, scene: Scene, tracks: Sequence[Track], outcome: Outcome, odd: tuple[int, ...]) -> RankRow:
    # Not one that is pending beside what the rank does. On Gloo all that is over is pending for ever: of that only what the verdict says.
    beside = {(s.group, s.number) for s in outcome.aside if rank in s.waiting}
    here = outcome.group_name if rank in outcome.waiting else None
    found: list[tuple[int, _Wait]] = []
    for track in recording.tracks:
        for number, ns in track.pending_ns.items():
            given_up = track.gloo and track.end(number) == ENDED and (here, outcome.number) != (track.group.name, number)
            if given_up or any(n == number and g.split(" (")[0] == track.group.name for g, n in beside):
                continue
            op = recording.calls[track.at(number) or 0].split("+")[0].split(" ")[0]
            found.append((ns, _Wait(group=track.group.name, number=number, p2p=False, op=op or "a call")))
            break
    found += [(m.created_ns, _Wait(group=m.group.name, number=m.number, p2p=True, op=m.kind)) for m in recording.messages[:1]]
    wait = min(found, key=lambda f: f[0])[1] if found else None
    concern: Concern
    if rank in odd:
        concern = "odd"
    elif outcome.kind in _NEVER_CAME and rank in outcome.ranks:
        concern = "missing"
    elif wait is not None:
        concern = "waiting"
    else:
        concern = "unknown" if recording.cut or recording.skipped or not recording.entries else "outside"
    says = wait.says if wait is not None else "waits in no recorded call" if recording.entries else ""
    where = _line(scene, tracks, wait) if wait is not None else ""
    return RankRow(rank=rank, concern=concern, says=says, where=where, unseen=not tracks)


@frozen
class _Wait:
    """The oldest call that a rank has pending."""

    group: str
    number: int
    p2p: bool
    op: str

    @property
    def says(self) -> str:
        return f"waits in a {self.op}" if self.p2p else f"waits in {self.op} #{self.number} of group {self.group}"


def _line(scene: Scene, tracks: Sequence[Track], wait: _Wait) -> str:
    for track in tracks:
        group, i = scene.groups[track.group], wait.number - track.first
        if (group.name, group.point_to_point) == (wait.group, wait.p2p) and track.sites is not None and 0 <= i < len(track.sites):
            return scene.sites[track.sites[i]]
    return ""
