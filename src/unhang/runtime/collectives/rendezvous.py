"""How the ranks of a group find one another in a store that may hold what processes before them have left there.

torchrun keeps its store when it restarts the ranks, on several hosts without a count that all of them know (torch 2.13), and a group that is made
again may have its name again. So all that a circle says stands under the name of a round, which is new each time. The group's first rank founds it;
whoever else comes says hello with a name that nobody has had, and only a process that lives can answer to that. In a round each rank has one seat: a
process that comes after another of its rank is none of that round. Where the first rank does not come in time, another one that waits founds it.

Over once all seats are taken: after that it costs nothing.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence

import msgspec

from unhang.runtime.collectives.bounded_store import BoundedStore

_SHORTEST_S = 0.005
_LONGEST_S = 0.1
# While ranks are on their way somebody waits for the answer; a rank that never comes is asked for no more often than alarms are.
_HURRIES_S = 0.02
_HURRIES_FOR_S = 60.0
_EVERY_S = 0.25
# A hello may be lost to an earlier process of this rank that takes its own away.
_KNOCKS_EVERY_S = 5.0
# Who founds where the first rank does not: those that wait, from the lowest on, each with so much time to be seen by the next.
_FOUNDS_AFTER_S = 0.5
_FOUNDS_WITHIN_S = 5.0
# So many answer who comes when the founder may be dead: a thousand would be a crowd.
_ANSWERERS = 16


class Moved(Exception):
    """This circle is in another round than it was a moment ago: what it has said there was not heard."""


class _Hello(msgspec.Struct, frozen=True, array_like=True):
    """`name`: to be answered to. `refused`: rounds in which this rank's seat was another process's."""

    name: str
    refused: list[str]


class Rendezvous:
    """Of one circle of more than one rank. Used by its calls, one at a time, and by its thread (`tend`), which has a connection of its own."""

    def __init__(self, root: BoundedStore, ranks: Sequence[int], me: int) -> None:
        """`root`: what is the same for all processes that have ever had this group. `ranks` are global ones, this one `me`."""
        self.round = ""
        # Something was decided in this round: there is no way back.
        self.settled = False
        self.root, self._ranks, self._me = root, tuple(ranks), me
        self._process = uuid.uuid4().hex
        self._name = ""
        self._refused: list[str] = []
        self._founded = False
        self._seat = 0
        # The first rank's round that we have sent it away from.
        self._moved = b""
        self._full = False
        self._heard = -1
        self._answered: dict[int, str] = {}
        self._hurries_until_s = 0.0
        self._lock = threading.Lock()

    @property
    def board(self) -> BoundedStore | None:
        return self.root.under(self.round) if self.round else None

    def meet(self, deadline_s: float) -> bool:
        """Until this rank has its seat in a round; whether others may have waited for that: it is a new one, or one without the first rank."""
        if self._me == self._ranks[0]:
            if self.round:
                return False
            self._found()
            # Or they are in a round without it already, and are about to say so.
            return True
        until = time.monotonic() + deadline_s
        # The first rank may have founded a round and stand still: those that are in it can let us in, while there is time to be heard there.
        asks_s = until - deadline_s / 2
        wanted, founds_s, knocks_s = self.root.count("wants", 0), float("inf"), 0.0
        called, pause_s = False, _SHORTEST_S
        while not self.round:
            now = time.monotonic()
            if now >= knocks_s or not self._name:
                knocks_s = now + _KNOCKS_EVERY_S
                self._knock()
            if now >= asks_s:
                asks_s = float("inf")
                self.root.count("asks")
            if now >= until and not called:
                called = True
                self.root.count("asks")
                self.root.count("wants")
            if founds_s == float("inf") and self.root.count("wants", 0) != wanted:
                before = [
                    said for said in self.root.look_at([f"hello/{rank}" for rank in self._ranks[1 : self._ranks.index(self._me)]]) if said is not None
                ]
                founds_s = now + min(_FOUNDS_AFTER_S * len(before), _FOUNDS_WITHIN_S)
            # Who is answered by now founds no other round: those of two would wait for each other for ever.
            if self._hears(self.root):
                break
            if now >= founds_s:
                self._found()
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_S)
        return called or not self.round.startswith(f"{self._ranks[0]}-")

    def hello(self) -> None:
        """Says that we are there, without waiting: `tend` takes the answer."""
        if self.round:
            return
        if self._me == self._ranks[0]:
            self._found()
        elif not self._name:
            self._knock()

    def tend(self, root: BoundedStore) -> float:
        """Takes an answer, and answers others, by the connection of `root`. Returns in how many seconds to come again."""
        if not self.round:
            self._hears(root)
        elif not self._full and self._seat <= _ANSWERERS:
            self._answer(root, self.round)
            if self._founded and not self._full and time.monotonic() < self._hurries_until_s:
                return _HURRIES_S
        return _EVERY_S

    def move(self) -> bool:
        """To the round that the others have founded without us; not once something was decided in this one, unless by us alone."""
        if self.settled and (self._full or not self._founded):
            return False
        if (found := self.root.look(f"moved/{self.round}")) is None or (self.settled and self.root.under(self.round).count("seats", 0) > 1):
            return False
        with self._lock:
            return self._sit(self.root, found.decode())

    def _knock(self) -> None:
        with self._lock:
            self._name = self._name or uuid.uuid4().hex
            self.root.put(f"hello/{self._me}", msgspec.json.encode(_Hello(self._name, self._refused)))
            self.root.count("knocks")

    def _found(self) -> None:
        with self._lock:
            if self.round:
                return
            name = f"{self._me}-{uuid.uuid4().hex}"
            self._take(self.root, name)
            if self._me == self._ranks[0]:
                self.root.put("host", name.encode())
            self._hurries_until_s = time.monotonic() + _HURRIES_FOR_S
            self._founded = True
            self.round = name

    def _hears(self, root: BoundedStore) -> bool:
        """Whether we have been answered, and have a seat now."""
        with self._lock:
            # What one thread has seen to be there the other must not take away before it is read: torch would wait for it.
            if self.round or not self._name or (found := root.look(f"round/{self._name}")) is None:
                return bool(self.round)
            name = found.decode()
            # What an earlier process of the first rank answers, who has another by now, is old.
            is_old = name.startswith(f"{self._ranks[0]}-") and root.look("host") != found
            if not is_old and self._sit(root, name):
                return True
            self._refused.append(name)
            self._name = ""
            return False

    def _sit(self, root: BoundedStore, name: str) -> bool:
        if not self._take(root, name):
            return False
        if self._name:
            root.forget([f"hello/{self._me}", f"round/{self._name}"])
        self._founded, self._heard, self._name, self._moved, self.settled = False, -1, "", b"", False
        self.round = name
        return True

    def _take(self, root: BoundedStore, name: str) -> bool:
        """Our seat there, where it is free."""
        round_ = root.under(name)
        if round_.decide(f"who/{self._me}", self._process.encode()) != self._process.encode():
            return False
        self._seat = round_.count("seats")
        return True

    def _answer(self, root: BoundedStore, name: str) -> None:
        round_ = root.under(name)
        if round_.count("seats", 0) >= len(self._ranks):
            self._full = True
            return
        # Whom the founder does not answer asks the others.
        heard = root.count("knocks" if self._founded else "asks", 0)
        if heard != self._heard:
            self._heard = heard
            for rank in self._ranks:
                if rank != self._me and (said := root.look(f"hello/{rank}")) is not None:
                    hello = msgspec.json.decode(said, type=_Hello)
                    if self._answered.get(rank) != hello.name and name not in hello.refused:
                        self._answered[rank] = hello.name
                        root.decide(f"round/{hello.name}", name.encode())
        if not name.startswith(f"{self._ranks[0]}-") and (host := root.look("host")) is not None and host != self._moved:
            # Where the first rank comes after all, or was there and stood still, it finds us. One that has ended reads nothing.
            self._moved = host
            root.put(f"moved/{host.decode()}", name.encode())
