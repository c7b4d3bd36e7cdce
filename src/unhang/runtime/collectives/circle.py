"""The ranks of one process group, the count of their guarded calls, and how one call ends: alike for all of them.

Each guarded call has a number, the same on all ranks. Before a call of a new kind travels, all ranks say in the store what they want: nothing is sent
unless it fits together. A kind that comes often gets a lane of its own, in which nothing else ever travels, and goes without asking: ranks that
disagree then stand in different lanes, where they wait and can be told apart, instead of reading each other's bytes.

A call that does not get on is closed by its number. Everybody reports what it knows, one of them writes down what is so, all obey it, and whoever
comes late finds it there. Lanes are broken then, and opened anew by the next call.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unhang.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, LatePeer
from unhang.runtime.collectives import places
from unhang.runtime.collectives.board import Board
from unhang.runtime.collectives.deadlines import learned
from unhang.runtime.collectives.lane import GlooLane, Lane, NcclLane

# How long a wait may go on before it is looked whether somebody has raised the alarm.
_LOOK_S = 0.25
# How long the others have to report once one has given a call up. Whoever waits looks four times a second.
_GRACE_S = 1.5
# What comes this often is worth connections of its own.
_OFTEN = 3
_MOST_LANES = 16
_ENDS_WITHIN_S = 30.0
_TOLD = "told by another rank"
_ALL_OF_IT = "/!"
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
        detail = f", {self.detail}" if self.detail else ""
        return f"{self.what} of {self.numel:,} {self.dtype.removeprefix('torch.')} elements ({self.device}{detail})"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank knows of a call that was closed; `done` of `chunks` were complete for it."""

    rank: int
    says: str
    call: str = ""
    done: int = 0
    chunks: int = 0
    place: str | None = None


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
    closed: Closed | None = None


class _State(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A rank's own view, which has to be everybody's: how often it has seen this call, and which common lane it has."""

    call: Call
    seen: int
    common: str


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


_circles: dict[Any, Circle] = {}
_circles_lock = threading.Lock()


class Circle:
    """Of one process group, in one process. One call at a time: a second thread waits for its turn."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self.ranks: tuple[int, ...] = tuple(dist.get_process_group_ranks(group))
        self.me = self.ranks[self.rank]
        self._lock = threading.RLock()
        self._scopes = [_Scope("main")]
        self._common: dict[str, Lane] = {}
        self._common_key = ""
        self._own: dict[Call, Lane] = {}
        self._seen: dict[Call, int] = {}
        # Keys of the last agreement and of the last exchange.
        self._read: list[str] = []
        self._exchanged_at = ""
        # The call that was given up last, by anybody, and the last that we have drawn the consequences of.
        self._alarms = 0
        self._alarm = ""
        self._alarm_lock = threading.Lock()
        self._heeded = ""
        self.board: Board | None = None
        if self.size > 1:
            self.board = Board.beside(f"unhang/{c10d._get_process_group_name(group)}/{_fingerprint(self.ranks)}")
            places.answer(self)

    # -- calls that travel

    @contextmanager
    def turn(self, call: Call, deadline_s: float) -> Iterator[Turn]:
        """A call that has been agreed on, with the lane that it travels in; None for a circle of one. Whatever fails inside closes it for all."""
        with self._lock:
            scope = self._scopes[-1]
            scope.number += 1
            turn = Turn(number=scope.number, scope=scope.name, call=call, deadline_s=deadline_s)
            if self.size > 1:
                self._heed(turn)
                turn.lane = self._own.get(call) or self._agreed(turn)
                if call in self._own:
                    # The one that was used last goes last.
                    self._own[call] = self._own.pop(call)
            try:
                yield turn
                self._finish(turn, scope)
            except CollectiveError:
                raise
            except BaseException as e:
                # An error of ours, or an interrupt: the others must not wait for us.
                if self.size > 1:
                    self._report(turn, f"{type(e).__name__}: {e}")
                    self._break(turn.works)
                raise

    def _heed(self, turn: Turn) -> None:
        """An alarm of before: the others have broken their lanes, and maybe given up this very call."""
        if self._heeded == self._alarm:
            return
        self._heeded = self._alarm
        self._break(())
        self._told_of(turn)

    def _told_of(self, turn: Turn) -> None:
        """Raises where the last alarm is about this call, or about everything in its scope."""
        if self._alarm == turn.key:
            self.close(turn, _TOLD)
        if self._alarm == turn.scope + _ALL_OF_IT:
            assert self.board is not None
            self._break(turn.works)
            self._heeded = self._alarm
            raise Ended((self.board.look(f"{turn.scope}/says") or b"another rank has ended it").decode()) from None

    def _finish(self, turn: Turn, scope: _Scope) -> None:
        if self.board is not None and places.are_old():
            # This process stood still. What the others had sent before they gave up is still in our sockets, and has just been taken for an answer.
            self.listen(self.board)
        if self._alarm == turn.key:
            self.close(turn, _TOLD)
        scope.finished = turn.number
        learned.saw(turn.call.what, time.monotonic() - turn.began_s)

    def listen(self, board: Board) -> str:
        """The call, or scope, that was given up last by anybody. They are numbered: what a thread has read may be old when it is believed."""
        number = int(board.look("alarms") or b"0")
        if number > self._alarms and (key := board.look(f"alarm/{number}")) is not None:
            with self._alarm_lock:
                if number > self._alarms:
                    self._alarms, self._alarm = number, key.decode()
        return self._alarm

    def _raise_alarm(self, key: str) -> None:
        assert self.board is not None
        number = self.board.count("alarms")
        self.board.put(f"alarm/{number}", key.encode())

    def has_finished(self, key: str) -> bool:
        scope, _, number = key.rpartition("/")
        current = self._scopes[-1]
        return scope == current.name and number.isdecimal() and int(number) <= current.finished

    def wait(self, turn: Turn, work: Any) -> None:
        """Until `work` is complete. Raises what the others were told where it is not going to be."""
        assert turn.lane is not None
        while True:
            try:
                if turn.lane.ended(work, max(0.001, min(_LOOK_S, turn.left_s))):
                    turn.moved()
                    return
            except RuntimeError as e:
                self.close(turn, f"the connection broke: {_first_line(e)}")
            self._look_around(turn)

    def _look_around(self, turn: Turn) -> None:
        assert self.board is not None
        if turn.left_s <= 0:
            self.close(turn, f"nothing moved for {turn.deadline_s:g} s")
        self.listen(self.board)
        self._told_of(turn)

    def close(self, turn: Turn, says: str) -> NoReturn:
        """Ends the call for all ranks, and raises what they are told."""
        assert self.board is not None
        self._break(turn.works)
        closed = self._closed(turn, says)
        self._heeded = self.listen(self.board)
        self._raise(turn, closed, late=self.me in closed.missing)

    def _closed(self, turn: Turn, says: str) -> Closed:
        assert self.board is not None
        board, key = self.board, turn.key
        earlier = board.look(f"{key}/closed")
        if earlier is None:
            board.decide(f"{key}/end", _CLOSED)
            first = self._report(turn, says)
            until = time.monotonic() + (_GRACE_S if first else 2 * _GRACE_S)
            while earlier is None and time.monotonic() < until:
                if first and len(self._reports(key)) == self.size:
                    break
                earlier = board.wait(f"{key}/closed", 0.05)
            # Where the first to report has gone, somebody else writes down what is so.
            earlier = earlier or board.decide(f"{key}/closed", msgspec.json.encode(self._judged(turn)))
            # For those that come so late that they first ask.
            board.decide(f"{key}/go", msgspec.json.encode(_Go(how="closed", closed=msgspec.json.decode(earlier, type=Closed))))
        return msgspec.json.decode(earlier, type=Closed)

    def commit(self, turn: Turn) -> None:
        """Returns on all ranks, once all have come so far, or raises on all of them."""
        if self.board is None:
            return
        end: bytes | None = None
        if self.board.count(f"{turn.key}/commit") == self.size:
            end = self.board.decide(f"{turn.key}/end", _DONE)
        while end is None:
            end = self.board.wait(f"{turn.key}/end", max(0.001, min(_LOOK_S, turn.left_s)))
            if end is None and turn.left_s <= 0:
                end = self.board.decide(f"{turn.key}/end", _CLOSED)
        if end != _DONE:
            self.close(turn, "not all ranks completed it")

    def _report(self, turn: Turn, says: str) -> bool:
        """Whether it is the first."""
        assert self.board is not None
        said = Report(rank=self.me, says=says, call=str(turn.call), done=turn.done, chunks=turn.chunks, place=places.here())
        self.board.put(f"{turn.key}/r/{self.me}", msgspec.json.encode(said))
        first = self.board.count(f"{turn.key}/reports") == 1
        self._raise_alarm(turn.key)
        return first

    def _reports(self, key: str) -> dict[int, Report]:
        assert self.board is not None
        found = zip(self.ranks, self.board.look_at([f"{key}/r/{rank}" for rank in self.ranks]), strict=True)
        return {rank: msgspec.json.decode(said, type=Report) for rank, said in found if said is not None}

    def _judged(self, turn: Turn) -> Closed:
        assert self.board is not None
        reports = self._reports(turn.key)
        missing = tuple(rank for rank in self.ranks if rank not in reports)
        found = {rank: self.board.look(f"{turn.key}/place/{rank}") for rank in missing}
        stood = {rank: place.decode() for rank, place in found.items() if place}
        stood |= {rank: said.place for rank, said in reports.items() if said.place}
        began = [said for said in reports.values() if said.says != _TOLD]
        says = began[0].says if began else "closed"
        if len({said.call for said in reports.values() if said.call}) > 1:
            says = "the ranks stand in different calls: " + "; ".join(f"rank {r}: {said.call}" for r, said in sorted(reports.items()) if said.call)
        return Closed(
            number=turn.number,
            scope=turn.scope,
            call=str(turn.call),
            says=says,
            missing=missing,
            reports=tuple(reports[rank] for rank in sorted(reports)),
            places=stood,
            waited_s=round(time.monotonic() - turn.began_s, 3),
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

    def _agreed(self, turn: Turn) -> Lane:
        """Says what we want, and learns what is done. Raises where the others want something else, or are not there."""
        assert self.board is not None
        board, key, call = self.board, turn.key, turn.call
        state = _State(call=call, seen=self._seen.get(call, 0), common=self._common_key)
        mine = msgspec.json.encode(state)
        said = board.decide(f"{key}/c", mine)
        differs = said != mine
        if differs:
            board.put(f"{key}/d/{self.me}", mine)
        sum_ = board.count(f"{key}/n", _ARRIVED + (_DISSENTED if differs else 0))
        go: bytes | None = None
        if sum_ % _DISSENTED == self.size:
            decision = self._compared(key, said) if sum_ >= _DISSENTED else _Go(how="own" if state.seen + 1 >= _OFTEN else "common")
            go = board.decide(f"{key}/go", msgspec.json.encode(decision))
            # All are here, so nobody reads those any more.
            board.forget(self._read)
        self._read = [f"{key}/c", f"{key}/n", f"{key}/go"]
        while go is None:
            go = board.wait(f"{key}/go", max(0.001, min(_LOOK_S, turn.left_s)))
            if go is None:
                self.listen(board)
                if turn.left_s <= 0 or self._alarm == key:
                    go = self._given_up(turn)
                else:
                    self._told_of(turn)
        decided = msgspec.json.decode(go, type=_Go)
        if decided.how == "closed":
            assert decided.closed is not None
            self._break(())
            self._heeded = self.listen(board)
            self._raise(turn, decided.closed, late=self.me in decided.closed.missing)
        if decided.how == "differs":
            raise _mismatch(decided)
        if decided.how == "anew":
            self._break(())
        turn.moved()
        return self._opened(turn, decided.how)

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

    def _given_up(self, turn: Turn) -> bytes:
        """Before anything was sent: who has not come, nobody knows better than the store."""
        assert self.board is not None
        self._report(turn, f"not all ranks came within {turn.deadline_s:g} s")
        until = time.monotonic() + _GRACE_S
        while time.monotonic() < until and len(self._reports(turn.key)) < self.size:
            if (go := self.board.wait(f"{turn.key}/go", 0.05)) is not None:
                return go
        go = self.board.decide(f"{turn.key}/go", msgspec.json.encode(_Go(how="closed", closed=self._judged(turn))))
        if (closed := msgspec.json.decode(go, type=_Go).closed) is not None:
            # For those that do not ask any more.
            self.board.decide(f"{turn.key}/closed", msgspec.json.encode(closed))
        return go

    def _opened(self, turn: Turn, how: str) -> Lane:
        call = turn.call
        kind = "nccl" if call.device == "cuda" and "nccl" in str(dist.get_backend(self.group)) else "gloo"
        if how == "own":
            while len(self._own) >= _MOST_LANES:
                self._own.pop(next(iter(self._own))).destroy()
            lane = self._own[call] = self._open(turn, kind, f"{turn.key}/own")
            return lane
        self._seen[call] = self._seen.get(call, 0) + 1
        if kind not in self._common:
            self._common[kind] = self._open(turn, kind, f"{turn.key}/common")
            self._common_key += f"{turn.key}:{kind} "
        return self._common[kind]

    def _open(self, turn: Turn, kind: str, key: str) -> Lane:
        assert self.board is not None
        store = dist.PrefixStore(key, self.board.store)
        try:
            if kind == "nccl":
                return NcclLane(store, self.rank, self.size, torch.device("cuda", torch.cuda.current_device()))
            return GlooLane(store, self.rank, self.size)
        except RuntimeError as e:
            self.close(turn, f"no connection among all ranks: {_first_line(e)}")

    def _break(self, works: Sequence[Any]) -> None:
        """All lanes: what a rank has missed in one of them, it would miss in the next."""
        lanes = [*self._common.values(), *self._own.values()]
        self._common.clear()
        self._own.clear()
        self._seen.clear()
        self._common_key = ""
        for lane in lanes:
            lane.destroy()
        # Only now nothing touches their memory any more.
        until = time.monotonic() + _ENDS_WITHIN_S
        for work in works:
            while not work.is_completed() and time.monotonic() < until:
                time.sleep(0.001)

    # -- values that go through the store

    def exchange(self, what: str, value: bytes, deadline_s: float) -> dict[int, bytes]:
        """What each rank gave, by global rank: the same on all of them, the late ones too. Who had not come in time is not in it."""
        with self._lock:
            scope = self._scopes[-1]
            scope.number += 1
            if self.board is None:
                return {self.me: value}
            return self._exchanged(f"{scope.name}/{scope.number}/{what}", value, deadline_s)

    def begin(self, what: str) -> str:
        """A key for what all ranks begin here, by the count of calls: for `scope`, `end` and `exchange_at`."""
        with self._lock:
            scope = self._scopes[-1]
            scope.number += 1
            return f"{scope.name}/{scope.number}/{what}"

    def exchange_at(self, key: str, value: bytes, deadline_s: float) -> dict[int, bytes]:
        """As `exchange`. The deadline begins anew whenever a rank that has not come yet tells of progress (`progressed`)."""
        with self._lock:
            return {self.me: value} if self.board is None else self._exchanged(key, value, deadline_s)

    def progressed(self, key: str) -> bool:
        """Tells those that wait in `exchange_at` that this rank goes on; False where they have decided without it."""
        if self.board is None:
            return True
        self.board.count(f"{key}/progress")
        return self.board.look(f"{key}/v") is None

    def end(self, key: str, says: str) -> None:
        """Ends all calls of the scope `key`, at all ranks, with Ended."""
        if self.board is not None:
            self.board.put(f"{key}/says", says.encode())
            self._raise_alarm(key + _ALL_OF_IT)

    def _exchanged(self, key: str, value: bytes, deadline_s: float) -> dict[int, bytes]:
        board = self.board
        assert board is not None
        board.put(f"{key}/p/{self.me}", value)
        found = None
        before, self._exchanged_at = self._exchanged_at, key
        if board.count(f"{key}/n") == self.size:
            found = board.decide(f"{key}/v", _packed(dict(zip(self.ranks, board.all_of([f"{key}/p/{r}" for r in self.ranks]), strict=True))))
            if before:
                board.forget([f"{before}/v", f"{before}/n"])
        found = found or self._decided(key, deadline_s)
        if before:
            board.forget([f"{before}/p/{self.me}"])
        if found is None:
            there = zip(self.ranks, board.look_at([f"{key}/p/{r}" for r in self.ranks]), strict=True)
            found = board.decide(f"{key}/v", _packed({rank: said for rank, said in there if said is not None}))
        return _unpacked(found)

    def _decided(self, key: str, deadline_s: float) -> bytes | None:
        """None where nothing is heard for `deadline_s`."""
        assert self.board is not None
        found, told = None, b""
        until = time.monotonic() + deadline_s
        while found is None and (left := until - time.monotonic()) > 0:
            found = self.board.wait(f"{key}/v", min(left, max(_LOOK_S, deadline_s / 20)))
            if found is None and (now := self.board.look(f"{key}/progress") or b"") != told:
                told, until = now, time.monotonic() + deadline_s
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
            self._break(())


def of(group: Any = None) -> Circle:
    """The circle of `group`, by default of all ranks. Raises CollectiveError where there is no group, or this rank is not in it."""
    if not dist.is_available() or not dist.is_initialized():
        raise CollectiveError(
            "torch.distributed has no group yet: call torch.distributed.init_process_group first (or let the launcher's framework do it)"
        )
    group = c10d._get_default_group() if group is None else group
    if group is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0:
        raise CollectiveError("this rank is no member of that group")
    with _circles_lock:
        for gone in [known for known in _circles if known not in c10d._world.pg_map]:
            del _circles[gone]
        if group not in _circles:
            _circles[group] = Circle(group)
        return _circles[group]


def _after_fork() -> None:
    # A child has neither the threads nor the connections.
    _circles.clear()


os.register_at_fork(after_in_child=_after_fork)


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


def _first_line(error: BaseException) -> str:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    # Gloo begins with a path of its maker's, and ends with good advice.
    return re.sub(r"^\[\S*/gloo/(\S+)\] ", "", said).partition(". This is typically")[0][:200]
