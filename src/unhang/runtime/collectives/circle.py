"""The ranks of one process group, the count of their guarded calls, and how one call ends: alike for all of them.

Each guarded call has a number, the same on all ranks. Before a call of a new kind travels, all ranks say in the store what they want: nothing is sent
unless it fits together. A kind that comes often gets a lane of its own, in which nothing else ever travels, and goes without asking: ranks that
disagree then stand in different lanes, where they wait and can be told apart, instead of reading each other's bytes.

A call that does not get on is closed by its number. Everybody reports what it knows, one of them writes down what is so, all obey it, and whoever
comes late finds it there. Lanes are broken then, and opened anew by the next call.

Long because agreeing, ending and exchanging share one count of calls and one alarm, and every interleaving of them has to be seen in one place.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn

import msgspec
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unhang.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, LatePeer, StoreLost
from unhang.runtime.collectives import lane as lanes
from unhang.runtime.collectives import observers, places
from unhang.runtime.collectives.board import Board
from unhang.runtime.collectives.deadlines import learned, waits_for
from unhang.runtime.collectives.lane import OPENS_WITHIN_S, GlooLane, Lane, StoreLane, graveyard
from unhang.runtime.collectives.meeting import Meeting, Moved
from unhang.runtime.collectives.nccl_lane import NcclLane, store_beside
from unhang.runtime.collectives.places import FINISHED

# How long a wait may go on before it is looked whether somebody has raised the alarm.
_LOOK_S = 0.25
# How long the others have to report once one has given a call up. Whoever waits looks four times a second.
_GRACE_S = 1.5
# What comes this often is worth connections of its own.
_OFTEN = 3
# Opening one takes up to 26 ms: it does not give way to a kind that comes as often as itself.
_IDLE_CALLS = 64
# Of connections, once all have said that they come.
_OPENS_S = 5.0
# What is under way in a broken lane ends at once, but for sends that Gloo forgets, which touch no memory.
_ENDS_WITHIN_S = 2.0
_TOLD = "told by another rank"
_BROKE = "the connection broke"
_ALL_OF_IT = "/!"
_OUTERMOST = "main"
_DONE, _CLOSED = b"done", b"closed"
_ARRIVED = 1
_DISSENTED = 1 << 32


class Ended(CollectiveError):
    """Another rank has ended what all of them were in."""


class Call(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What all ranks have to want alike. `what` is the collective; `detail` its operation, root and the order of dimensions."""

    what: str
    numel: int
    dtype: str
    device: str
    chunk: int
    detail: str = ""

    def __str__(self) -> str:
        if not self.dtype:
            return self.what
        pieces = f", in pieces of {self.chunk:,}" if self.chunk < self.numel else ""
        detail = f", {self.detail}" if self.detail else ""
        return f"{self.what} of {self.numel:,} {self.dtype.removeprefix('torch.')} elements ({self.device}{detail}{pieces})"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank knows of a call that was closed; `done` of `chunks` were complete for it."""

    rank: int
    says: str
    call: str = ""
    done: int = 0
    chunks: int = 0
    place: str | None = None
    # Its own error: nothing that others did.
    own: bool = False


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended for all ranks. Ranks are global ones."""

    number: int
    scope: str
    call: str
    says: str
    missing: tuple[int, ...]
    reports: tuple[Report, ...]
    places: dict[int, str]
    waited_s: float


class _Go(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided before a call: `how` is common, own (a lane of its own), anew (all lanes), differs or closed."""

    how: str
    odd: tuple[int, ...] = ()
    calls: dict[int, str] = {}


_GIVEN_UP = msgspec.json.encode(_Go(how="closed"))


class _State(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A rank's own view, which has to be everybody's: how often it has seen this call, which common lane it has, and what it broke the last for."""

    call: Call
    seen: int
    common: str
    heeded: str


@dataclass
class _Scope:
    """Counts calls by itself, so that what went wrong in an evaluation is left behind with it."""

    name: str
    number: int = 0
    finished: int = 0


@dataclass
class Turn:
    """One guarded call of this rank."""

    number: int
    scope: str
    call: Call
    deadline_s: float
    lane: Lane | None = None
    works: list[Any] = field(default_factory=list)
    done: int = 0
    chunks: int = 0
    reported: bool = False
    committed: bool = False
    # Of the evaluation around it, as it was told last.
    progress: bytes | None = None
    moved_s: float = field(default_factory=time.monotonic)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> str:
        return f"{self.scope}/{self.number}"

    def moved(self) -> None:
        """Something was completed: the deadline begins anew."""
        self.moved_s = time.monotonic()

    @property
    def left_s(self) -> float:
        return self.moved_s + self.deadline_s - time.monotonic()


# By weak references to their groups: whoever destroys a group waits for its threads, which end only once nothing refers to it any more.
_circles: dict[weakref.ref[Any], Circle] = {}
_of_the_parent: list[Circle] = []
_circles_lock = threading.RLock()


class Circle:
    """Of one process group, in one process. One call at a time: a second thread waits for its turn."""

    def __init__(self, group: Any) -> None:
        """Without a group: of a process that trains alone."""
        self._group = None if group is None else weakref.ref(group)
        self.rank: int = 0 if group is None else dist.get_rank(group)
        self.size: int = 1 if group is None else dist.get_world_size(group)
        self.ranks: tuple[int, ...] = (0,) if group is None else tuple(dist.get_process_group_ranks(group))
        self.me = self.ranks[self.rank]
        self._lock = threading.RLock()
        self._scopes = [_Scope(_OUTERMOST)]
        self._common: dict[str, Lane] = {}
        self._common_key = ""
        self._own: dict[Call, Lane] = {}
        # By the count of turns, which is the same on all ranks.
        self._turns = 0
        self._used: dict[Call, int] = {}
        self._seen: dict[Call, int] = {}
        # Keys of the last agreement, commit and exchange.
        self._read: list[str] = []
        self._committed: list[str] = []
        self._exchanged_at = ""
        # The call that was given up last, by anybody, and the last that we have drawn the consequences of.
        self.alarms = 0
        self._alarm = ""
        self._alarm_lock = threading.Lock()
        self._heeded = ""
        # Of the round that this rank is in, once it has met the others.
        self.board: Board | None = None
        self.meeting: Meeting | None = None
        self._owed: list[Callable[[Board], object]] = []
        if self.size > 1:
            root = Board.beside(f"unhang/{c10d._get_process_group_name(group)}/{_fingerprint(self.ranks)}")
            self.meeting = Meeting(root, self.ranks, self.me)
            places.answer(self)

    @property
    def group(self) -> Any:
        """None once it has been destroyed."""
        return None if self._group is None else self._group()

    # -- meeting

    def entered(self) -> None:
        """In the round of the meeting, from now on."""
        assert self.meeting is not None
        with self._alarm_lock:
            board = self.meeting.board
            if board is None:
                return
            if self.board is None or self.board.name != board.name:
                self.alarms, self._alarm, self._heeded = 0, "", ""
                self.board = board
            owed, self._owed = self._owed, []
        for tells in owed:
            tells(board)

    def _meet(self, deadline_s: float) -> bool:
        """Until this rank is among the others; whether without the first of them, which has not come within the deadline."""
        assert self.meeting is not None
        without = self.meeting.meet(deadline_s)
        self.entered()
        return without

    def _tell(self, tells: Callable[[Board], object]) -> None:
        """At once, or as soon as we have met the others: whoever fails does not wait for them."""
        assert self.meeting is not None
        if self.board is None:
            self._owed.append(tells)
            self.meeting.hello()
            self.entered()
        else:
            tells(self.board)

    def _moves(self) -> None:
        """Raises Moved where the others are elsewhere."""
        assert self.meeting is not None
        if not self.meeting.settled and self.meeting.move():
            self.entered()
            raise Moved

    # -- calls that travel

    @contextmanager
    def turn(self, call: Call, deadline_s: float) -> Iterator[Turn]:
        """A call that has been agreed on, with the lane that it travels in; None for a circle of one. Whatever fails inside closes it for all."""
        with self._lock:
            turn = self._begun(call, deadline_s)
            try:
                if self.size > 1:
                    self._heed(turn)
                    turn.lane = self._own.get(call) or self._asked(turn)
                    turn.lane.expect(deadline_s)
                    if call in self._own:
                        self._used[call] = self._turns
                yield turn
                self._finish(turn)
            except CollectiveError as e:
                if turn.works:
                    self._break(turn.works)
                self._observed(turn, e)
                raise
            except BaseException as e:
                self._abandoned(turn, e)
                self._observed(turn, e)
                raise
            self._observed(turn, None)

    def _observed(self, turn: Turn, error: BaseException | None) -> None:
        if observers.observers:
            seconds = time.monotonic() - turn.began_s
            call = turn.call
            seen = observers.Observed(what=call.what, ranks=self.ranks, numel=call.numel, dtype=call.dtype, seconds=seconds, error=error)
            observers.tell(seen)

    def preparing(self, what: str) -> _Preparing:
        """What is raised inside, before a call, ends the call for the others as well: they would wait for us, and be one call ahead ever after."""
        return _Preparing(self, what)

    def refused(self, what: str, error: Exception) -> None:
        with self._lock:
            self._abandoned(self._begun(Call(what=what, numel=0, dtype="", device="", chunk=0), 0.0), error)

    def _begun(self, call: Call, deadline_s: float) -> Turn:
        scope = self._scopes[-1]
        scope.number += 1
        self._turns += 1
        waits_for(deadline_s)
        return Turn(number=scope.number, scope=scope.name, call=call, deadline_s=deadline_s)

    def _abandoned(self, turn: Turn, error: BaseException) -> None:
        """By an error of ours, or an interrupt: the others must not wait for us."""
        if self.size == 1:
            return
        says, place = f"rank {self.me}: {_said(error)}", places.here()

        def tells(board: Board) -> None:
            self._refuse(turn)
            self._report(turn, says, own=True, place=place)

        with contextlib.suppress(StoreLost):
            self._tell(tells)
        self._break(turn.works)
        with contextlib.suppress(StoreLost):
            if self.board is not None:
                self._heeded = self.listen(self.board)

    def _heed(self, turn: Turn) -> None:
        """An alarm of before: the others have broken their lanes, and maybe given up this very call."""
        if self._heeded == self._alarm:
            return
        self._heeded = self._alarm
        self._break([])
        self._told_of(turn)

    def _told_of(self, turn: Turn) -> None:
        """Raises where the last alarm is about this call, or about everything in its scope."""
        if self._alarm == turn.key:
            self.close(turn, _TOLD)
        if self._ends(turn.scope):
            self._break(turn.works)
            self._heeded = self._alarm
            raise self._ended() from None

    def _ends(self, scope: str) -> bool:
        """Whether the last alarm is about everything in this scope, or in one around it."""
        return self._alarm.endswith(_ALL_OF_IT) and f"{scope}/".startswith(self._alarm[: -len(_ALL_OF_IT) + 1])

    def _ended(self) -> Ended:
        assert self.board is not None
        says = self.board.look(f"{self._alarm.removesuffix(_ALL_OF_IT)}/says")
        return Ended((says or b"another rank has ended it").decode())

    def _finish(self, turn: Turn) -> None:
        if self.board is not None and places.are_old():
            # This process stood still. What the others had sent before they gave up is still in our sockets, and has just been taken for an answer.
            self.listen(self.board)
        if self._alarm == turn.key and not turn.committed:
            self.close(turn, _TOLD)
        self._scopes[-1].finished = turn.number
        learned.saw(turn.call.what, time.monotonic() - turn.began_s)

    def listen(self, board: Board) -> str:
        """The call, or scope, that was given up last by anybody. They are numbered: what a thread has read may be old when it is believed."""
        number = int(board.look("alarms") or b"0")
        if number > self.alarms and (key := board.look(f"alarm/{number}")) is not None:
            with self._alarm_lock:
                if number > self.alarms:
                    self.alarms, self._alarm = number, key.decode()
        return self._alarm

    def _raise_alarm(self, key: str) -> None:
        assert self.board is not None
        number = self.board.count("alarms")
        self.board.put(f"alarm/{number}", key.encode())

    def has_finished(self, key: str) -> bool:
        scope, _, number = key.rpartition("/")
        return number.isdecimal() and any(scope == known.name and int(number) <= known.finished for known in self._scopes)

    def wait(self, turn: Turn, work: Any) -> None:
        """Until `work` is complete. Raises what the others were told where it is not going to be."""
        assert turn.lane is not None
        while True:
            try:
                if turn.lane.ended(work, max(0.001, min(_LOOK_S, turn.left_s))):
                    turn.moved()
                    return
            except RuntimeError as e:
                self.close(turn, f"{_BROKE}: {_first_line(e)}")
            self._look_around(turn)

    def _look_around(self, turn: Turn) -> None:
        self._hear(turn)
        if turn.left_s <= 0:
            self.close(turn, f"nothing moved for {turn.deadline_s:g} s")

    def _hear(self, turn: Turn) -> None:
        """What the others have told meanwhile: an alarm, or that who is waited for goes on with its part of the evaluation."""
        self._moves()
        assert self.board is not None
        self.listen(self.board)
        self._told_of(turn)
        if turn.scope != _OUTERMOST and (progress := self.board.look(f"{turn.scope}/progress")) != turn.progress:
            turn.progress = progress
            turn.moved()

    def close(self, turn: Turn, says: str) -> NoReturn:
        """Ends the call for all ranks, and raises what they are told."""
        assert self.board is not None
        self._break(turn.works)
        closed = self._closed(turn, says)
        self._heeded = self.listen(self.board)
        places.missed([rank for rank in closed.missing if rank != self.me])
        self._raise(turn, closed, late=self.me in closed.missing)

    def _closed(self, turn: Turn, says: str) -> Closed:
        assert self.board is not None
        board, key = self.board, turn.key
        earlier = board.look(f"{key}/closed")
        if earlier is None:
            waited_s = time.monotonic() - turn.began_s
            self._refuse(turn)
            reports = self._report(turn, says)
            # The last to report need not wait for anybody; where the first has gone, somebody else writes down what is so.
            until = time.monotonic() + (0 if reports == self.size else _GRACE_S if reports == 1 else 2 * _GRACE_S)
            while earlier is None and time.monotonic() < until:
                if reports == 1 and len(self._reports(key)) == self.size:
                    break
                earlier = board.wait(f"{key}/closed", 0.05)
            earlier = earlier or board.decide(f"{key}/closed", msgspec.json.encode(self._judged(turn, waited_s)))
        return msgspec.json.decode(earlier, type=Closed)

    def _refuse(self, turn: Turn) -> None:
        """Whoever comes from now on to agree on this call, or to commit it, learns that it is given up."""
        assert self.board is not None
        self.board.decide(f"{turn.key}/go", _GIVEN_UP)
        self.board.decide(f"{turn.key}/end", _CLOSED)

    def commit(self, turn: Turn) -> None:
        """Returns on all ranks, once all have come so far, or raises on all of them."""
        if self.size == 1:
            return
        assert self.board is not None
        end: bytes | None = None
        keys = [f"{turn.key}/commit", f"{turn.key}/end"]
        if self.board.count(keys[0]) == self.size:
            end = self.board.decide(keys[1], _DONE)
            # All are here, so nobody reads those any more.
            self.board.forget(self._committed)
        self._committed = keys
        while end is None:
            end = self.board.wait(keys[1], max(0.001, min(_LOOK_S, turn.left_s)))
            if end is None and turn.left_s <= 0:
                end = self.board.decide(keys[1], _CLOSED)
        if end != _DONE:
            self.close(turn, "not all ranks completed it")
        turn.committed = True

    def _report(self, turn: Turn, says: str, *, own: bool = False, place: str | None = None) -> int:
        """How many have reported by now. `place`: by default where this thread stands."""
        assert self.board is not None
        place = place or places.here()
        said = Report(rank=self.me, says=says, call=str(turn.call), done=turn.done, chunks=turn.chunks, place=place, own=own)
        self.board.put(f"{turn.key}/r/{self.me}", msgspec.json.encode(said))
        reports = self.board.count(f"{turn.key}/reports", 0 if turn.reported else 1)
        turn.reported = True
        self._raise_alarm(turn.key)
        return reports

    def _reports(self, key: str) -> dict[int, Report]:
        assert self.board is not None
        found = zip(self.ranks, self.board.look_at([f"{key}/r/{rank}" for rank in self.ranks]), strict=True)
        return {rank: msgspec.json.decode(said, type=Report) for rank, said in found if said is not None}

    def _judged(self, turn: Turn, waited_s: float) -> Closed:
        assert self.board is not None
        reports = self._reports(turn.key)
        missing = tuple(rank for rank in self.ranks if rank not in reports)
        found = {rank: self.board.look(f"{turn.key}/place/{rank}") for rank in missing}
        stood = {rank: place.decode() for rank, place in found.items() if place}
        stood |= {rank: said.place for rank, said in reports.items() if said.place}
        says = _cause(list(reports.values()))
        if not any(said.own for said in reports.values()) and len({said.call for said in reports.values() if said.call}) > 1:
            says = "the ranks stand in different calls: " + "; ".join(f"rank {r}: {said.call}" for r, said in sorted(reports.items()) if said.call)
        return Closed(
            number=turn.number,
            scope=turn.scope,
            call=str(turn.call),
            says=says,
            missing=missing,
            reports=tuple(reports[rank] for rank in sorted(reports)),
            places=stood,
            waited_s=round(waited_s, 3),
        )

    def _raise(self, turn: Turn, closed: Closed, *, late: bool) -> NoReturn:
        if late:
            raise LatePeer(
                f"rank {self.me} came too late to {turn.call}: the others gave it up after {closed.waited_s:g} s. "
                "It takes part again in the next call.",
                missing=closed.missing,
                closed=closed,
            ) from None
        raise CollectiveTimeout(self._told(turn, closed), missing=closed.missing, closed=closed) from None

    def _told(self, turn: Turn, closed: Closed) -> str:
        said = [f"{closed.call} (call {closed.number} of group {c10d._get_process_group_name(self.group)!r}) did not end: {closed.says}."]
        if closed.missing:
            names = ", ".join(f"{rank} (at {closed.places[rank]})" if rank in closed.places else str(rank) for rank in closed.missing)
            said.append(f"Not heard from: rank {names}.")
        if turn.chunks > 1:
            done = [r.done for r in closed.reports if r.chunks]
            said.append(f"{min(done, default=0)} of {turn.chunks} chunks were complete on all ranks that answered.")
        return " ".join(said)

    # -- agreeing on a call

    def _asked(self, turn: Turn) -> Lane:
        while True:
            if self.board is None:
                self._meet(turn.left_s)
            with contextlib.suppress(Moved):
                return self._agreed(turn)

    def _agreed(self, turn: Turn) -> Lane:
        """Says what we want, and learns what is done. Raises where the others want something else, or are not there."""
        assert self.board is not None and self.meeting is not None
        board, key, call = self.board, turn.key, turn.call
        state = _State(call=call, seen=self._seen.get(call, 0), common=self._common_key, heeded=self._heeded)
        mine = msgspec.json.encode(state)
        said = board.decide(f"{key}/c", mine)
        differs = said != mine
        if differs:
            board.put(f"{key}/d/{self.me}", mine)
        sum_ = board.count(f"{key}/n", _ARRIVED + (_DISSENTED if differs else 0))
        go: bytes | None = None
        if sum_ % _DISSENTED == self.size:
            decision = self._compared(key, said) if sum_ >= _DISSENTED else _Go(how="own" if self._deserves_one(call) else "common")
            go = board.decide(f"{key}/go", msgspec.json.encode(decision))
            # All are here, so nobody reads those any more.
            board.forget(self._read)
        self._read = [f"{key}/c", f"{key}/n", f"{key}/go"]
        says = "the others had given it up"
        while go is None:
            go = board.wait(f"{key}/go", max(0.001, min(_LOOK_S, turn.left_s)))
            if go is None:
                self._hear(turn)
            if go is None and turn.left_s <= 0:
                says = f"not all ranks came within {turn.deadline_s:g} s"
                go = board.decide(f"{key}/go", _GIVEN_UP)
        self.meeting.settled = True
        decided = msgspec.json.decode(go, type=_Go)
        if decided.how == "closed":
            self.close(turn, says)
        if decided.how == "differs":
            raise _mismatch(decided)
        if decided.how == "anew":
            self._break([])
            self._heeded = self.listen(board)
        turn.moved()
        return self._opened(turn, decided.how)

    def _deserves_one(self, call: Call) -> bool:
        """A lane of its own: the same on all ranks, who have seen the same calls."""
        if self._seen.get(call, 0) + 1 < _OFTEN:
            return False
        kind = self._kind(call)
        most, there = lanes.most(kind, self.size), self._own_of(kind)
        return len(there) < most or (most > 0 and self._turns - self._used[self._idlest(there)] > _IDLE_CALLS)

    def _kind(self, call: Call) -> str:
        return lanes.kind(call.what, call.device, self.group)

    def _own_of(self, kind: str) -> list[Call]:
        return [call for call in self._own if self._kind(call) == kind]

    def _idlest(self, of: list[Call]) -> Call:
        return min(of, key=self._used.__getitem__)

    def _compared(self, key: str, said: bytes) -> _Go:
        """What is done where the ranks do not say the same."""
        assert self.board is not None
        common = msgspec.json.decode(said, type=_State)
        dissents = zip(self.ranks, self.board.look_at([f"{key}/d/{rank}" for rank in self.ranks]), strict=True)
        found = {rank: msgspec.json.decode(d, type=_State) if d else common for rank, d in dissents}
        calls = {rank: state.call for rank, state in found.items()}
        if len(set(calls.values())) == 1:
            # They have lost different lanes.
            return _Go(how="anew")
        return _Go(how="differs", calls={rank: str(call) for rank, call in calls.items()}, odd=_odd(calls))

    def _opened(self, turn: Turn, how: str) -> Lane:
        call = turn.call
        kind = self._kind(call)
        if how == "own":
            while len(there := self._own_of(kind)) >= lanes.most(kind, self.size):
                self._own.pop(self._idlest(there)).destroy()
            lane = self._own[call] = self._open(turn, kind, f"{turn.key}/own")
            return lane
        self._seen[call] = self._seen.get(call, 0) + 1
        if kind not in self._common:
            self._common[kind] = self._open(turn, kind, f"{turn.key}/common")
            self._common_key += f"{turn.key}:{kind} "
        return self._common[kind]

    def _open(self, turn: Turn, kind: str, key: str) -> Lane:
        assert self.board is not None
        lane: Lane
        try:
            if kind == "nccl":
                lane = NcclLane(dist.PrefixStore(key, store_beside(self.board)), self.rank, self.size)
            elif kind == "store":
                lane = StoreLane()
            else:
                store = dist.PrefixStore(key, self.board.store)
                with self.board.asks():
                    within_s = min(OPENS_WITHIN_S, max(_OPENS_S, turn.deadline_s))
                    lane = GlooLane(store, self.rank, self.size, name=f"{c10d._get_process_group_name(self.group)}/{key}", within_s=within_s)
        except (RuntimeError, ValueError) as e:
            self.close(turn, lanes.unconnected(kind, _first_line(e)))
        return lane

    def _break(self, works: list[Any]) -> None:
        """All lanes, and `works` with them: what a rank has missed in one of them, it would miss in the next."""
        lanes = [*self._common.values(), *self._own.values()]
        self._common.clear()
        self._own.clear()
        self._seen.clear()
        self._used.clear()
        self._common_key = ""
        for lane in lanes:
            lane.destroy()
        # Only now nothing touches their memory any more.
        until = time.monotonic() + _ENDS_WITHIN_S
        for work in works:
            while not work.is_completed() and time.monotonic() < until:
                time.sleep(0.001)
        graveyard.bury(lanes, works)
        works.clear()

    # -- values that go through the store

    def exchange(self, what: str, value: bytes, deadline_s: float) -> dict[int, bytes]:
        """What each rank gave, by global rank: the same on all of them, the late ones too. Who had not come in time is not in it.

        Nor is who declined.
        """
        with self._lock:
            scope = self._scopes[-1]
            scope.number += 1
            if self.size == 1:
                return {self.me: value}
            found = self._exchanged(f"{scope.name}/{scope.number}/{what}", value, deadline_s)
            return {rank: said for rank, said in found.items() if said}

    def decline(self, what: str) -> None:
        """Instead of `exchange`, of a rank that cannot say what it was asked for: the others need not wait for it."""
        with self._lock:
            scope = self._scopes[-1]
            scope.number += 1
            if self.size > 1:
                key = self._exchanged_at = f"{scope.name}/{scope.number}/{what}"
                self._tell(lambda board: self._given(board, key, b""))

    def begin(self, what: str) -> str:
        """A key for what all ranks begin here, by the count of calls: for `scope`, `end` and `exchange_at`."""
        with self._lock:
            scope = self._scopes[-1]
            scope.number += 1
            if self.meeting is not None and self.board is None:
                self.meeting.hello()
            return f"{scope.name}/{scope.number}/{what}"

    def exchange_at(self, key: str, value: bytes, deadline_s: float, half_way: Callable[[], None] | None = None) -> dict[int, bytes]:
        """As `exchange`. The deadline begins anew whenever a rank that has not come yet tells of progress (`progressed`).

        `half_way` is called when half of it has gone by so.
        """
        with self._lock:
            return {self.me: value} if self.size == 1 else self._exchanged(key, value, deadline_s, half_way)

    def leave_at(self, key: str, value: bytes) -> None:
        """As `exchange_at`, of a rank that does not stay to learn what is decided."""
        if self.size > 1:
            self._tell(lambda board: self._given(board, key, value))

    def progressed(self, key: str) -> bool:
        """Tells those that wait in `exchange_at` that this rank goes on; False where they have decided without it."""
        if self.board is None:
            return True
        self.board.count(f"{key}/progress")
        return self.board.look(f"{key}/v") is None

    def raise_if_ended(self, key: str) -> None:
        """Raises Ended where another rank has ended the scope `key`, as far as this process has heard."""
        if self.board is not None and self._ends(key):
            raise self._ended()

    def end(self, key: str, says: str) -> None:
        """Ends all calls of the scope `key`, at all ranks, with Ended."""

        def tells(board: Board) -> None:
            board.put(f"{key}/says", says.encode())
            self._raise_alarm(key + _ALL_OF_IT)

        if self.size > 1:
            self._tell(tells)

    def _exchanged(self, key: str, value: bytes, deadline_s: float, half_way: Callable[[], None] | None = None) -> dict[int, bytes]:
        waits_for(deadline_s)
        until = time.monotonic() + deadline_s
        while True:
            if self.board is None and self._meet(max(0.0, until - time.monotonic())):
                # Those that have waited are about to come.
                until = max(until, time.monotonic() + _GRACE_S)
            with contextlib.suppress(Moved):
                return self._exchanged_here(key, value, until, deadline_s, half_way)

    def _exchanged_here(self, key: str, value: bytes, until: float, deadline_s: float, half_way: Callable[[], None] | None) -> dict[int, bytes]:
        board = self.board
        assert board is not None and self.meeting is not None
        before, self._exchanged_at = self._exchanged_at, key
        found = self._given(board, key, value)
        if found is not None and before:
            board.forget([f"{before}/v", f"{before}/n"])
        found = found or self._decided(key, until, deadline_s, half_way)
        self.meeting.settled = True
        if before:
            board.forget([f"{before}/p/{self.me}"])
        if found is None:
            keys = [f"{key}/p/{rank}" for rank in self.ranks]
            there = zip(self.ranks, board.look_at(keys), strict=True)
            found = board.decide(f"{key}/v", _packed({rank: said for rank, said in there if said is not None}))
        said = _unpacked(found)
        places.missed([rank for rank in self.ranks if rank not in said])
        return said

    def _given(self, board: Board, key: str, value: bytes) -> bytes | None:
        """What is decided, where we are the last to come."""
        board.put(f"{key}/p/{self.me}", value)
        if board.count(f"{key}/n") != self.size:
            return None
        # Those that have decided without us may have gone on, and taken what they had said with them.
        if (found := board.look(f"{key}/v")) is not None:
            return found
        return board.decide(f"{key}/v", _packed(dict(zip(self.ranks, board.all_of([f"{key}/p/{rank}" for rank in self.ranks]), strict=True))))

    def _decided(self, key: str, until: float, deadline_s: float, half_way: Callable[[], None] | None) -> bytes | None:
        """None where nothing is heard for `deadline_s`. Raises Ended where everything around it is ended."""
        assert self.board is not None
        scope, told = key.rsplit("/", 2)[0], b""
        # A thousand ranks ask one server for as long as the slowest takes.
        looks_at = time.monotonic() + deadline_s / 20
        while (found := self.board.wait(f"{key}/v", max(0.0, min(until - time.monotonic(), _LOOK_S)))) is None:
            self.raise_if_ended(scope)
            self._moves()
            now = time.monotonic()
            late, half = until <= now, half_way is not None and until - now < deadline_s / 2
            if not late and not half and now < looks_at:
                continue
            looks_at = now + deadline_s / 20
            # Also when it is over: this process may have stood still itself, while the others went on.
            if (progress := self.board.look(f"{key}/progress") or b"") != told:
                told, until = progress, time.monotonic() + deadline_s
            elif late:
                return None
            elif half_way is not None and half:
                half_way()
                half_way = None
        return found

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Calls inside count by themselves; all ranks have to enter it, at the same place."""
        with self._lock:
            self._scopes.append(_Scope(name))
            try:
                yield
            finally:
                self._scopes.pop()

    def broken(self) -> None:
        """All lanes are given up, by all ranks alike: the next call opens new ones."""
        with self._lock:
            if self.board is not None:
                self._heeded = self.listen(self.board)
            self._break([])


class _Preparing:
    # A generator would take longer than all that is prepared.
    def __init__(self, circle: Circle, what: str) -> None:
        self._circle, self._what = circle, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            self._circle.refused(self._what, error)


def of(group: Any = None) -> Circle:
    """The circle of `group`, by default of all ranks. Raises CollectiveError where there is no group, or this rank is not in it."""
    if not dist.is_available() or not dist.is_initialized():
        raise CollectiveError(
            "torch.distributed has no group yet: call torch.distributed.init_process_group first (or let the launcher's framework do it)"
        )
    group = c10d._get_default_group() if group is None else group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise CollectiveError("this rank is no member of that group")
    known_as = weakref.ref(group)
    if (circle := _circles.get(known_as)) is not None and group in c10d._world.pg_map:
        return circle
    if dist.get_rank(group) < 0:
        raise CollectiveError("this rank is no member of that group")
    with _circles_lock:
        for gone in [known for known in _circles if known() not in c10d._world.pg_map]:
            del _circles[gone]
        if known_as not in _circles:
            _circles[known_as] = Circle(group)
        return _circles[known_as]


def of_or_alone(group: Any = None) -> Circle:
    """As `of`; a training that was started as one process needs no group."""
    if group is None and os.environ.get("WORLD_SIZE", "1") == "1" and not (dist.is_available() and dist.is_initialized()):
        return Circle(None)
    return of(group)


def _after_fork() -> None:
    # A child has neither the threads nor the connections. Groups that are dropped wait for their threads.
    _of_the_parent.extend(_circles.values())
    _circles.clear()


os.register_at_fork(after_in_child=_after_fork)


def _cause(reports: list[Report]) -> str:
    """What it was that ended the call: an error of a rank's own rather than a connection that broke, and that rather than what was heard of it."""
    said = [r.says for r in reports if r.own]
    if said:
        return "; ".join(said[:4])
    began = [r.says for r in reports if r.says not in (_TOLD, FINISHED)]
    return min(began, key=lambda says: says.startswith(_BROKE), default="closed")


def _odd(calls: dict[int, Call]) -> tuple[int, ...]:
    """Those that want something else than most; nobody where there is no most."""
    counts: dict[Call, int] = {}
    for call in calls.values():
        counts[call] = counts.get(call, 0) + 1
    most, *rest = sorted(counts.values(), reverse=True)
    if rest and rest[0] == most:
        return ()
    return tuple(rank for rank, call in calls.items() if counts[call] != most)


def _mismatch(go: _Go) -> CollectiveMismatch:
    by_call: dict[str, list[int]] = {}
    for rank, call in go.calls.items():
        by_call.setdefault(call, []).append(rank)
    said = "; ".join(f"{_ranks(ranks)}: {call}" for call, ranks in sorted(by_call.items(), key=lambda item: -len(item[1])))
    odd = f" {_ranks(go.odd)} differ{'s' if len(go.odd) == 1 else ''} from most." if go.odd else ""
    return CollectiveMismatch(f"the ranks' calls do not fit together, and nothing was sent. {said}.{odd}", calls=go.calls, odd=go.odd)


def _ranks(ranks: Sequence[int]) -> str:
    some = ", ".join(map(str, sorted(ranks)[:8]))
    return f"rank {some}" if len(ranks) == 1 else f"ranks {some}{', …' if len(ranks) > 8 else ''}"


def _packed(values: dict[int, bytes]) -> bytes:
    return msgspec.msgpack.encode(values)


def _unpacked(packed: bytes) -> dict[int, bytes]:
    return msgspec.msgpack.decode(packed, type=dict[int, bytes])


def _fingerprint(ranks: Sequence[int]) -> str:
    import hashlib

    return hashlib.sha256(repr(tuple(ranks)).encode()).hexdigest()[:12]


def _said(error: BaseException) -> str:
    # A file's name may hold what no encoder takes.
    said = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
    return said.partition("\n")[0].removesuffix(": ")[:300]


def _first_line(error: BaseException) -> str:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    # Gloo begins with a path of its maker's, and ends with good advice.
    return re.sub(r"^\[\S*/gloo/(\S+)\] ", "", said).partition(". This is typically")[0][:200]
