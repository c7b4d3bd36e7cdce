"""The ranks of one process group, and the count of their guarded calls.

Each guarded call has a number, the same on all ranks. Before a call of a new kind travels, all ranks say in the store what they want (`preflight`).
Ranks that disagree stand in different lanes, where they wait and can be told apart, instead of reading each other's bytes. A call that does not get
on is closed by its number (`abort`), and the next one opens new lanes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unhang.errors import CollectiveError
from unhang.runtime.collectives import call_sites, calls, shutdown
from unhang.runtime.collectives.abort import BROKE, LOOK_S, TOLD
from unhang.runtime.collectives.abortable_group import AbortableGroup, GlooLane
from unhang.runtime.collectives.calls import OUTERMOST, Call, Scope, Turn, first_line
from unhang.runtime.collectives.deadlines import learned, waits_for
from unhang.runtime.collectives.preflight import Preflight
from unhang.runtime.collectives.store_gather import StoreGather

# Left ones too: whoever is late asks for calls in them.
_KNOWN_SCOPES = 64
# At the end of the process: a lane is gone in some 10 ms, whatever the number of ranks may add.
_DROPS_S = 1.0

# Groups that this process, a fork, has from its parent.
_inherited: weakref.WeakSet[Any] = weakref.WeakSet()

# By weak references to their groups: whoever destroys a group waits for its threads, which end only once nothing refers to it any more.
_circles: dict[weakref.ref[Any], GuardedGroup] = {}
# That of all ranks, which nearly every call means, with its group: to find it by the group takes as long as all else that a call needs.
_of_all: tuple[weakref.ref[Any], weakref.ref[GuardedGroup]] | None = None
_circles_lock = threading.RLock()


class GuardedGroup(Preflight, StoreGather):
    """Of one process group, in one process. One call at a time: a second thread waits for its turn."""

    def __init__(self, group: Any) -> None:
        """Without a group: of a process that trains alone."""
        super().__init__(group)
        if self.size > 1:
            call_sites.answer(self)

    def turn(self, call: Call, deadline_s: float) -> _CallInTurn:
        """A call that has been agreed on, with the lane that it travels in; None for a circle of one. Whatever fails inside closes it for all."""
        return _CallInTurn(self, call, deadline_s)

    def again(self, call: Call, flat: torch.Tensor, op: Any, deadline_s: float) -> bool:
        """All of a call that reduces `flat` in one piece, as in a `turn`, by the shortest way. False, with nothing done, where it has no lane of its
        own or something has happened.

        Nearly every call of a training is such a one. After the bytes of the call before, its code is cold: each function more costs microseconds.
        """
        with self._lock:
            lane = self._own.get(call)
            if lane is None or self._heeded != self._alarm:
                return False
            scope = self._scopes[-1]
            number = scope.number = scope.number + 1
            self._used[call] = self._turns = self._turns + 1
            works: list[Any] = []
            began_s = time.monotonic()
            try:
                waits_for(deadline_s)
                lane.expect(deadline_s)
                works.append(lane.all_reduce(flat, op))
                ended = lane.ended(works[0], min(LOOK_S, deadline_s))
                now_s = time.monotonic()
                # In this order: an alarm is there before the time at which it was asked for.
                if ended and now_s - self._listened_s <= call_sites.STOOD_STILL_S and self._heeded == self._alarm:
                    scope.finished = number
                    learned.saw(call.what, now_s - began_s)
                    if calls.observers:
                        self._observed(call, now_s - began_s, None)
                    return True
            except BaseException as e:
                # What a work has failed with is said again to who waits for it.
                if not works or not isinstance(e, RuntimeError):
                    self._failed(_under_way(number, scope.name, call, deadline_s, lane, works, began_s), e)
                    raise
            with _CallInTurn(self, call, deadline_s, _under_way(number, scope.name, call, deadline_s, lane, works, began_s)) as turn:
                self.wait(turn, works[0])
                turn.done = 1
            return True

    def _failed(self, turn: Turn, error: BaseException) -> None:
        if isinstance(error, CollectiveError):
            if turn.works:
                self._break(turn.works)
        elif self.size > 1:
            self._fails(turn, error)
        self._observed(turn.call, time.monotonic() - turn.began_s, error)

    def _observed(self, call: Call, seconds: float, error: BaseException | None) -> None:
        if calls.observers:
            seen = calls.Observed(what=call.what, ranks=self.ranks, numel=call.numel, dtype=call.dtype, seconds=seconds, error=error)
            calls.tell_observers(seen)

    def preparing(self, what: str) -> _Preparation:
        """What is raised inside, before a call, ends the call for the others as well: they would wait for us, and be one call ahead ever after."""
        return _Preparation(self, what)

    def refused(self, what: str, error: Exception) -> None:
        """Counts as a call of this rank's, which has failed."""
        with self._lock:
            turn = self._begun(Call(what=what, numel=0, dtype="", device="", chunk=0), 0.0)
            if self.size > 1:
                self._fails(turn, error)

    def _begun(self, call: Call, deadline_s: float) -> Turn:
        scope = self._scopes[-1]
        scope.number += 1
        self._turns += 1
        waits_for(deadline_s)
        return Turn(number=scope.number, scope=scope.name, call=call, deadline_s=deadline_s)

    def _heed(self, turn: Turn) -> None:
        """An alarm of before: the others have broken their lanes, and maybe given up this very call."""
        self._heeded = self._alarm
        self._break([])
        self._told_of(turn)

    def _finish(self, turn: Turn) -> None:
        if self.board is not None and self.stood_still():
            # What the others had sent before they gave up is still in our sockets, and has just been taken for an answer.
            self.listen(self.board)
        if self._alarm and not turn.committed and (self._alarm == turn.key or (self._alarm != self._heeded and self.was_given_up(turn))):
            self.close(turn, TOLD)
        if (scope := self._known.get(turn.scope)) is not None:
            scope.finished = turn.number
        learned.saw(turn.call.what, time.monotonic() - turn.began_s)

    def wait(self, turn: Turn, work: Any) -> None:
        """Until `work` is complete. Raises what the others were told where it is not going to be."""
        assert turn.lane is not None
        while True:
            try:
                if turn.lane.ended(work, max(0.001, min(LOOK_S, turn.moved_s + turn.deadline_s - time.monotonic()))):
                    turn.moved_s = time.monotonic()
                    return
            except RuntimeError as e:
                self.close(turn, f"{BROKE}: {first_line(e)}")
            self._look_around(turn)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Calls inside count by themselves, those of threads that the body waits for too; all ranks have to enter it, at the same place."""
        with self._lock:
            scope = self._known.pop(name) if name in self._known else Scope(name)
            self._known[name] = scope
            self._scopes.append(scope)
            if len(self._known) > _KNOWN_SCOPES:
                del self._known[next(known for known in self._known if known != OUTERMOST)]
        try:
            yield
        finally:
            # Not locked: a thread of the body's that is still in a call ends within its deadline, and is not waited for here.
            self._scopes.remove(scope)

    def broke_in(self, name: str) -> bool:
        """Whether this rank has given its lanes up in that scope: the others may not have."""
        return (scope := self._known.get(name)) is not None and scope.broke

    def broken(self) -> None:
        """All lanes are given up, by all ranks alike: the next call opens new ones."""
        with self._lock:
            if self.board is not None:
                self._heeded = self.listen(self.board)
            self._break([])


class _CallInTurn(msgspec.Struct):
    # Neither a generator nor a class with functions of its own for each step: see moving.all_reduce.
    circle: GuardedGroup
    call: Call
    deadline_s: float
    turn: Turn | None = None

    def __enter__(self) -> Turn:
        circle, call = self.circle, self.call
        circle._lock.acquire()
        try:
            if self.turn is not None:
                return self.turn
            turn = self.turn = circle._begun(call, self.deadline_s)
            if circle.size > 1:
                if circle._heeded != circle._alarm:
                    circle._heed(turn)
                lane = circle._own.get(call)
                if lane is None:
                    lane = circle._asked(turn)
                else:
                    circle._used[call] = circle._turns
                turn.lane = lane
                lane.expect(self.deadline_s)
        except BaseException as e:
            try:
                if self.turn is not None:
                    circle._failed(self.turn, e)
            finally:
                circle._lock.release()
            raise
        return turn

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        circle, turn = self.circle, self.turn
        assert turn is not None
        try:
            if error is not None:
                circle._failed(turn, error)
                return
            try:
                circle._finish(turn)
            except BaseException as e:
                circle._failed(turn, e)
                raise
            if calls.observers:
                circle._observed(turn.call, time.monotonic() - turn.began_s, None)
        finally:
            circle._lock.release()


def _under_way(number: int, scope: str, call: Call, deadline_s: float, lane: AbortableGroup, works: list[Any], began_s: float) -> Turn:
    """A turn of one piece that has been sent."""
    return Turn(number=number, scope=scope, call=call, deadline_s=deadline_s, lane=lane, works=works, chunks=1, began_s=began_s, moved_s=began_s)


class _Preparation:
    # A generator would take longer than all that is prepared.
    def __init__(self, circle: GuardedGroup, what: str) -> None:
        self._circle, self._what = circle, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            self._circle.refused(self._what, error)


def of(group: Any = None) -> GuardedGroup:
    """The circle of `group`, by default of all ranks.

    Raises CollectiveError where there is no group, this rank is not in it, or this process is a fork of a rank: none of these has begun a call.
    """
    global _of_all
    world = c10d._world.default_pg
    if group is None and _of_all is not None and world is not None and _of_all[0]() is world and (circle := _of_all[1]()) is not None:
        return circle
    if world is None:
        raise CollectiveError(
            "torch.distributed has no group: call torch.distributed.init_process_group before this (or let the launcher's framework do it), and "
            "destroy_process_group after it"
        )
    if group is None:
        circle = of(world)
        _of_all = weakref.ref(world), weakref.ref(circle)
        return circle
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise CollectiveError("this rank is no member of that group")
    known_as = weakref.ref(group)
    if (circle := _circles.get(known_as)) is not None and group in c10d._world.pg_map:
        return circle
    if group in _inherited or _is_worker():
        raise CollectiveError(
            f"process {os.getpid()} is a fork of rank {dist.get_rank()} (a worker of a DataLoader?) and has none of its connections: "
            "call this in the rank itself"
        )
    if dist.get_rank(group) < 0:
        raise CollectiveError("this rank is no member of that group")
    with _circles_lock:
        for gone in [known for known in _circles if known() not in c10d._world.pg_map]:
            del _circles[gone]
        if known_as not in _circles:
            _circles[known_as] = GuardedGroup(group)
        return _circles[known_as]


def _is_worker() -> bool:
    """Of a DataLoader: one that is the first to import this knows nothing of its parent's groups."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def meant(group: Any = None) -> GuardedGroup:
    """As `of`; of what is no group at all, that of all ranks: `checked`, inside of what tells the others, refuses it there."""
    return of(group if _is_group(group) else None)


def checked(group: Any) -> None:
    """Raises TypeError for what is no group."""
    if not _is_group(group):
        raise TypeError(f"group is a process group of torch.distributed, or None for all ranks, not {group!r}")


def _is_group(group: Any) -> bool:
    return group is None or isinstance(group, dist.ProcessGroup) or group is dist.GroupMember.NON_GROUP_MEMBER


def meant_or_alone(group: Any = None) -> GuardedGroup:
    """As `meant`; a training that was started as one process needs no group."""
    if os.environ.get("WORLD_SIZE", "1") == "1" and not (dist.is_available() and dist.is_initialized()):
        return GuardedGroup(None)
    return meant(group)


def _close(until: float) -> None:
    """Gloo's threads end with the lanes that they serve. What another thread is in the middle of is left as it is, and so is NCCL's."""
    for circle in list(_circles.values()):
        lanes = [*circle._common.values(), *circle._own.values()]
        # Who finds none asks the store for one, and stays there.
        circle._own.clear()
        circle._common.clear()
        if circle._lock.acquire(timeout=max(0.0, until - _DROPS_S - time.monotonic())):
            gloo = [lane for lane in lanes if isinstance(lane, GlooLane)]
            lanes = [lane for lane in lanes if not isinstance(lane, GlooLane)]
            while gloo and time.monotonic() < until:
                gloo.pop()
            lanes += gloo
        shutdown.keep(lanes)


def _after_fork() -> None:
    if dist.is_available():
        _inherited.update(c10d._world.pg_map)
    # A child has neither the threads nor the connections. Groups that are dropped wait for their threads.
    global _of_all, _circles_lock
    # Another thread of the parent's may have held it.
    _circles_lock = threading.RLock()
    shutdown.keep(list(_circles.values()))
    _circles.clear()
    _of_all = None


os.register_at_fork(after_in_child=_after_fork)
shutdown.at_end(_close)
