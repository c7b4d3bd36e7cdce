"""Where the ranks of a drawn group went apart: who did what there, and the bars of those that never came."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import replace

from unhang.report.html.scene import Divergence, Doing, Focus, Scene, Side, State, Track

_WORST_FIRST: tuple[Doing, ...] = ("odd", "missing", "waiting", "unknown", "ended", "completed")


def group_at(scene: Scene, name: str, ranks: Collection[int]) -> int | None:
    """The drawn group of this name that most of these ranks belong to; None where none of it is drawn."""
    found = [i for i, g in enumerate(scene.groups) if g.name == name and not g.point_to_point]
    if len(found) < 2:
        return found[0] if found else None
    drawn = {i: {t.rank for t in scene.tracks if t.group == i} | set(scene.groups[i].members) for i in found}
    return max(found, key=lambda i: len(drawn[i].intersection(ranks)))


def focus_on(scene: Scene, name: str | None, number: int | None, ranks: Collection[int]) -> Focus | None:
    """The call of this group in which the first of these ranks waits; None where it is not drawn."""
    if name is None or number is None or (group := group_at(scene, name, ranks)) is None:
        return None
    here = (t for t in scene.tracks if t.group == group and t.rank in ranks and 0 <= number - t.first < len(t.states))
    return min((Focus(group=group, number=number, rank=t.rank) for t in here), key=lambda f: f.rank, default=None)


def sides_of(scene: Scene, group: int, number: int, odd: Collection[int], missing: tuple[int, ...], unknown: tuple[int, ...]) -> tuple[Side, ...]:
    """What each rank did as this number, those who did the same together, the worst first."""
    odd = frozenset(odd)
    kinds: dict[tuple[int, int, int, bool], list[int]] = {}
    for track in scene.tracks:
        i = number - track.first
        if track.group == group and 0 <= i < len(track.states) and track.states[i] != State.NONE:
            site = track.sites[i] if track.sites is not None else 0
            kinds.setdefault((track.ops[i], site, track.states[i], track.rank in odd), []).append(track.rank)
    words: dict[State, Doing] = {State.ISSUED: "waiting", State.STARTED: "waiting", State.COMPLETED: "completed", State.ENDED: "ended"}
    sides = []
    for (op, site, state, is_odd), ranks in kinds.items():
        operation = scene.operations[op]
        doing = "odd" if is_odd else words[State(state)]
        sides.append(Side(ranks=tuple(ranks), operation=operation.name, says=operation.says, site=scene.sites[site], doing=doing))
    if missing:
        sides.append(Side(ranks=missing, doing="missing"))
    if unknown:
        sides.append(Side(ranks=unknown, doing="unknown"))
    return tuple(sorted(sides, key=lambda side: (_WORST_FIRST.index(side.doing), len(side.ranks))))


def with_missing(scene: Scene, divergence: Divergence) -> Scene:
    """The tracks of those that never came, up to the number in which the others wait; one that never used the group gets a track of that alone."""
    number, group = divergence.number, divergence.group
    came = min(
        (t.starts_ns[number - t.first] for t in scene.tracks if t.group == group and t.starts_ns and 0 <= number - t.first < len(t.states)), default=0
    )
    missing = frozenset(divergence.missing)
    drawn = {t.rank for t in scene.tracks if t.group == group}
    tracks = [_extended(t, number, came) if t.group == group and t.rank in missing else t for t in scene.tracks]
    lacking = [r for r in divergence.missing if r not in drawn]
    none = Track(rank=0, group=group, first=number, ops=array("H"), states=b"", starts_ns=array("q") if came else None, sites=array("H"))
    tracks += [_extended(replace(none, rank=r), number, came) for r in lacking]
    return replace(scene, tracks=tuple(tracks))


def _extended(track: Track, number: int, came_ns: int) -> Track:
    lacking = number - track.first - len(track.states) + 1
    # What was dropped as damaged is not filled up.
    if not 0 < lacking <= 4096:
        return track
    starts = track.starts_ns
    if starts is not None:
        starts = starts + type(starts)("q", [max(came_ns, starts[-1] if starts else 0)] * lacking)
    return replace(
        track,
        ops=track.ops + type(track.ops)("H", bytes(2 * lacking)),
        sites=None if track.sites is None else track.sites + type(track.sites)("H", bytes(2 * lacking)),
        states=track.states + bytes([State.MISSING]) * lacking,
        starts_ns=starts,
    )
