"""Values that go through the store: one decision for all ranks, which falls without those that do not come, and which they find when they do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from unhang.runtime.collectives import call_sites
from unhang.runtime.collectives.abort import ALL_OF_IT, CALLS_OF_IT, GRACE_S, LOOK_S, TOLD, Abort
from unhang.runtime.collectives.bounded_store import BoundedStore
from unhang.runtime.collectives.call_sites import ENDED, LOOKS_EVERY_S, STOPPED, have_ended
from unhang.runtime.collectives.calls import Closed, Turn, all_ranks, turn_of
from unhang.runtime.collectives.deadlines import waits_for
from unhang.runtime.collectives.rendezvous import Moved

# Of a rank that has not come, instead of what it gave: what is known of it.
_ABSENT = b"\0"


class Gathered(dict[int, bytes]):
    """What each rank gave, by global rank. `absent`: of others, that they have ended or are stopped, or where they stand, as far as it is known."""

    def __init__(self, found: Mapping[int, bytes]) -> None:
        super().__init__({rank: said for rank, said in found.items() if not said.startswith(_ABSENT)})
        self.absent = {rank: said[len(_ABSENT) :].decode() for rank, said in found.items() if said.startswith(_ABSENT)}

    def silent(self, ranks: Sequence[int], deadline_s: float) -> str | None:
        """Of all `ranks`, why there is nothing of some; None where there is something of all."""
        ended = [rank for rank in ranks if self.absent.get(rank) == ENDED]
        late = [rank for rank in ranks if rank not in self and rank not in ended]
        said = [f"{all_ranks(ended)}: {ENDED if len(ended) == 1 else 'their processes have ended'}"] if ended else []
        if late:
            places = ", ".join(f"{'' if len(late) == 1 else f'{rank}: '}{self.absent[rank]}" for rank in late if rank in self.absent)
            said.append(f"{all_ranks(late)} did not answer within {deadline_s:g} s{f' ({places})' if places else ''}")
        return "; ".join(said) or None


class StoreGather(Abort):
    """A rank's part in exchanges."""

    def exchange(self, what: str, value: bytes, deadline_s: float) -> dict[int, bytes]:
        """What each rank gave, by global rank: the same on all of them, the late ones too. Who had not come in time is not in it.

        Nor is who declined.
        """
        with self._lock:
            found = self._exchange(what, value, deadline_s)
            self._scopes[-1].finished = self._scopes[-1].number
            return found

    def _exchange(self, what: str, value: bytes, deadline_s: float) -> Gathered:
        scope = self._scopes[-1]
        scope.number += 1
        if self.size == 1:
            return Gathered({self.me: value})
        found = self._exchanged(f"{scope.name}/{scope.number}/{what}", value, deadline_s)
        for rank in [rank for rank, said in found.items() if not said]:
            del found[rank]
        return found

    def exchange_all(self, what: str, value: bytes, deadline_s: float) -> dict[int, bytes]:
        """As `exchange`, of what is nothing without all of them. Raises CollectiveTimeout, LatePeer or PeerFailed, as calls do."""
        with self._lock:
            began_s = time.monotonic()
            found = self._exchange(what, value, deadline_s)
            if len(found) == self.size:
                self._scopes[-1].finished = self._scopes[-1].number
                return found
            turn = turn_of(self._exchanged_at, deadline_s)
            turn.began_s = began_s
            if self.me not in found and (closed := self.store.wait(f"{turn.key}/closed", 2 * GRACE_S)) is not None:
                # What the others have found without us.
                self._raise(turn, msgspec.json.decode(closed, type=Closed), late=True)
            ended = [rank for rank, says in found.absent.items() if says == ENDED]
            # Before its time it was decided because somebody has declined, and says why itself.
            late = f"not all ranks came within {deadline_s:g} s" if time.monotonic() - began_s >= deadline_s else TOLD
            return self.close(turn, have_ended(ended) if ended else late)

    def decline(self, what: str, error: Exception | None = None) -> None:
        """Instead of `exchange`, of a rank that cannot say what it was asked for: the others need not wait for it.

        Instead of `exchange_all` with the `error`, which they are told.
        """
        with self._lock:
            scope = self._scopes[-1]
            scope.number += 1
            if self.size > 1:
                before, self._exchanged_at = self._exchanged_at, f"{scope.name}/{scope.number}/{what}"
                key = self._exchanged_at
                if before:
                    # Whoever comes to the next exchange knows of this one only.
                    self._left.add(*(f"{before}/{one}" for one in ("v", "n", f"p/{self.me}")))
                if error is not None:
                    self._fails(turn_of(key, 0.0), error)
                self._tell(lambda board: self._given(board, key, b""))

    def begin(self, what: str) -> str:
        """A key for what all ranks begin here, by the count of calls: for `scope`, `end` and `exchange_at`."""
        with self._lock:
            scope = self._scopes[-1]
            scope.number += 1
            if self.size > 1 and self.board is None:
                self.meeting.hello()
            turn = turn_of(f"{scope.name}/{scope.number}/{what}", 0.0)
            self._begun_at[turn.key] = turn.call.what
            if self.board is not None:
                try:
                    # It may be long until it waits for the others, and they for it.
                    self._say(turn)
                except BaseException:
                    del self._begun_at[turn.key]
                    raise
            return f"{turn.key}/{what}"

    def exchange_at(self, key: str, value: bytes, deadline_s: float, half_way: Callable[[], None] | None = None) -> Gathered:
        """As `exchange`. The deadline begins anew whenever a rank that has not come yet tells of progress (`progressed`).

        `half_way` is called when half of it has gone by so.
        """
        with self._lock:
            try:
                found = Gathered({self.me: value}) if self.size == 1 else self._exchanged(key, value, deadline_s, half_way)
                scope, number, _ = key.rsplit("/", 2)
                if scope in self._known:
                    self._known[scope].finished = int(number)
                return found
            finally:
                self._begun_at.pop(key.rpartition("/")[0], None)

    def leave_at(self, key: str, value: bytes) -> None:
        """As `exchange_at`, of a rank that does not stay to learn what is decided."""
        self._begun_at.pop(key.rpartition("/")[0], None)
        if self.size > 1:
            self._left.add(f"{key}/p/{self.me}")
            self._tell(lambda board: self._given(board, key, value))

    def progressed(self, key: str) -> bool:
        """Tells those that wait in `exchange_at` that this rank goes on; False where they have decided without it."""
        if self.board is None:
            return True
        self._left.add(f"{key}/progress")
        self.board.count(f"{key}/progress")
        return self.board.look(f"{key}/v") is None

    def forgets(self, *keys: str) -> None:
        """What was said beside the calls, once all have come to a later one."""
        self._left.add(*keys)

    def raise_if_ended(self, key: str) -> None:
        """Raises Ended where another rank has ended all of the scope `key`, as far as this process has heard."""
        if self.board is not None and self._ends(key):
            raise self._ended(key)

    def end(self, key: str, says: str) -> None:
        """Ends the scope `key` at all ranks, with Ended: its calls, and what asks for it between them."""
        self._end(key, says, ALL_OF_IT)

    def end_calls(self, key: str, says: str) -> None:
        """Ends the calls of the scope `key`, at all ranks, with Ended. Who is none of theirs goes on, and tells where it stands."""
        if not self._ends(key) and not self._ends_calls(key):
            self._end(key, says, CALLS_OF_IT)

    def _end(self, key: str, says: str, what: str) -> None:
        def tells(board: BoundedStore) -> None:
            self._left.add(f"{key}/says")
            board.put(f"{key}/says", says.encode())
            self._raise_alarm(key + what)

        if self.size > 1:
            self._tell(tells)

    def _exchanged(self, key: str, value: bytes, deadline_s: float, half_way: Callable[[], None] | None = None) -> Gathered:
        waits_for(deadline_s)
        until = time.monotonic() + deadline_s
        while True:
            if self.board is None and self._meet(max(0.0, until - time.monotonic())):
                # Those that have waited are about to come.
                until = max(until, time.monotonic() + GRACE_S)
            with contextlib.suppress(Moved):
                return self._exchanged_here(key, value, until, deadline_s, half_way)

    def _exchanged_here(self, key: str, value: bytes, until: float, deadline_s: float, half_way: Callable[[], None] | None) -> Gathered:
        board = self.store
        before, self._exchanged_at = self._exchanged_at, key
        found = self._given(board, key, value)
        if found is not None and before:
            board.forget([f"{before}/v", f"{before}/n"])
        turn = turn_of(key, deadline_s)
        found = found or self._decided(turn, key, until, deadline_s, half_way)
        self.meeting.settled = True
        if before:
            board.forget([f"{before}/p/{self.me}"])
        if found is None:
            keys = [f"{key}/p/{rank}" for rank in self.ranks]
            there = {rank: said for rank, said in zip(self.ranks, board.look_at(keys), strict=True) if said is not None}
            # Where they stand they have told where `end` has asked for it.
            stopped = self.stopped_ranks()
            for rank in [rank for rank in self.ranks if rank not in there]:
                if rank in stopped:
                    there[rank] = _ABSENT + STOPPED.encode()
                elif told := [said for said in board.look_at([f"{key}{what}/place/{rank}" for what in (CALLS_OF_IT, ALL_OF_IT)]) if said is not None]:
                    there[rank] = _ABSENT + b"at " + told[0]
            found = board.decide(f"{key}/v", _packed(there))
        said = Gathered(msgspec.msgpack.decode(found, type=dict[int, bytes]))
        if len(said) == self.size:
            self._left.all_came(board)
        else:
            self._left.add(f"{key}/v", f"{key}/n")
        call_sites.missed([rank for rank in self.ranks if rank not in said])
        return said

    def _given(self, board: BoundedStore, key: str, value: bytes, rank: int | None = None) -> bytes | None:
        """What is decided, where we are the last to come; or `rank`, for which we answer."""
        rank = self.me if rank is None else rank
        board.put(f"{key}/p/{rank}", value)
        if board.count(f"{key}/n") != self.size:
            return None
        # Those that have decided without us may have gone on, and taken what they had said with them.
        if (found := board.look(f"{key}/v")) is not None:
            return found
        return board.decide(f"{key}/v", _packed(dict(zip(self.ranks, board.all_of([f"{key}/p/{rank}" for rank in self.ranks]), strict=True))))

    def _decided(self, turn: Turn, key: str, until: float, deadline_s: float, half_way: Callable[[], None] | None) -> bytes | None:
        """None where nothing is heard for `deadline_s`. Raises Ended where everything around it is ended."""
        told = b""
        # A thousand ranks ask one server for as long as the slowest takes.
        looks_at = time.monotonic() + deadline_s / 20
        looks_for_ended = time.monotonic() + LOOKS_EVERY_S
        while (found := self.store.wait(f"{key}/v", max(0.0, min(until - time.monotonic(), LOOK_S)))) is None:
            if self._ends(turn.scope) or self._ends_calls(turn.scope):
                raise self._ended(turn.scope)
            self._moves()
            if not turn.said and self.store.look(f"{turn.key}/closed") is not None:
                self.close(turn, TOLD)
            self._say(turn)
            if self._alarm == turn.key:
                self.close(turn, TOLD)
            now = time.monotonic()
            if now >= looks_for_ended:
                looks_for_ended = now + LOOKS_EVERY_S
                board = self.store
                for rank in self.ended_ranks():
                    given = [f"{key}/p/{rank}", f"{key}/ended/{rank}"]
                    if board.look(given[0]) is None and board.decide(given[1], b"%d" % self.me) == b"%d" % self.me:
                        self._left.add(*given)
                        self._given(board, key, _ABSENT + ENDED.encode(), rank)
            late, half = until <= now, half_way is not None and until - now < deadline_s / 2
            if not late and not half and now < looks_at:
                continue
            looks_at = now + deadline_s / 20
            # Also when it is over: this process may have stood still itself, while the others went on.
            if (progress := self.store.look(f"{key}/progress") or b"") != told:
                told, until = progress, time.monotonic() + deadline_s
            elif late:
                return None
            elif half_way is not None and half:
                half_way()
                half_way = None
        return found


def _packed(values: dict[int, bytes]) -> bytes:
    return msgspec.msgpack.encode(values)
