"""The ranks of one attempt, kept from what their processes say.

Who is there, who has left, who raised what, which exit codes a launcher saw, and whether they form the world that was asked for.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

from unhang.diagnosis.redact import redact, redact_command
from unhang.frames import Frame
from unhang.launch import events
from unhang.launch.evidence import guarded
from unhang.launch.listener import Message, Peer
from unhang.launch.watch import RankState, Watch
from unhang.model import Counters
from unhang.records.incident import Ended, Raised

# A rank may train for itself before it joins the others; longer than this nobody does.
ALONE_S = 60.0
# What the hook changes in one rank it changes in all, at about the same time: they are named together.
TOGETHER_S = 3.0


class Reactions(Protocol):
    """What the roster sets off. A `waiting` process holds still until it is sent "go"."""

    def failed(self, waiting: Peer | None) -> None: ...
    def restarted(self) -> None: ...
    def wrong_world(self) -> None: ...
    def answered(self, peer: Peer, message: Message) -> None: ...
    def vanished(self, state: RankState) -> None: ...
    def release(self, peer: Peer) -> None: ...
    def hand_over_output(self, peer: Peer, rank: int) -> None: ...


@dataclass(eq=False)
class RankTable:
    """The listener's handler. `closing` is set once we, the user or a launcher end the ranks: what they say then is no failure."""

    watch: Watch
    _: KW_ONLY
    promised: int | None
    clock: Callable[[], float]
    tell: events.Tell
    reactions: Reactions

    def __post_init__(self) -> None:
        self.peers: dict[Peer, RankState] = {}
        self.exitcodes: dict[int, int] = {}
        self.closing = False
        self.ever = False
        self._launcher_stops = False
        self._former: list[RankState] = []
        self._lingering: list[RankState] = []
        self._job: str | None = None
        self._others: set[Peer] = set()
        self._strangers: list[dict[str, Any]] = []
        # What was overridden or ignored and is not told yet, with the ranks that said so and when the first did.
        self._changes: dict[tuple[str, ...], tuple[set[int], float, tuple[str, int] | None]] = {}

    def states(self, *, former: bool = False) -> list[RankState]:
        """The newest process of each rank; with `former`, also living ones that another process of the same rank has displaced."""
        extra = [s for s in self._former if s.ended is None] if former else []
        return sorted([*self.watch.ranks.values(), *extra], key=lambda s: (s.rank, s.since_s))

    def elsewhere(self) -> dict[int, str]:
        """Where each rank meets, if some that are not watched meet elsewhere: of as many as the watched ones by their own word, which lack them."""
        worlds = {s.told_world for s in self.watch.ranks.values()}
        lacking = {int(h["rank"]): str(h["job"]) for h in self._strangers if h.get("world_size") in worlds} | dict.fromkeys(self.watch.ranks, "")
        return {r: place or str(self._job) for r, place in lacking.items()} if any(lacking.values()) else {}

    def arrived(self, peer: Peer) -> None:
        """A process has said hello."""
        self.ever = True
        rank = peer.hello.get("rank")
        if rank is None:
            return
        # One training after the other is watched; of two at once the one that came first.
        job = peer.hello.get("job")
        if all(s.ended is not None for s in self.watch.ranks.values()):
            if job != self._job and self.watch.ranks:
                # Ranks of the one before are no ranks of this one: Ray may start those of their numbers on another host.
                self._begin_anew()
                self.watch.ranks.clear()
                self._strangers.clear()
            self._job = job
        if job is not None and self._job is not None and job != self._job:
            if not self._others:
                self.tell(events.Note(text="another training runs under the same command; it is not watched"))
            self._others.add(peer)
            self._strangers.append(peer.hello)
            return
        state = self._enter(peer, int(rank))
        self.tell(events.Attached(rank=state.rank, pid=peer.pid, host=state.host, restarts=int(peer.hello.get("restarts") or 0)))
        if peer.hello.get("wants_stdio"):
            self.reactions.hand_over_output(peer, state.rank)

    def message(self, peer: Peer, message: Message) -> None:
        """A process has said something. Raises KeyError, TypeError or ValueError for a malformed message."""
        kind = message["m"]
        if peer in self._others:
            if kind in ("raised", "stopping"):
                self.reactions.release(peer)
            return
        state = self.peers.get(peer)
        if kind == "joined":
            self._joined(peer, message)
        elif kind == "stepping":
            self._stepping(peer, message)
        elif kind == "training":
            # One that counts its processes otherwise (a container inside) counts its threads so too.
            if state is not None and int(message["pid"]) == peer.pid:
                state.tid = None if (tid := message["tid"]) is None else int(tid)
        elif kind == "stopping":
            for worker in message["workers"]:
                if worker.get("exitcode") is not None:
                    self.exitcodes[int(worker["pid"])] = int(worker["exitcode"])
            self._launcher_stops = True
            if self.closing or all(code == 0 for code in self.exitcodes.values()):
                self.reactions.release(peer)
            else:
                self.reactions.failed(peer)
        elif kind in ("evidence", "dumped"):
            self.reactions.answered(peer, message)
        elif kind == "raised":
            self._raised(peer, state, message)
        elif kind == "beat":
            if state is not None:
                self._beat(state, message)
        elif kind in ("overridden", "ignored"):
            if state is not None:
                fields = ("what", "was", "now") if message["m"] == "overridden" else ("what", "value", "why")
                key = (message["m"], *(str(message[field]) for field in fields))
                place = message.get("place")
                where = (str(place[0]), int(place[1])) if place else None
                ranks, _, _ = self._changes.setdefault(key, (set(), self.clock(), where))
                ranks.add(state.rank)
                if len(ranks) >= (self.promised or state.told_world or state.world_size or len(ranks) + 1):
                    self._tell_changes(only=key)
        elif kind == "missed":
            for state in [found for rank in message["ranks"] if (found := self.watch.ranks.get(int(rank))) is not None]:
                state.missed_s = self.clock()
        elif kind == "left":
            if state is not None:
                state.left = True
        elif kind == "exits":
            if state is not None:
                state.exit_frames = _frames(message)
        elif kind == "finished":
            if state is not None:
                state.finished = True
        elif kind == "leaving":
            if state is not None:
                state.announced = True
        else:
            raise ValueError(f"unknown message {kind!r}")

    def gone(self, peer: Peer) -> None:
        """A process has closed its connection: it has ended, or replaced itself by another program."""
        self._others.discard(peer)
        self._tell_changes()
        state = self.peers.pop(peer, None)
        if state is None:
            return
        ended_by_others = self.closing or self._launcher_stops
        by_launcher = ended_by_others and state.raised is None
        state.ended = Ended(at_s=self.clock(), announced=state.announced, by_launcher=by_launcher, finished=state.finished)
        if ended_by_others or state.raised is not None:
            return
        if state.announced and state.alone_s is not None:
            self._alone()
        if state.announced or not state.left:
            self.reactions.vanished(state)

    def still_there(self, state: RankState) -> None:
        """A process that has closed its connection lives on: it belongs to the training no longer, and that is no failure."""
        state.ended = None
        state.left = True
        self._lingering.append(state)

    def look(self, now: float, exists: Callable[[int], bool]) -> None:
        """Now and then: who trains alone for too long, who of those that no longer report has ended, and what is to be told by now."""
        self._tell_changes(until=now - TOGETHER_S)
        for state in [s for s in self._lingering if not exists(s.pid)]:
            self._lingering.remove(state)
            state.ended = Ended(at_s=now, announced=True, by_launcher=False, finished=state.finished)
        if any(s.alone_s is not None and s.ended is None and now - s.alone_s > ALONE_S for s in self.states()):
            self._alone()

    def _alone(self) -> None:
        """What their launcher told them counts for none of those that joined no group."""
        for state in self.states(former=True):
            if state.alone_s is not None:
                state.world_size = 1
        self.reactions.wrong_world()

    def _enter(self, peer: Peer, rank: int) -> RankState:
        before = self.watch.ranks.get(rank)
        if before is not None and before.pid == peer.pid:
            # It has replaced itself by another program.
            before.ended = before.ended or Ended(at_s=self.clock(), announced=True, by_launcher=False)
        elif before is not None:
            # The launcher restarted this rank by itself, or two living processes claim the same rank.
            if before.ended is not None:
                self._begin_anew()
            self._former.append(before)
        local = peer.hello.get("local_rank")
        state = RankState(
            rank=rank,
            pid=peer.pid,
            host=str(peer.hello.get("host") or socket.gethostname()),
            local_rank=None if local is None else int(local),
            told_world=peer.hello.get("world_size"),
            told_local_world=peer.hello.get("local_world_size"),
            since_s=self.clock(),
        )
        self.watch.ranks[rank] = state
        self.peers[peer] = state
        self.watch.begin(state, t=state.since_s)
        return state

    def _begin_anew(self) -> None:
        self._launcher_stops = False
        self.watch.rhythm.forget()
        self.reactions.restarted()

    def _joined(self, peer: Peer, message: Message) -> None:
        rank, world = int(message["rank"]), int(message["world_size"])
        state = self.peers.get(peer)
        if state is None or state.rank != rank:
            if state is not None and self.watch.ranks.get(state.rank) is state:
                del self.watch.ranks[state.rank]
            state = self._enter(peer, rank)
        state.joined, state.left, state.alone_s = True, False, None
        state.world_size, state.backend, state.device = world, message.get("backend"), message.get("device") or state.device
        state.gpu = message.get("gpu") or state.gpu
        state.timeout_s, state.torch = message.get("timeout_s"), message.get("torch")
        self.watch.begin(state, t=self.clock())
        self.tell(events.Joined(rank=rank, world_size=world, backend=str(state.backend), device=state.device))
        twins = [s for s in self.states(former=True) if s is not state and s.joined and s.rank == rank and s.ended is None]
        if twins or (self.promised is not None and world != self.promised):
            self.reactions.wrong_world()

    def _stepping(self, peer: Peer, message: Message) -> None:
        state = self.peers.get(peer)
        if state is None:
            # A training of one process, or one whose launcher told it nothing.
            state = self._enter(peer, next(r for r in range(len(self.watch.ranks) + 1) if r not in self.watch.ranks))
        state.device = message.get("device") or state.device
        state.gpu = message.get("gpu") or state.gpu
        state.torch = message.get("torch") or state.torch
        state.argv = redact_command([str(word) for word in message.get("argv") or ()])
        if state.step == 0:
            state.step = 1
            state.last_step_s = self.clock()
            self.watch.begin(state, t=state.last_step_s)
        if not message.get("initialized"):
            if int(self.promised or state.told_world or 1) > 1:
                state.alone_s = self.clock()
            else:
                state.world_size = 1

    def _raised(self, peer: Peer, state: RankState | None, message: Message) -> None:
        if state is None:
            # A launcher's own exception only sums up what its workers did.
            self.reactions.release(peer)
            return
        state.raised = Raised(type=message["type"], text=redact(message["text"]), frames=_frames(message), at_s=self.clock())
        if self.closing:
            self.reactions.release(peer)
        else:
            self.reactions.failed(peer)

    def _tell_changes(self, *, until: float | None = None, only: tuple[str, ...] | None = None) -> None:
        for key, (ranks, since_s, where) in list(self._changes.items()):
            if (until is not None and since_s > until) or only not in (None, key):
                continue
            del self._changes[key]
            kind, what, first, second = key
            if kind == "overridden":
                self.tell(events.Overridden(what=what, was=first, now=second, ranks=tuple(sorted(ranks)), place=where))
            else:
                self.tell(events.Ignored(what=what, value=first, why=second, ranks=tuple(sorted(ranks))))

    def _beat(self, state: RankState, message: Message) -> None:
        place = message.get("place")
        self.watch.beat(
            state,
            t=self.clock(),
            step=max(int(message.get("step") or 0), state.step),
            groups={name: Counters(enqueued=int(e), completed=int(c)) for name, (e, c) in message["groups"].items()},
            place=Frame(file=place[0], line=int(place[1]), name=place[2]) if place else None,
            sig=int(message["sig"]),
            inside=message.get("inside"),
            promised_s=float(message.get("promised") or 0.0),
        )


def _frames(message: Message) -> tuple[Frame, ...]:
    return tuple(guarded(Frame(file=f, line=n, name=name, code=code, arguments=arguments)) for f, n, name, code, arguments in message["frames"])
