"""A scene out of the lanes of flight recorders, of dumps in columns or in objects. Gloo's recorder never tells how an operation ended, which is kept
as it is. Where the ranks of a drawn group went apart: who did what there, and the bars of those that never came.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from unhang.flight import COALESCED
from unhang.flight.entries import Group as DumpGroup
from unhang.flight.entries import Site
from unhang.flight.recording import COMPLETED, ENDED, ISSUED, STARTED
from unhang.flight.timeline_rows import CallKind, Lanes, TimelineRow, numbered
from unhang.frames import Frame, place
from unhang.report.html.scene import Divergence, Doing, Focus, Group, Operation, RankRow, Scene, Side, State, Track

_GroupKey = tuple[str, bool, tuple[int, ...]]

_STATES = {ISSUED: State.ISSUED, STARTED: State.STARTED, COMPLETED: State.COMPLETED, ENDED: State.ENDED}
_OF_END = bytes(_STATES.get(n, State.NONE) for n in range(256))
_OF_GLOO_END = bytes(State.ENDED if n == COMPLETED else _STATES.get(n, State.NONE) for n in range(256))
_MOST_TENSORS = 3


def scene_of(lanes: Mapping[int, Sequence[Lanes]], *, cwd: str = "", hosts: Mapping[int, str] | None = None, until_ns: int = 0) -> Scene:
    """The tracks of all ranks. Lines are shown relative to `cwd`; `until_ns` is when the dumps were taken, 0 where nobody knows."""
    maker = _Maker(cwd, lanes)
    tracks = [maker.track(rank, of, lane) for rank in sorted(lanes) for of in lanes[rank] for lane in of.lanes]
    newest = max((t.starts_ns[-1] for t in tracks if t.starts_ns), default=0)
    return Scene(
        ranks=tuple(RankRow(rank=r, host=(hosts or {}).get(r, "")) for r in sorted(lanes)),
        groups=maker.groups(),
        operations=tuple(Operation(name=name, says=says) for name, says in maker.operations),
        sites=tuple(maker.sites),
        tracks=tuple(tracks),
        until_ns=max(until_ns, newest) if until_ns else 0,
        hosts_differ=len(set((hosts or {}).values())) > 1,
        left_out=sum(of.left_out for each in lanes.values() for of in each),
    )


class _Maker:
    """The tables of all ranks. Lanes number within their own dump."""

    def __init__(self, cwd: str, lanes: Mapping[int, Sequence[Lanes]]) -> None:
        self.cwd = cwd
        self.operations: dict[tuple[str, str], int] = {("", ""): 0}
        self.sites: dict[str, int] = {"": 0}
        self._groups: dict[_GroupKey, int] = {}
        self._descs: dict[_GroupKey, str] = {}
        self._of_group: dict[tuple[int, bool], int] = {}
        # Of most ranks the columns are the same.
        self._ops: dict[tuple[bytes, tuple[CallKind, ...]], array[int]] = {}
        self._lines: dict[tuple[bytes, tuple[Site | None, ...]], array[int]] = {}
        self._declared: dict[str, set[tuple[int, ...]]] = {}
        for group in {id(lane.group): lane.group for each in lanes.values() for of in each for lane in of.lanes}.values():
            if group.members:
                self._declared.setdefault(group.name, set()).add(group.members)

    def groups(self) -> tuple[Group, ...]:
        return tuple(
            Group(name=name, desc=self._descs[name, p2p, members], members=() if p2p else members, point_to_point=p2p)
            for name, p2p, members in self._groups
        )

    def track(self, rank: int, lanes: Lanes, lane: TimelineRow) -> Track:
        ops = self._ops.get((lane.ops, lanes.calls))
        if ops is None:
            ops = self._ops[lane.ops, lanes.calls] = _through(lane.ops, lambda n: self._operation(lanes.calls[n]))
        lines = self._lines.get((lane.sites, lanes.sites))
        if lines is None:
            lines = self._lines[lane.sites, lanes.sites] = _through(lane.sites, lambda n: self._site(lanes.sites[n]))
        return Track(
            rank=rank,
            group=self._group(rank, lane.group, p2p=lane.p2p),
            first=lane.first,
            ops=ops,
            states=lane.ends.translate(_OF_GLOO_END if lane.gloo else _OF_END),
            starts_ns=lane.starts_ns,
            sites=lines,
        )

    def _operation(self, call: CallKind) -> int:
        return numbered(self.operations, (_name(call), _says(call)))

    def _site(self, site: Site | None) -> int:
        if site is None:
            return 0
        file, line, name = site
        return numbered(self.sites, place(Frame(file=file, line=line, name=name), self.cwd))

    def _group(self, rank: int, group: DumpGroup, *, p2p: bool) -> int:
        """A name is no identity: torch gives the same one to all parts when it splits a group. Where a rank tells no members, the only list that has
        it does."""
        known = self._of_group.get((id(group), p2p))
        if known is not None:
            return known
        members = group.members
        if not members:
            told = [m for m in self._declared.get(group.name, ()) if rank in m]
            members = told[0] if len(told) == 1 else ()
        key = (group.name, p2p, members)
        if group.desc or key not in self._descs:
            self._descs[key] = group.desc
        number = self._groups.setdefault(key, len(self._groups))
        if group.members:
            # By the object, which ranks share: to hash all members for each of them takes longer than all the rest.
            self._of_group[id(group), p2p] = number
        return number


def _through(column: bytes, number_of: Callable[[int], int]) -> array[int]:
    """A column in the numbers of all ranks; what is in a table and in no column gets none."""
    ids = array("H", column)
    table = {n: number_of(n) for n in dict.fromkeys(ids)}
    return array("H", map(table.__getitem__, ids))


def _name(call: CallKind) -> str:
    return COALESCED if call.together else call.op


def _says(call: CallKind) -> str:
    """ "6,553,600 × BFloat16", or of several that were launched together "4 × all_reduce"."""
    if call.together:
        return f"{call.together} × {call.op}"
    counts = [f"{n:,}" if n >= 0 else "?" for n in call.elements[:_MOST_TENSORS]]
    if len(call.elements) > _MOST_TENSORS:
        counts.append("…")
    return " × ".join(part for part in (" + ".join(counts), ", ".join(call.dtypes)) if part)


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
