"""How a guarded call ends where it does not get on: alike for all ranks.

It is closed by its number. Everybody reports what it knows, one of them writes down what is so, all obey it, and whoever comes late finds it there.
Lanes are broken then. Whoever waits says which call it is in, so that calls of different kinds under one number end at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unhang.errors import CollectiveTimeout, LatePeer, PeerFailed, StoreLost
from unhang.runtime.collectives import call_sites
from unhang.runtime.collectives.abortable_group import AbortableGroup, bury
from unhang.runtime.collectives.bounded_store import BoundedStore, Leftovers
from unhang.runtime.collectives.call_sites import FINISHED, LocalPeers, have_ended
from unhang.runtime.collectives.calls import (
    GIVEN_UP,
    NOTHING_SENT,
    OUTERMOST,
    Call,
    Closed,
    Ended,
    Go,
    Report,
    Scope,
    Turn,
    mismatch,
    named,
    odd,
    said,
)
from unhang.runtime.collectives.rendezvous import Moved, Rendezvous

# How long a wait may go on before it is looked whether somebody has raised the alarm.
LOOK_S = 0.25
# How long the others have to report once one has given a call up. Whoever waits looks four times a second.
GRACE_S = 1.5
BROKE = "the connection broke"
TOLD = "told by another rank"
# An alarm about a scope: all that is in it ends; or only its calls do, since whoever waits in one waits in vain, and what a rank computes goes on.
# For the latter nobody gives lanes up but who waits.
ALL_OF_IT, CALLS_OF_IT = "/!", "/?"
# Of all lanes that are given up together: NCCL aborts each in a thread of its own.
_GONE_WITHIN_S = 10.0
# What was under way in them has ended then, but for sends that Gloo forgets, which touch no memory.
_ENDS_WITHIN_S = 2.0
_DONE, _CLOSED = b"done", b"closed"
# What ranks share of a call that was given up.
OF_A_CALL = ("c", "n", "go", "commit", "end", "reports", "closed")


class _Said(msgspec.Struct, frozen=True, array_like=True):
    """Who was the first to wait under a number, and in what."""

    rank: int
    call: str


class Abort:
    """A rank's part in a circle: where it meets the others, what it hears of them, and how it gives calls up."""

    def __init__(self, group: Any) -> None:
        """Without a group: of a process that trains alone."""
        self._group = None if group is None else weakref.ref(group)
        self.rank: int = 0 if group is None else dist.get_rank(group)
        self.size: int = 1 if group is None else dist.get_world_size(group)
        self.ranks: tuple[int, ...] = (0,) if group is None else tuple(dist.get_process_group_ranks(group))
        self.me = self.ranks[self.rank]
        self._lock = threading.RLock()
        self._scopes = [Scope(OUTERMOST)]
        # By name, those that were left too: whoever is late asks for calls in them.
        self._known = {OUTERMOST: self._scopes[0]}
        self._common: dict[str, AbortableGroup] = {}
        self._common_key = ""
        self._own: dict[Call, AbortableGroup] = {}
        # By the count of turns, which is the same on all ranks.
        self._turns = 0
        self._used: dict[Call, int] = {}
        self._seen: dict[Call, int] = {}
        self._given_up: list[AbortableGroup] = []
        # Keys of the last agreement, commit and exchange.
        self._read: list[str] = []
        self._committed: list[str] = []
        self._exchanged_at = ""
        self._said_at = ""
        # What was begun under a number of its own and goes on, by that number.
        self._begun_at: dict[str, str] = {}
        self._left = Leftovers()
        # The call that was given up last, by anybody, and the last that we have drawn the consequences of; and the scope whose calls ended last.
        self.alarms = 0
        self._alarm = ""
        self._calls_over = ""
        self._listened_s = 0.0
        self._alarm_lock = threading.Lock()
        self._heeded = ""
        # Of the round that this rank is in, once it has met the others.
        self.board: BoundedStore | None = None
        self._neighbours: LocalPeers | None = None
        self._looks_for_ended_s = 0.0
        self._owed: list[Callable[[BoundedStore], object]] = []
        if self.size > 1:
            fingerprint = hashlib.sha256(repr(self.ranks).encode()).hexdigest()[:12]
            root = BoundedStore.beside(f"unhang/{c10d._get_process_group_name(group)}/{fingerprint}")
            self.meeting = Rendezvous(root, self.ranks, self.me)

    @property
    def group(self) -> Any:
        """None once it has been destroyed."""
        return None if self._group is None else self._group()

    @property
    def store(self) -> BoundedStore:
        """That of the round, of a rank that has met the others."""
        assert self.board is not None
        return self.board

    def entered(self) -> None:
        """In the round of the meeting, from now on."""
        with self._alarm_lock:
            board = self.meeting.board
            if board is None:
                return
            if self.board is None or self.board.name != board.name:
                self.alarms, self._alarm, self._calls_over, self._heeded = 0, "", "", ""
                # What was left in another round is read by nobody. Of the call that goes on in this one the keys are the same.
                self._left = Leftovers()
                self._read, self._committed, self._exchanged_at, self._said_at = [], [], "", ""
                self._neighbours = LocalPeers(board, self.me)
                self.board = board
            owed, self._owed = self._owed, []
        for tells in owed:
            tells(board)

    def _meet(self, deadline_s: float) -> bool:
        """Until this rank is among the others; whether some of them may have waited for it longer than they wanted."""
        waited = self.meeting.meet(deadline_s)
        self.entered()
        return waited

    def _tell(self, tells: Callable[[BoundedStore], object]) -> None:
        """At once, or as soon as we have met the others: whoever fails does not wait for them."""
        if self.board is None:
            with self._alarm_lock:
                self._owed.append(tells)
            self.meeting.hello()
            self.entered()
        else:
            tells(self.board)

    def _moves(self) -> None:
        """Raises Moved where the others are elsewhere."""
        if self.meeting.move():
            self.entered()
            raise Moved

    def listen(self, board: BoundedStore) -> str:
        """The call, or scope, that was given up last by anybody. They are numbered: what a thread has read may be old when it is believed."""
        # The answer may be older than a process that has stood still meanwhile.
        began_s = time.monotonic()
        last = int(board.look("alarms") or b"0")
        for number in range(max(self.alarms, last - call_sites.ALARMS_KEPT) + 1, last + 1):
            if (said := board.look(f"alarm/{number}")) is not None:
                with self._alarm_lock:
                    if number > self.alarms:
                        self.alarms, key = number, said.decode()
                        if key.endswith(CALLS_OF_IT):
                            self._calls_over = key.removesuffix(CALLS_OF_IT)
                        else:
                            self._alarm = key
        self._listened_s = began_s
        return self._alarm

    def stood_still(self) -> bool:
        """Whether alarms of this circle were not asked for so long that this process must have: by whom it is given up it does not know."""
        return time.monotonic() - self._listened_s > call_sites.STOOD_STILL_S

    def _raise_alarm(self, key: str) -> None:
        number = self.store.count("alarms")
        self.store.put(f"alarm/{number}", key.encode())
        self.store.forget([f"alarm/{number - call_sites.ALARMS_KEPT}"])

    def ended_ranks(self) -> frozenset[int]:
        """Those whose processes have ended, as far as this host knows. Raises StoreLost."""
        return frozenset() if self.board is None or self._neighbours is None else self._neighbours.ended(self.board)

    def stopped_ranks(self) -> frozenset[int]:
        """Those that are stopped by a signal now, as far as this host knows. Raises StoreLost."""
        return frozenset() if self.board is None or self._neighbours is None else self._neighbours.stopped(self.board)

    def has_finished(self, key: str) -> bool:
        scope, _, number = key.rpartition("/")
        return number.isdecimal() and (known := self._known.get(scope)) is not None and int(number) <= known.finished

    def stands_in(self, key: str) -> str | None:
        """What of this rank goes on under that number without waiting for anybody: an evaluation."""
        return self._begun_at.get(key)

    def _told_of(self, turn: Turn) -> None:
        """Raises where the last alarm is about this call, or about everything in its scope."""
        if self._alarm == turn.key:
            self.close(turn, TOLD)
        if self._ends(turn.scope) or self._ends_calls(turn.scope):
            self._break(turn.works)
            self._heeded = self._alarm
            raise self._ended(turn.scope) from None

    def _ends(self, scope: str) -> bool:
        """Whether the last alarm is about everything in this scope, or in one around it, or about the call that the scope is of."""
        return bool(self._alarm) and f"{scope}/".startswith(self._alarm.removesuffix(ALL_OF_IT) + "/")

    def _ends_calls(self, scope: str) -> bool:
        """Whether all calls of this scope, or of one around it, wait in vain."""
        return bool(self._calls_over) and f"{scope}/".startswith(self._calls_over + "/")

    def _ended(self, scope: str) -> Ended:
        says = self.store.look(f"{self._alarm.removesuffix(ALL_OF_IT) if self._ends(scope) else self._calls_over}/says")
        return Ended((says or b"the others have given up the call that it belongs to").decode())

    def _look_around(self, turn: Turn) -> None:
        self._hear(turn)
        if turn.left_s <= 0:
            self.close(turn, f"nothing moved for {turn.deadline_s:g} s")

    def _hear(self, turn: Turn) -> None:
        """What the others have told meanwhile: an alarm, or that who is waited for goes on with its part of the evaluation."""
        self._moves()
        self.listen(self.store)
        self._told_of(turn)
        if turn.scope != OUTERMOST and (progress := self.store.look(f"{turn.scope}/progress")) != turn.progress:
            turn.progress = progress
            turn.moved()
        self._say(turn)

    def _say(self, turn: Turn) -> None:
        """Which call this is, to those that wait under its number, and ends it where they wait in another one. Whoever does not wait says nothing."""
        if turn.said:
            return
        turn.said = True
        before, self._said_at = self._said_at, f"{turn.key}/kind"
        if before.rpartition("/")[0].rpartition("/")[0] == turn.scope:
            self.store.forget([before])
        elif before:
            # Of the evaluation that this call is in: who has not come to it has yet to read that.
            self._left.add(before)
        first = msgspec.json.decode(self.store.decide(self._said_at, msgspec.json.encode(_Said(self.me, str(turn.call)))), type=_Said)
        if first.call == str(turn.call):
            return
        # Where all have come to agree just now, it is decided already.
        go = msgspec.json.decode(self.store.decide(f"{turn.key}/go", GIVEN_UP), type=Go)
        if go.how == "differs":
            raise mismatch(go.calls, go.odd, NOTHING_SENT)
        self.close(turn, f"rank {self.me} is in {turn.call}, and rank {first.rank} in {first.call}")

    def close(self, turn: Turn, says: str, *, ended: Sequence[int] = ()) -> NoReturn:
        """Ends the call for all ranks, and raises what they are told. `ended`: it could not be done without these, whoever else is still to come."""
        self._give_up_lanes()
        try:
            # Before our lanes are gone, which may take seconds: who has not reported meanwhile is missing.
            closed = self._closed(turn, says, ended)
        finally:
            self._await_their_end(turn.works)
        self._heeded = self.listen(self.store)
        call_sites.missed([rank for rank in closed.missing if rank != self.me])
        self._raise(turn, closed, late=self.me in closed.missing)

    def _break(self, works: list[Any]) -> None:
        """All lanes, and `works` with them: what a rank has missed in one of them, it would miss in the next."""
        self._give_up_lanes()
        self._await_their_end(works)

    def _give_up_lanes(self) -> None:
        for scope in self._scopes:
            scope.broke = True
        lanes = [*self._common.values(), *self._own.values()]
        self._common.clear()
        self._own.clear()
        self._seen.clear()
        self._used.clear()
        self._common_key = ""
        self._given_up += lanes
        # Those, too, at which an interrupt has come in between.
        for lane in self._given_up:
            lane.destroy()

    def _await_their_end(self, works: list[Any]) -> None:
        """Until nothing of the lanes that were given up touches the memory of `works` any more, or as long as is bearable."""
        lanes, self._given_up = self._given_up, []
        try:
            until = time.monotonic() + _GONE_WITHIN_S
            for lane in lanes:
                lane.gone(max(0.0, until - time.monotonic()))
            until = time.monotonic() + _ENDS_WITHIN_S
            for work in works:
                while not work.is_completed() and time.monotonic() < until:
                    time.sleep(0.001)
        finally:
            # Also where who waits here is interrupted a second time: to drop them would wait without bound.
            bury(lanes, works)
            works.clear()

    def _closed(self, turn: Turn, says: str, ended: Sequence[int]) -> Closed:
        board, key = self.store, turn.key
        self._left.add(f"{key}/r/{self.me}", f"{key}/place/{self.me}")
        earlier = board.look(f"{key}/closed")
        if earlier is None:
            waited_s = time.monotonic() - turn.began_s
            self._refuse(turn)
            reports = self._report(turn, says, ended=ended)
            # The last to report need not wait for anybody; where the first has gone, somebody else writes down what is so.
            until = time.monotonic() + (0 if reports == self.size else GRACE_S if reports == 1 else 2 * GRACE_S)
            while earlier is None and time.monotonic() < until:
                if reports == 1 and len(self._reports(key)) == self.size:
                    break
                earlier = board.wait(f"{key}/closed", 0.05)
            if earlier is None:
                earlier = board.decide(f"{key}/closed", msgspec.json.encode(self._judged(turn, waited_s)))
                self._left.add(*(f"{key}/{one}" for one in OF_A_CALL))
        return msgspec.json.decode(earlier, type=Closed)

    def _refuse(self, turn: Turn) -> None:
        """Whoever comes from now on to agree on this call, or to commit it, learns that it is given up."""
        self.store.decide(f"{turn.key}/go", GIVEN_UP)
        self.store.decide(f"{turn.key}/end", _CLOSED)

    def was_given_up(self, turn: Turn) -> bool:
        """By any rank: the last alarm may be about a later call, where this process has not heard of several."""
        return self.store.look(f"{turn.key}/end") == _CLOSED

    def commit(self, turn: Turn) -> None:
        """Returns on all ranks, once all have come so far, or raises on all of them."""
        if self.size == 1:
            return
        end: bytes | None = None
        keys = [f"{turn.key}/commit", f"{turn.key}/end"]
        if self.store.count(keys[0]) == self.size:
            end = self.store.decide(keys[1], _DONE)
            # All are here, so nobody reads those any more.
            self.store.forget(self._committed)
        self._committed = keys
        while end is None:
            end = self.store.wait(keys[1], max(0.001, min(LOOK_S, turn.left_s)))
            if end is None and turn.left_s <= 0:
                end = self.store.decide(keys[1], _CLOSED)
        if end != _DONE:
            self.close(turn, "not all ranks completed it")
        turn.committed = True

    def _report(self, turn: Turn, says: str, *, own: bool = False, place: str | None = None, ended: Sequence[int] = ()) -> int:
        """How many have reported by now. `place`: by default where this thread stands."""
        place = place or call_sites.here()
        report = Report(
            rank=self.me,
            says=says,
            call=str(turn.call),
            done=turn.done,
            chunks=turn.chunks,
            place=place,
            own=own,
            ended=tuple(ended),
            stopped=tuple(sorted(self.stopped_ranks())),
        )
        self.store.put(f"{turn.key}/r/{self.me}", msgspec.json.encode(report))
        reports = self.store.count(f"{turn.key}/reports", 0 if turn.reported else 1)
        turn.reported = True
        self._raise_alarm(turn.key)
        return reports

    def _fails(self, turn: Turn, error: BaseException) -> None:
        """By an error of ours, or an interrupt: the others must not wait for us."""
        says, place = f"rank {self.me}: {said(error)}", call_sites.here()
        self._left.add(*(f"{turn.key}/{one}" for one in (*OF_A_CALL, f"r/{self.me}", f"place/{self.me}")))

        def tells(board: BoundedStore) -> None:
            self._refuse(turn)
            self._report(turn, says, own=True, place=place)

        with contextlib.suppress(StoreLost):
            self._tell(tells)
        self._break(turn.works)
        with contextlib.suppress(StoreLost):
            if self.board is not None:
                self._heeded = self.listen(self.board)

    def _reports(self, key: str) -> dict[int, Report]:
        found = zip(self.ranks, self.store.look_at([f"{key}/r/{rank}" for rank in self.ranks]), strict=True)
        return {rank: msgspec.json.decode(said, type=Report) for rank, said in found if said is not None}

    def _judged(self, turn: Turn, waited_s: float) -> Closed:
        reports = self._reports(turn.key)
        if (first := self.store.look(f"{turn.key}/kind")) is not None:
            said_first = msgspec.json.decode(first, type=_Said)
            reports.setdefault(said_first.rank, Report(rank=said_first.rank, says=TOLD, call=said_first.call))
        # Who is on its way is not waited for any more, and has missed nothing.
        ended = {rank for said in reports.values() for rank in said.ended}
        missing = tuple(rank for rank in self.ranks if rank not in reports and (not ended or rank in ended))
        found = {rank: self.store.look(f"{turn.key}/place/{rank}") for rank in missing}
        stood = {rank: place.decode() for rank, place in found.items() if place}
        stood |= {rank: said.place for rank, said in reports.items() if said.place}
        says = _cause(list(reports.values()))
        # What a connection tells is neither who has ended nor that somebody has.
        if says.startswith(BROKE) and (gone := sorted(self.ended_ranks().intersection(missing))):
            says = f"{have_ended(gone)} ({says})"
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
            stopped=tuple(sorted({rank for said in reports.values() for rank in said.stopped} & set(missing))),
        )

    def _raise(self, turn: Turn, closed: Closed, *, late: bool) -> NoReturn:
        calls = {said.rank: said.call for said in closed.reports if said.call}
        if late:
            raise LatePeer(
                f"rank {self.me} came too late to {turn.call}: the others gave it up after {closed.waited_s:g} s ({closed.says}). "
                "It takes part again in the next call.",
                missing=closed.missing,
                closed=closed,
            ) from None
        if len(set(calls.values())) > 1 and not any(said.own for said in closed.reports):
            more = f" Not heard from: rank {named(closed)}." if closed.missing else ""
            raise mismatch(calls, odd(calls), more, closed) from None
        if failed := tuple(said.rank for said in closed.reports if said.own):
            raise PeerFailed(self._told(turn, closed), ranks=failed, missing=closed.missing, closed=closed) from None
        raise CollectiveTimeout(self._told(turn, closed), missing=closed.missing, closed=closed) from None

    def _told(self, turn: Turn, closed: Closed) -> str:
        said = [f"{closed.call} (call {closed.number} of group {c10d._get_process_group_name(self.group)!r}) did not end: {closed.says}."]
        if closed.missing:
            said.append(f"Not heard from: rank {named(closed)}.")
        if turn.chunks > 1:
            done = [r.done for r in closed.reports if r.chunks]
            said.append(f"{min(done, default=0)} of {turn.chunks} chunks were complete on all ranks that answered.")
        return " ".join(said)


def _cause(reports: list[Report]) -> str:
    """What it was that ended the call: an error of a rank's own rather than a connection that broke, and that rather than what was heard of it."""
    said = [r.says for r in reports if r.own]
    if said:
        return "; ".join(said[:4])
    began = [r.says for r in reports if r.says not in (TOLD, FINISHED)]
    return min(began, key=lambda says: says.startswith(BROKE), default="closed")
