"""What the recorders of all ranks say together: where the job stands still, who is missing or went astray, and what cannot be told.

Every rank waits in the oldest call that it has not completed. A place where ranks wait is a node; from it leads an edge to the place in which each
rank that it lacks waits. At the end of the edges stands what to look at: ranks that wait in nothing, calls that do not fit each other, a circle, or a
call that all have joined. What may surprise: on NCCL many calls are enqueued behind the one that hangs, so that a rank may have "issued" what it will
never run; on Gloo a call that is over may have failed, and nobody waits in it. Long because finding the ends of all chains, and saying what
each end is, need the same graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

from unhang.flight import operations, staleness
from unhang.flight.job_groups import Job, JobGroup, align
from unhang.flight.live_counters import buried, counted
from unhang.flight.outcome import By, Kind, Outcome, Place, SideOf, Step
from unhang.flight.recording import COMPLETED, ENDED, ISSUED, STARTED, Message, Recording, Track
from unhang.flight.staleness import behind, holds_what_is_over, of_one_run
from unhang.flight.voting import Divergence, edit, parted, strayed
from unhang.model import frozen

# Before all others what proves itself, at the end what proves nothing.
_WEIGHT: tuple[Kind, ...] = (
    "op",
    "shape",
    "dtype",
    "order",
    "extra",
    "lacking",
    "missing",
    "p2p-size",
    "p2p-both-send",
    "groups-crossed",
    "p2p-alone",
    "finished-on-some",
    "transport",
    "cannot-tell",
    "nothing-wrong",
)
# What is a reason of its own beside another one; calls that nobody is missing from only beside such calls.
_ROOTS: tuple[Kind, ...] = ("op", "shape", "dtype", "order", "extra", "lacking", "missing", "p2p-size", "p2p-alone")
_HOLDS_UP: dict[Kind, tuple[Kind, ...]] = {
    "transport": (*_ROOTS, "transport"),
    "finished-on-some": (*_ROOTS, "finished-on-some", "transport"),
    "cannot-tell": (),
    "nothing-wrong": (),
}
# A call behind which others went on to complete for so long is waited in by a thread of its own: a stop signal, an asynchronous checkpoint.
_ASIDE_NS = 30_000_000_000


@frozen
class _Node:
    """A place where ranks wait: a number of a meeting, or a message between two ranks."""

    meeting: JobGroup | None
    number: int
    message: tuple[int, Message, int | None] | None = None
    waiting: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()
    since_ns: int = 0
    gave_up: bool = False


@dataclass
class _Graph:
    nodes: dict[object, _Node] = field(default_factory=dict)
    # Where each rank waits.
    of_rank: dict[int, object] = field(default_factory=dict)
    # Places in which ranks wait that went on all the same.
    beside: dict[object, _Node] = field(default_factory=dict)


def judge(recordings: Mapping[int, Recording], *, others: Collection[int] = ()) -> Outcome:
    """The answer of all recordings together, whatever their order. `others`: ranks that are known without one."""
    kept, left = of_one_run(recordings)
    job = align(kept, others=others)
    return replace(Judge(job).outcome(), left_out=tuple(sorted(left.items())))


class Judge:
    """One job. `gone`: ranks that wait in nothing, whatever their recorder says: they have ended, or were seen elsewhere."""

    def __init__(self, job: Job, *, gone: Collection[int] = ()) -> None:
        self.job = job
        self.gone = frozenset(gone)
        old = behind(job)
        self.older, self._doubtful, self.perhaps_older = frozenset(old.ranks), old.doubtful, frozenset(old.perhaps)
        self.counted = counted(job, self.older)
        self.parted = {id(m): found for m in job.meetings if (found := parted(self._voting(m), members=len(m.members))) is not None}
        self.graph = _Graph()
        self._ahead_ns = staleness.ahead(job.meetings)
        compared = self._ahead_ns.keys() >= {rank for rank, r in job.recordings.items() if r.entries}
        self._clocks_ns = staleness.CLOSE_NS if compared else staleness.MOST_NS
        self.aside: tuple[Step, ...] = ()
        self._beside: dict[int, tuple[int, object]] = {}
        self._failed: dict[tuple[int, int], bool] = {}
        self._wait()

    def outcome(self) -> Outcome:
        """The end of the chain that says most; of several the earliest, and beside it the others that hold up the job."""
        ends = [(o, since) for o, since in self._ends()]
        ends += [(o, 0) for m in self.job.meetings if (o := self._silent_parting(m)) is not None]
        ends.sort(key=_rank_of_end)
        found = ends[0][0] if ends else self._quiet()
        told, also = set(found.ranks), list[Outcome]()
        places = {_place_of(found)}
        for other, _ in ends[1:]:
            if other.kind in _HOLDS_UP.get(found.kind, _ROOTS) and _place_of(other) not in places and not told.issuperset(other.ranks):
                places.add(_place_of(other))
                told.update(other.ranks)
                also.append(other)
        if ends and found.kind == "cannot-tell" and (meeting := self._meeting_of(found)) is not None:
            found = replace(found, outside=self._outside(meeting), elsewhere=self._elsewhere(meeting))
        older, perhaps = tuple(sorted(self.older)), tuple(sorted(self.perhaps_older))
        return replace(found, aside=self.aside, older=older, perhaps_older=perhaps, also=tuple(also), counted=self.counted)

    def _meeting_of(self, end: Outcome) -> JobGroup | None:
        """The group in whose collective a chain ends; None where it ends in a message."""
        if end.call.startswith(("send", "receive")):
            return None
        return next((m for m in self.job.meetings if (m.name, m.members) == (end.group_name, end.members)), None)

    def _voting(self, meeting: JobGroup) -> Mapping[int, Track]:
        """What was issued in a group; of an older dump only what was over when it was taken."""
        if self.older.isdisjoint(meeting.tracks):
            return meeting.tracks
        return {r: over for r, t in meeting.tracks.items() if (over := _over(t) if r in self.older else t) is not None}

    def places(self) -> dict[int, Place]:
        """Where each rank waits, of those that do."""
        found = {}
        for rank, key in self.graph.of_rank.items():
            node = self.graph.nodes[key]
            if node.meeting is not None:
                found[rank] = Place(group=node.meeting.name, number=node.number)
            elif node.message is not None:
                found[rank] = Place(group=node.message[1].group.name, number=node.number, is_message=True)
        return found

    def _wait(self) -> None:
        """Find the oldest pending call of every rank, and the nodes that follow from them."""
        first: dict[int, tuple[int, object]] = {}
        late: dict[object, dict[int, int]] = {}
        key: object
        places: dict[object, tuple[JobGroup | None, int, tuple[int, Message, int | None] | None]] = {}

        def waits(rank: int, ns: int, key: object) -> None:
            if rank not in first or ns < first[rank][0]:
                first[rank] = (ns, key)

        for place, meeting in enumerate(self.job.meetings):
            for rank, track in meeting.tracks.items():
                if rank in self.gone:
                    continue
                done = self.job.recordings[rank].done_ns
                beside = False
                for number, ns in sorted(track.pending_ns.items()):
                    if self._over(meeting, track, number):
                        continue
                    key = (place, number)
                    if track.end(number) == ENDED or done - ns < _ASIDE_NS:
                        places[key] = (meeting, number, None)
                        waits(rank, self._by_one_clock(rank, ns), key)
                        break
                    if not beside:
                        places[key] = (meeting, number, None)
                        late.setdefault(key, {})[rank] = self._by_one_clock(rank, ns)
                        beside = True
        for rank, messages in self.job.messages.items():
            if rank in self.gone:
                continue
            beside = False
            for message, source, destination in messages:
                key = ("message", rank, message.number, message.kind, source, destination)
                places[key] = (None, message.number, (rank, message, destination if message.kind == "send" else source))
                ns = self._by_one_clock(rank, message.created_ns)
                if self.job.recordings[rank].done_ns - message.created_ns < _ASIDE_NS:
                    waits(rank, ns, key)
                elif not beside:
                    late.setdefault(key, {})[rank] = ns
                    beside = True
        # What others wait in is waited in, whatever a clock says.
        for key in [key for key in late if any(key == at for _, at in first.values())]:
            for rank, ns in late.pop(key).items():
                waits(rank, ns, key)
        self._beside = {}
        for key, since in late.items():
            for rank, ns in since.items():
                if rank not in self._beside or ns < self._beside[rank][0]:
                    self._beside[rank] = (ns, key)
        # An older dump tells where its rank waited then: with those that wait now it is told of them alone.
        now = {key for rank, (_, key) in first.items() if rank not in self.older}
        first = {rank: at for rank, at in first.items() if rank not in self.older or at[1] not in now}
        self.graph.of_rank = {rank: key for rank, (_, key) in first.items()}
        waiting_in: dict[object, list[int]] = {}
        for rank, (_, key) in first.items():
            waiting_in.setdefault(key, []).append(rank)
        for key, ranks in waiting_in.items():
            self.graph.nodes[key] = self._place(places[key], tuple(sorted(ranks)), _since(first[r][0] for r in ranks))
        beside_them = {key: self._place(places[key], tuple(sorted(ranks)), _since(ranks.values())) for key, ranks in late.items()}
        self.graph.beside |= beside_them
        ordered = sorted(beside_them.items(), key=lambda n: (n[1].since_ns, str(n[0])))
        self.aside = tuple(self._step(node, tuple(r for r in (*node.absent, *node.unseen) if r in self.job.recordings)) for _, node in ordered)

    def _over(self, meeting: JobGroup, track: Track, number: int) -> bool:
        """Whether nobody waits in a call any more: Gloo's has ended, well or not, and nothing shows that it has failed."""
        if not track.gloo or track.end(number) != ENDED:
            return False
        key = (id(meeting), number)
        if key not in self._failed:
            since = min(self._by_one_clock(r, t.pending_ns[number]) for r, t in meeting.tracks.items() if t.end(number) == ENDED)
            self._failed[key] = (
                operations.needs_all(self._op(meeting, number))
                and all(t.end(number) != COMPLETED for t in meeting.tracks.values())
                and any(self._stand(meeting, r, number, since) == "absent" for r in meeting.members)
            )
        return not self._failed[key]

    def _place(self, place: tuple[JobGroup | None, int, tuple[int, Message, int | None] | None], waiting: tuple[int, ...], since: int) -> _Node:
        meeting, number, posted = place
        if meeting is None:
            return _Node(meeting=None, number=number, message=posted, waiting=waiting, since_ns=since)
        stands: dict[str, list[int]] = {}
        inside = frozenset(waiting)
        for rank in meeting.members:
            if rank not in inside:
                stands.setdefault(self._stand(meeting, rank, number, since), []).append(rank)
        gloo_end = all(meeting.tracks[r].gloo and meeting.tracks[r].end(number) == ENDED for r in waiting)
        others = {stand: tuple(ranks) for stand, ranks in stands.items()}
        return _Node(meeting=meeting, number=number, message=None, waiting=waiting, since_ns=since, gave_up=gloo_end, **others)

    def _stand(self, meeting: JobGroup, rank: int, number: int, since: int) -> Literal["absent", "unseen", "ahead", "finished", "joined"]:
        """How a member stands to a call that others have waited in since then."""
        recording, track = self.job.recordings.get(rank), meeting.tracks.get(rank)
        if recording is None:
            return "unseen"
        if (told := self._heard(recording, meeting, number)) is not None:
            return told
        older = rank in self.older or rank in self.perhaps_older or (id(meeting), rank) in self._doubtful
        if older and (track is None or track.last < number or track.end(number) != COMPLETED):
            return "unseen"
        if track is None or track.last < number:
            return "unseen" if self._hides(recording, meeting, number, since) else "absent"
        if track.first > number:
            return "ahead"
        if not track.at(number):
            return "unseen" if recording.skipped else "ahead"
        return "finished" if track.end(number) == COMPLETED else "joined"

    @staticmethod
    def _heard(recording: Recording, meeting: JobGroup, number: int) -> Literal["absent", "unseen", "finished", "joined"] | None:
        """What was heard of a rank whose dump has no call of the group; None where that tells nothing, or nobody listened."""
        track = meeting.tracks.get(recording.rank)
        if recording.heard is None or (track is not None and any(track.ids)):
            return None
        told = recording.heard.get(meeting.name)
        if told is None:
            return None if recording.entries or recording.lost or recording.cut or recording.skipped else "absent"
        if told.most < number:
            return "absent"
        if told.least < number:
            return "unseen"
        return "finished" if told.done >= number else "joined"

    def _by_one_clock(self, rank: int, ns: int) -> int:
        """A time of a rank's host; 0 where none is known."""
        return ns - self._ahead_ns.get(rank, 0) if ns else 0

    def _has_lost(self, recording: Recording, since: int) -> bool:
        """Whether the ring of a rank may have overwritten what it did since then."""
        return recording.lost and self._by_one_clock(recording.rank, recording.oldest_ns) + self._clocks_ns > since

    def _hides(self, recording: Recording, meeting: JobGroup, number: int, since: int) -> bool:
        """Whether a rank may have issued a call that its dump does not hold."""
        if recording.cut or recording.skipped:
            return True
        used = recording.rank in meeting.tracks
        # Counters go by a number that each process gives its groups; without an entry only the default group's is its name.
        told = recording.counters.get(meeting.name) if used or meeting.name == "0" else None
        if told is not None and told < number:
            return False
        if not recording.entries:
            return True
        # The ring keeps the newest of all groups: what is not in it is older than its oldest, or was never issued.
        if not used and self._has_lost(recording, since):
            return True
        # A counter takes messages, too: Gloo's always, NCCL's where the last was one. Against entries that hold what is over it proves nothing.
        gloo = any(t.gloo for t in meeting.tracks.values())
        return told is not None and not gloo and not holds_what_is_over(recording)

    def _lacking(self, key: object) -> tuple[int, ...]:
        """The ranks for which those in a node wait: absent, or in a call that they issued before."""
        node = self._node_at(key)
        if node.meeting is None:
            assert node.message is not None
            partner = node.message[2]
            return () if partner is None or partner in self.older or self._counterpart(node) is not None else (partner,)
        others = {*node.waiting, *node.absent, *node.unseen, *node.finished}
        joined = (r for r in node.meeting.members if r not in others)
        return (*node.absent, *(r for r in joined if self._waits_before(r, node)))

    def _waits_before(self, rank: int, node: _Node) -> bool:
        """Whether a rank that has issued a call waits in another one, and has not been through this one. Messages hold up nothing on NCCL."""
        key = self.graph.of_rank.get(rank)
        other = self.graph.nodes[key] if key is not None else node
        # A rank has no track if only its heartbeats show that it issued the call.
        track = None if node.meeting is None else node.meeting.tracks.get(rank)
        if other is node or other.meeting is None or (track is not None and track.end(node.number) == STARTED):
            return False
        return not (other.meeting is node.meeting and other.number > node.number)

    def _counterpart(self, node: _Node) -> Message | None:
        """The other half of a message, where the partner has posted one and it is this one's turn."""
        assert node.message is not None
        rank, message, partner = node.message
        if partner is None:
            return None
        mine = [m for m, s, d in self.job.messages.get(rank, ()) if m.kind == message.kind and (d if m.kind == "send" else s) == partner]
        wanted = "recv" if message.kind == "send" else "send"
        theirs = [
            m
            for m, s, d in self.job.messages.get(partner, ())
            if m.kind == wanted
            and ((s if wanted == "recv" else d) == rank or (wanted == "recv" and m.source is None))
            and m.group.name == message.group.name
        ]
        turn = mine.index(message) if message in mine else 0
        return theirs[turn] if turn < len(theirs) else None

    def _ends(self) -> Iterable[tuple[Outcome, int]]:
        """What stands at the ends of all chains."""
        onward: dict[object, object] = {}
        free: dict[object, tuple[int, ...]] = {}
        todo = list(self.graph.nodes)
        for key in todo:
            if key in onward or key in free:
                continue
            node, lacking = self._node_at(key), self._lacking(key)
            free[key] = tuple(r for r in lacking if r not in self.graph.of_rank and r not in self._beside)
            if lacking and not free[key] and not self._was(node) and self._parted_at(node) is None:
                del free[key]
                onward[key] = next((self.graph.of_rank[r] for r in lacking if r in self.graph.of_rank), None) or self._beside[lacking[0]][1]
                todo.append(onward[key])
        # Whoever waits for ranks that wait comes to the same end as they: it is looked at once, with the longest way to it.
        led_to = {onward[key] for key in self.graph.nodes if key in onward}
        longest: dict[object, tuple[object, ...]] = {}
        seen = set[object]()
        for start in (*(key for key in self.graph.nodes if key not in led_to), *(key for key in self.graph.nodes if key in led_to)):
            if start in seen:
                continue
            path = dict[object, None]()
            at = start
            while at not in path and at in onward:
                path[at] = None
                at = onward[at]
            way = (*path, at)
            # What comes behind a call in which it is not told that anybody waits has its own end.
            seen.update(takewhile(self.graph.nodes.__contains__, way))
            if not all(key in self.graph.nodes for key in way):
                yield self._at_end(way, free)
                continue
            end = frozenset(way[way.index(at) : -1]) if at in path else at
            if end not in longest or self._is_longer(way, longest[end]):
                longest[end] = way
        for way in longest.values():
            yield self._at_end(way, free)

    def _at_end(self, way: tuple[object, ...], free: Mapping[object, tuple[int, ...]]) -> tuple[Outcome, int]:
        """What stands at the end of a way; one that ends in a circle ends with a place that it has come through."""
        at = way[-1]
        if (begin := way.index(at)) < len(way) - 1:
            return self._circle(way[begin:-1]) if self._proves(way[:-1], None) else self._undecided(way[:-1])
        end = self._end(at, free[at], way)
        return end if self._proves(way, end[0]) else self._undecided(way)

    def _is_longer(self, way: tuple[object, ...], other: tuple[object, ...]) -> bool:
        if len(way) != len(other):
            return len(way) > len(other)
        return [self._node_at(key).waiting for key in way] < [self._node_at(key).waiting for key in other]

    def _node_at(self, key: object) -> _Node:
        return self.graph.nodes[key] if key in self.graph.nodes else self.graph.beside[key]

    def _proves(self, path: tuple[object, ...], end: Outcome | None) -> bool:
        """Whether a chain tells what holds it up. Beside a call that never ends ranks may train: only that somebody is missing from it may be why."""
        return all(key in self.graph.nodes for key in path) or (end is not None and end.kind == "missing")

    def _undecided(self, path: tuple[object, ...]) -> tuple[Outcome, int]:
        """A chain that leads to a rank of which nobody tells whether it waits."""
        until = next(n for n, key in enumerate(path) if key not in self.graph.nodes)
        node = self.graph.nodes[path[until - 1]]
        steps = self._steps(path[:until])
        if node.meeting is not None:
            return self._outcome("cannot-tell", node, ranks=node.waiting, path=steps), node.since_ns
        return replace(self._message_end(node, (), steps), kind="cannot-tell", ranks=node.waiting, sides=()), node.since_ns

    def _was(self, node: _Node) -> bool:
        """Whether only older dumps tell that anybody waits there."""
        return self.older.issuperset(node.waiting)

    def _parted_at(self, node: _Node) -> Divergence | None:
        if self._was(node):
            return None
        found = self.parted.get(id(node.meeting)) if node.meeting is not None else None
        return found if found is not None and found.number <= node.number else None

    def _end(self, key: object, free: tuple[int, ...], path: tuple[object, ...]) -> tuple[Outcome, int]:
        node = self._node_at(key)
        steps = self._steps(path)
        if node.meeting is None:
            return self._message_end(node, free, steps), node.since_ns
        meeting = node.meeting
        if (found := self._parted_at(node)) is not None:
            return self._parting(meeting, found, node, steps), node.since_ns
        kind: Kind
        ranks = free
        sides: tuple[SideOf, ...] = ()
        by: By = "nothing"
        # On Gloo whoever sends may be through while others are not; only what needs all proves that somebody is missing.
        needs_all = operations.needs_all(self._op(meeting, node.number))
        if self._was(node):
            kind, ranks = "cannot-tell", node.waiting
        elif free and node.gave_up and not needs_all:
            kind = "cannot-tell"
        elif free:
            kind = "missing"
        elif (unfit := self._sums(node)) is not None:
            kind, sides, by = "shape", unfit, "sums"
            ranks = tuple(r for s in unfit for r in s.ranks)
        elif node.unseen or node.ahead or not (meeting.known or (node.finished and needs_all)):
            kind, ranks = "cannot-tell", node.waiting
        else:
            # Also those who were to wait in a message, and have come.
            node = replace(node, waiting=tuple(sorted((*node.waiting, *node.joined))))
            kind, ranks = ("finished-on-some" if node.finished else "transport"), node.waiting
            if kind == "transport" and (under := buried(self.job, meeting, node.number, node.waiting)):
                return replace(self._outcome("cannot-tell", node, ranks=node.waiting, path=steps), buried=under), node.since_ns
            if kind == "transport" and (unstarted := self._unstarted(meeting, node.number)):
                return replace(self._outcome(kind, node, ranks=unstarted, path=steps), unstarted=unstarted), node.since_ns
        return self._outcome(kind, node, ranks=ranks, sides=sides, by=by, path=steps), node.since_ns

    @staticmethod
    def _unstarted(meeting: JobGroup, number: int) -> tuple[int, ...]:
        """Who has issued a call that others have started: not every version tells, and where none has started nothing is told."""
        ends = {r: t.end(number) for r, t in meeting.tracks.items()}
        return tuple(sorted(r for r, end in ends.items() if end == ISSUED)) if STARTED in ends.values() else ()

    def _outside(self, meeting: JobGroup) -> tuple[int, ...]:
        """Ranks that have not used a group, and may belong to it all the same where the recorders do not tell its members."""
        return () if meeting.known else tuple(r for r in sorted(self.job.recordings) if r not in meeting.members)

    def _elsewhere(self, meeting: JobGroup) -> tuple[Step, ...]:
        """Where those wait who may belong to a group."""
        keys = dict.fromkeys(self.graph.of_rank[r] for r in self._outside(meeting) if r in self.graph.of_rank)
        return self._steps(tuple(keys))

    def _outcome(
        self,
        kind: Kind,
        node: _Node,
        *,
        ranks: tuple[int, ...],
        sides: tuple[SideOf, ...] = (),
        by: By = "nothing",
        path: tuple[Step, ...] = (),
    ) -> Outcome:
        meeting = node.meeting
        assert meeting is not None
        return Outcome(
            kind=kind,
            group=meeting.shown,
            group_name=meeting.name,
            number=node.number,
            call=self._call(meeting, node.number),
            members=meeting.members,
            known=meeting.known,
            ranks=tuple(sorted(ranks)),
            waiting=node.waiting,
            finished=node.finished,
            unseen=node.unseen,
            ahead=node.ahead,
            gave_up=node.gave_up,
            sides=sides,
            by=by,
            path=path,
        )

    def _call(self, meeting: JobGroup, number: int) -> str:
        votes = Counter(call for t in meeting.tracks.values() if (call := t.at(number)))
        return self.job.calls[min(votes, key=lambda c: (-votes[c], self.job.calls[c]))] if votes else ""

    def _op(self, meeting: JobGroup, number: int) -> str:
        return self._call(meeting, number).split(" ")[0]

    def _sums(self, node: _Node) -> tuple[SideOf, ...] | None:
        """all_to_all: what all send is what all receive. Only where every member tells. Who is wrong they do not tell: ranks send unequally much, and
        of the sums of two the one that is like the others' may be the one that is wrong."""
        meeting = node.meeting
        if meeting is None or not meeting.known:
            return None
        told = {r: s for r in meeting.members if r in meeting.tracks and (s := meeting.tracks[r].sums.get(node.number)) is not None}
        if len(told) < len(meeting.members) or sum(s for s, _ in told.values()) == sum(g for _, g in told.values()):
            return None
        sides: dict[tuple[int, int], list[int]] = {}
        for rank, sums in sorted(told.items()):
            sides.setdefault(sums, []).append(rank)
        ordered = sorted(sides.items(), key=lambda s: (-len(s[1]), s[0]))
        call = self._call(meeting, node.number)
        return tuple(SideOf(call=f"{call} {sent}>{got}", ranks=tuple(ranks)) for (sent, got), ranks in ordered)

    def _parting(self, meeting: JobGroup, found: Divergence, node: _Node | None, path: tuple[Step, ...]) -> Outcome:
        sides = tuple(SideOf(call=self.job.calls[call], ranks=ranks) for call, ranks in found.sides)
        change = None
        if found.odd and found.meant is not None:
            usual = max((meeting.tracks[r] for r in found.sides[0][1]), key=lambda t: t.last)
            changes = {edit(meeting.tracks[r], usual, found.number) for r in found.odd}
            change = next(iter(changes)) if len(changes) == 1 else None
        kind: Kind = change.change if change is not None and change.change != "content" else _difference(sides)
        everybody = tuple(sorted(r for s in sides for r in s.ranks))
        return Outcome(
            kind=kind,
            group=meeting.shown,
            group_name=meeting.name,
            number=found.number,
            call=sides[0].call,
            members=meeting.members,
            known=meeting.known,
            ranks=found.odd or everybody,
            waiting=node.waiting if node is not None else (),
            finished=tuple(sorted(r for r, t in meeting.tracks.items() if t.end(found.number) == COMPLETED)),
            unseen=tuple(r for r in meeting.members if not self._recorded(r) or r in self.older),
            ahead=tuple(sorted(r for r, t in meeting.tracks.items() if t.first > found.number and self._recorded(r))),
            sides=sides,
            by="majority" if found.odd else "nothing",
            edit=change,
            path=path,
            late=() if node is None else self._late(meeting, found, node.since_ns),
        )

    def _recorded(self, rank: int) -> bool:
        """Whether there is a dump of a rank; one that is watched may have none."""
        recording = self.job.recordings.get(rank)
        return recording is not None and (recording.heard is None or recording.entries > 0)

    def _late(self, meeting: JobGroup, found: Divergence, since: int) -> tuple[tuple[int, int], ...]:
        """Who has not come to the number at which others parted, and is free."""
        free = (r for r in meeting.members if r not in self.graph.of_rank and r not in self._beside)
        absent = (r for r in free if self._stand(meeting, r, found.number, since) == "absent")
        return tuple((r, meeting.tracks[r].last if r in meeting.tracks else 0) for r in absent)

    def _silent_parting(self, meeting: JobGroup) -> Outcome | None:
        """Ranks that issued different calls in a group in which nobody waits: data went astray, or it is where everything ended."""
        found = self.parted.get(id(meeting))
        if found is None or any(n.meeting is meeting and not self._was(n) for n in self.graph.nodes.values()):
            return None
        return self._parting(meeting, found, None, ())

    def _message_end(self, node: _Node, free: tuple[int, ...], path: tuple[Step, ...]) -> Outcome:
        assert node.message is not None
        rank, message, partner = node.message
        other = self._counterpart(node)
        both = (rank,) if partner is None else tuple(sorted({rank, partner}))
        kind: Kind
        if other is not None:
            kind = "p2p-size" if (other.elements, other.dtypes) != (message.elements, message.dtypes) else "transport"
            ranks = both
        elif partner is None or self._was(node) or self._hides_messages(partner, node.since_ns):
            kind, ranks = "cannot-tell", (rank,)
        else:
            kind, ranks = "p2p-alone", (partner,)
        return Outcome(
            kind=kind,
            group=message.group.name,
            group_name=message.group.name,
            number=node.number,
            call=_words(message, rank, partner),
            members=both,
            ranks=ranks,
            waiting=node.waiting,
            unseen=(partner,) if kind == "cannot-tell" and partner is not None else (),
            sides=() if other is None or partner is None else _message_sides(message, rank, other, partner),
            path=path,
        )

    def _hides_messages(self, rank: int, since: int) -> bool:
        """Whether a rank may have posted a message since then that its dump does not hold."""
        recording = self.job.recordings.get(rank)
        if recording is None or recording.cut or recording.skipped or not recording.entries or rank in self.older:
            return True
        return self._has_lost(recording, since)

    def _circle(self, circle: tuple[object, ...]) -> tuple[Outcome, int]:
        begin = min(range(len(circle)), key=lambda n: (self.graph.nodes[circle[n]].since_ns, self.graph.nodes[circle[n]].waiting))
        circle = circle[begin:] + circle[:begin]
        nodes = [self.graph.nodes[key] for key in circle]
        sends = all(n.message is not None and n.message[1].kind == "send" for n in nodes)
        first, ranks = nodes[0], tuple(sorted({r for n in nodes for r in n.waiting}))
        steps = self._steps(circle)
        odd, by = self._out_of_order(nodes)
        outcome = Outcome(
            kind="p2p-both-send" if sends else "groups-crossed",
            group=steps[0].group,
            group_name=first.meeting.name if first.meeting is not None else steps[0].group,
            number=first.number,
            call=steps[0].call,
            members=ranks,
            ranks=odd or ranks,
            waiting=ranks,
            path=steps,
            by=by,
        )
        return outcome, first.since_ns

    @staticmethod
    def _out_of_order(nodes: Sequence[_Node]) -> tuple[tuple[int, ...], By]:
        """Who came to the wrong one of two groups first; () where that cannot be told."""
        if len(nodes) != 2 or nodes[0].meeting is None or nodes[1].meeting is None or nodes[0].meeting is nodes[1].meeting:
            return (), "nothing"
        return strayed((nodes[0].meeting, nodes[1].meeting), (nodes[0].number, nodes[1].number), (nodes[0].waiting, nodes[1].waiting))

    def _steps(self, path: tuple[object, ...]) -> tuple[Step, ...]:
        return tuple(self._step(self._node_at(key), self._lacking(key)) for key in path)

    def _step(self, node: _Node, lacking: tuple[int, ...]) -> Step:
        if node.meeting is not None:
            group, call = node.meeting.shown, self._call(node.meeting, node.number)
        else:
            assert node.message is not None
            group, call = node.message[1].group.name, _words(node.message[1], node.message[0], node.message[2])
        return Step(group=group, number=node.number, call=call, waiting=node.waiting, lacking=lacking)

    def _quiet(self) -> Outcome:
        """Nobody waits, and nothing differs: as far as can be seen."""
        recordings = self.job.recordings
        blind = {r for r in self.job.world if r not in recordings or recordings[r].cut or recordings[r].skipped or not recordings[r].entries}
        unseen = tuple(sorted(blind | self.older | self.perhaps_older))
        apart = tuple(sorted({r for m in self.job.meetings for r in _never_met(m)}))
        unproven = any(t.gloo and t.end(t.last) == ENDED for m in self.job.meetings for t in m.tracks.values())
        last = [step for m in self.job.meetings if (step := self._newest(m)) is not None]
        pending = any(not c.lagging for c in self.counted)
        doubtful = unseen or apart or unproven or pending or self.aside or any(s.lacking for s in last) or not self.job.world_known
        return Outcome(
            kind="cannot-tell" if doubtful else "nothing-wrong",
            members=self.job.world,
            known=self.job.world_known,
            unseen=unseen,
            ahead=apart,
            last=tuple(sorted(last, key=lambda s: (not s.lacking, -len(s.waiting), s.group))),
            unproven=unproven,
        )

    def _newest(self, meeting: JobGroup) -> Step | None:
        """The newest call of a group, and who may have been wanted in it and has not issued it; None where it is pending."""
        number = max(t.last for t in meeting.tracks.values())
        if any(t.end(number) in (ISSUED, STARTED) for t in meeting.tracks.values()):
            return None

        def lacks(rank: int) -> bool:
            recording, track = self.job.recordings.get(rank), meeting.tracks.get(rank)
            if recording is None or not recording.entries or recording.cut or recording.skipped or rank in self.older or rank in self.perhaps_older:
                return False
            return not recording.lost if track is None else track.last < number

        return Step(
            group=meeting.shown,
            number=number,
            call=self._call(meeting, number),
            waiting=tuple(sorted(r for r, t in meeting.tracks.items() if t.last >= number)),
            lacking=tuple(sorted(r for r in (*meeting.members, *self._outside(meeting)) if lacks(r))),
        )


def _since(times_ns: Iterable[int]) -> int:
    """The earliest; 0 where none is known."""
    return min((ns for ns in times_ns if ns), default=0)


def _place_of(o: Outcome) -> tuple[object, ...]:
    return o.group_name, o.number, o.call, o.members if o.call.startswith(("send", "receive")) else ()


def _rank_of_end(end: tuple[Outcome, int]) -> tuple[object, ...]:
    """What says most, then what began first; where nothing can be told, what most ranks wait in. Of one end the longest way to it."""
    o, since = end
    most = -len(o.waiting) if o.kind == "cannot-tell" else 0
    return _WEIGHT.index(o.kind), most, since, o.group, o.number or 0, o.waiting, -len(o.path), [(s.group, s.number or 0, s.waiting) for s in o.path]


def _over(track: Track) -> Track | None:
    """The calls of a track before the first that had not completed; None without any."""
    until = min(track.pending_ns, default=track.last + 1) - track.first
    return None if until <= 0 else replace(track, ids=track.ids[:until], ends=track.ends[:until], pending_ns={})


def _never_met(meeting: JobGroup) -> tuple[int, ...]:
    """Ranks whose window begins behind the end of another one's: nothing of theirs can be compared."""
    earliest = min((t.last for t in meeting.tracks.values()), default=0)
    return tuple(r for r, t in meeting.tracks.items() if t.first > earliest)


def _difference(sides: tuple[SideOf, ...]) -> Kind:
    """What two calls differ in: the operation, its sizes, or its dtypes."""
    differ = operations.differences(sides[0].call, sides[1].call)
    return "op" if "op" in differ else "shape" if "shape" in differ else "dtype"


def _words(message: Message, rank: int, partner: int | None) -> str:
    to = "any rank" if partner is None else f"rank {partner}"
    return f"send to {to}" if message.kind == "send" else f"receive from {to}"


def _message_sides(message: Message, rank: int, other: Message, partner: int) -> tuple[SideOf, ...]:
    """The sender first."""
    both = sorted(((message, rank), (other, partner)), key=lambda side: side[0].kind != "send")
    return tuple(SideOf(call=f"{m.kind} {m.elements} {'/'.join(m.dtypes)}".strip(), ranks=(r,), number=m.number) for m, r in both)
