"""Preflight on a call before it travels: all ranks say in the store what they want, and nothing is sent unless it fits together.

A kind that comes often gets a lane of its own, in which nothing else ever travels, and goes without asking.
"""

from __future__ import annotations

import contextlib
import time

import msgspec
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unhang.errors import CollectiveError
from unhang.runtime.collectives import abortable_group as lanes
from unhang.runtime.collectives.abort import LOOK_S, TOLD, Abort
from unhang.runtime.collectives.abortable_group import OPENS_WITHIN_S, AbortableGroup, Addresses, GlooLane, StoreLane
from unhang.runtime.collectives.abortable_nccl import NcclLane, store_beside
from unhang.runtime.collectives.call_sites import LOOKS_EVERY_S, have_ended
from unhang.runtime.collectives.calls import GIVEN_UP, NOTHING_SENT, Call, Go, Turn, first_line, mismatch, odd
from unhang.runtime.collectives.rendezvous import Moved

# What comes this often is worth connections of its own.
_OFTEN = 3
# Opening one takes up to 26 ms: it does not give way to a kind that comes as often as itself.
_IDLE_CALLS = 64
# Kinds may be as many as calls. All ranks forget them at the same call.
_SEEN_KINDS = 4096
# Of connections, once all have said that they come.
_OPENS_S = 5.0
_ARRIVED = 1
_DISSENTED = 1 << 32


class _State(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A rank's own view, which has to be everybody's: how often it has seen this call, which common lane it has, and what it broke the last for."""

    call: Call
    seen: int
    common: str
    heeded: str


class Preflight(Abort):
    """A rank's part in agreeing on calls."""

    def _asked(self, turn: Turn) -> AbortableGroup:
        while True:
            if self.board is None:
                self._meet(turn.left_s)
            with contextlib.suppress(Moved):
                return self._agreed(turn)

    def _agreed(self, turn: Turn) -> AbortableGroup:
        """Says what we want, and learns what is done. Raises where the others want something else, or are not there."""
        board, key, call = self.store, turn.key, turn.call
        # Not in this round, where we have moved to it.
        turn.said = False
        state = _State(call=call, seen=self._seen.get(call, 0), common=self._common_key, heeded=self._heeded)
        mine = msgspec.json.encode(state)
        said = board.decide(f"{key}/c", mine)
        differs = said != mine
        if differs:
            board.put(f"{key}/d/{self.me}", mine)
            self._left.add(f"{key}/d/{self.me}")
        sum_ = board.count(f"{key}/n", _ARRIVED + (_DISSENTED if differs else 0))
        go: bytes | None = None
        if sum_ % _DISSENTED == self.size:
            decision = self._compared(key, said) if sum_ >= _DISSENTED else Go(how="own" if self._deserves_one(call) else "common")
            go = board.decide(f"{key}/go", msgspec.json.encode(decision))
            # All are here, so nobody reads those any more.
            board.forget(self._read)
        before, self._read = self._read, [f"{key}/c", f"{key}/n", f"{key}/go"]
        says = TOLD
        while go is None:
            go = board.wait(f"{key}/go", max(0.001, min(LOOK_S, turn.left_s)))
            if go is None:
                ended = self._hear_of_all(turn)
                # Who was the last to come may have decided, and ended behind the call.
                if ended and (go := board.look(f"{key}/go")) is None:
                    self.close(turn, have_ended(ended), ended=ended)
            if go is None and turn.left_s <= 0:
                says = f"not all ranks came within {turn.deadline_s:g} s"
                go = board.decide(f"{key}/go", GIVEN_UP)
        self.meeting.settled = True
        decided = msgspec.json.decode(go, type=Go)
        if decided.how == "closed":
            self._left.add(*before)
            self.close(turn, says)
        self._left.all_came(board)
        if decided.how == "differs":
            raise mismatch(decided.calls, decided.odd, NOTHING_SENT)
        if decided.how == "anew":
            self._break([])
            self._heeded = self.listen(board)
        turn.moved()
        return self._opened(turn, decided.how)

    def _hear_of_all(self, turn: Turn) -> list[int]:
        """While every rank is needed; returns those that have ended, looked for once a second: none is waited for, whether it had come or not."""
        self._hear(turn)
        if time.monotonic() < self._looks_for_ended_s:
            return []
        self._looks_for_ended_s = time.monotonic() + LOOKS_EVERY_S
        return sorted(self.ended_ranks())

    def _hear_while_connecting(self, turn: Turn) -> None:
        if ended := self._hear_of_all(turn):
            self.close(turn, have_ended(ended), ended=ended)

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

    def _compared(self, key: str, said: bytes) -> Go:
        """What is done where the ranks do not say the same."""
        common = msgspec.json.decode(said, type=_State)
        dissents = zip(self.ranks, self.store.look_at([f"{key}/d/{rank}" for rank in self.ranks]), strict=True)
        found = {rank: msgspec.json.decode(d, type=_State) if d else common for rank, d in dissents}
        calls = {rank: state.call for rank, state in found.items()}
        if len(set(calls.values())) == 1:
            # They have lost different lanes.
            return Go(how="anew")
        return Go(how="differs", calls={rank: str(call) for rank, call in calls.items()}, odd=odd(calls))

    def _opened(self, turn: Turn, how: str) -> AbortableGroup:
        call = turn.call
        kind = self._kind(call)
        if how == "own":
            while len(there := self._own_of(kind)) >= lanes.most(kind, self.size):
                idlest = self._idlest(there)
                del self._used[idlest]
                self._given_up.append(self._own.pop(idlest))
                self._given_up[-1].destroy()
                self._await_their_end([])
            lane = self._own[call] = self._open(turn, kind, f"{turn.key}/own")
            self._used[call] = self._turns
            return lane
        if len(self._seen) >= _SEEN_KINDS:
            self._seen.clear()
        self._seen[call] = self._seen.get(call, 0) + 1
        if kind not in self._common:
            self._common[kind] = self._open(turn, kind, f"{turn.key}/common")
            self._common_key += f"{turn.key}:{kind} "
        return self._common[kind]

    def _open(self, turn: Turn, kind: str, key: str) -> AbortableGroup:
        lane: AbortableGroup
        try:
            if kind == "nccl":
                lane = NcclLane(dist.PrefixStore(key, store_beside(self.store)), self.rank, self.size)
            elif kind == "store":
                lane = StoreLane()
            else:
                within_s = min(OPENS_WITHIN_S, max(_OPENS_S, turn.deadline_s))
                addresses = Addresses(self.store, key, within_s, lambda: self._hear_while_connecting(turn))
                lane = GlooLane(addresses, self.rank, self.size, name=f"{c10d._get_process_group_name(self.group)}/{key}", within_s=within_s)
                addresses.connected()
        except CollectiveError:
            raise
        except (RuntimeError, ValueError) as e:
            self.close(turn, lanes.unconnected(kind, first_line(e)))
        self._left.add(*(f"{key}/{one}" for one in lane.leaves()))
        return lane
