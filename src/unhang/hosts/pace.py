"""Notices that a training over several hosts takes its steps more slowly than it did, and which host or link the others then wait for.

Only a training that was faster before is looked at: hosts and links that differ from the start are the preflight's. What is asked of ranks is
whether they wait in a collective just now; of links, how many bytes TCP carried for ranks, and for how long some of them were on their way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unhang.model import frozen
from unhang.records.incident import Slow
from unhang.records.status import Now

# Of what it was before.
_SLOWER, _SLOWER_LINK = 1 / 2, 1 / 4
# What a pace is taken from: as long as that, and as many steps.
_WINDOW_S, _STEPS = 20.0, 4
_MOST_LOOKS = 900
# The share of looks in which ranks wait: those of a slow host at most, those of all others at least.
_SELDOM, _MOSTLY = 0.4, 0.75
# A link that carried less than this in a window, or for a shorter time, says nothing of its speed.
_LEAST_BYTES, _LEAST_BUSY_S = 1 << 20, 0.2
LINKS_EVERY_S = 5.0
Edge = tuple[str, str]


@frozen
class _Carried:
    """Of all connections of one link until `at_s`: bytes that arrived, those that were sent twice, and how long any were on their way."""

    at_s: float
    bytes: int
    again_bytes: int
    busy_s: float


@dataclass(kw_only=True)
class _Link:
    seen: deque[_Carried] = field(default_factory=lambda: deque(maxlen=_MOST_LOOKS))
    best: float = 0.0
    now: float | None = None
    again: float = 0.0

    def take(self, carried: _Carried) -> None:
        if self.seen and carried.bytes < self.seen[-1].bytes:
            # Other connections than before.
            self.seen.clear()
        self.seen.append(carried)
        before = next((c for c in reversed(self.seen) if carried.at_s - c.at_s >= _WINDOW_S), None)
        if before is None:
            return
        moved, busy_s = carried.bytes - before.bytes, carried.busy_s - before.busy_s
        if moved >= _LEAST_BYTES and busy_s >= _LEAST_BUSY_S:
            self.now, self.again = moved / busy_s, (carried.again_bytes - before.again_bytes) / moved
            self.best = max(self.best, self.now)


class Pace:
    """`ranks` of each host. Fed with `look` once a second, and with `links` every LINKS_EVERY_S."""

    def __init__(self, ranks: Mapping[str, range]) -> None:
        self._ranks = ranks
        self._looks: deque[tuple[float, int, frozenset[int]]] = deque(maxlen=_MOST_LOOKS)
        self._links: dict[Edge, _Link] = {}
        self._best = 0.0

    def look(self, now: Now) -> Slow | None:
        """Take in what the ranks do now; what makes the training slower than it was, if it is and that can be told."""
        step = max((rank.step for rank in now.ranks), default=0)
        self._looks.append((now.at_s, step, frozenset(rank.rank for rank in now.ranks if rank.waiting is not None)))
        begin = next((i for i, (at_s, s, _) in reversed(list(enumerate(self._looks))) if now.at_s - at_s >= _WINDOW_S and step - s >= _STEPS), None)
        if begin is None:
            return None
        window = list(self._looks)[begin:]
        pace = (step - window[0][1]) / (now.at_s - window[0][0])
        self._best = max(self._best, pace)
        if pace > self._best * _SLOWER:
            return None
        hosts, shares = self._slow_host([waiting for _, _, waiting in window])
        link = None
        if not hosts and (found := self._slow_link()) is not None:
            hosts, link = found, self._links[found]
        if not hosts:
            return None
        return Slow(
            hosts=hosts,
            steps_per_s=round(pace, 3),
            before_per_s=round(self._best, 3),
            waiting=shares,
            bytes_per_s=link.now if link is not None else None,
            before_bytes_per_s=link.best if link is not None else None,
            again=link.again if link is not None else None,
        )

    def _slow_host(self, looks: list[frozenset[int]]) -> tuple[tuple[str, ...], tuple[float, float] | None]:
        """The one host whose ranks seldom wait while those of all others mostly do, with these shares."""
        shares = {host: [sum(rank in waiting for waiting in looks) / len(looks) for rank in ranks] for host, ranks in self._ranks.items()}
        seldom = [host for host, each in shares.items() if max(each) <= _SELDOM]
        if len(seldom) != 1:
            return (), None
        least = min((min(each) for host, each in shares.items() if host != seldom[0]), default=0.0)
        return ((seldom[0],), (round(max(shares[seldom[0]]), 2), round(least, 2))) if least >= _MOSTLY else ((), None)

    def links(self, answers: Mapping[str, Mapping[str, Any]], at_s: float) -> None:
        """What each host's ranks have sent over their connections (`job.links`)."""
        hosts = {link["local"]: host for host, answer in answers.items() for link in answer.get("links", ())}
        carried: dict[Edge, _Carried] = {}
        for host, answer in answers.items():
            for link in answer.get("links", ()):
                peer = hosts.get(link["peer"], host)
                if peer != host:
                    before = carried.get((host, peer), _Carried(at_s=at_s, bytes=0, again_bytes=0, busy_s=0.0))
                    carried[host, peer] = _Carried(
                        at_s=at_s,
                        bytes=before.bytes + link["bytes"],
                        again_bytes=before.again_bytes + link["again_bytes"],
                        busy_s=before.busy_s + link["busy_s"],
                    )
        for edge, one in carried.items():
            self._links.setdefault(edge, _Link()).take(one)

    def _slow_link(self) -> Edge | None:
        """The one link that carries much less than it did, where all others carry more than half of it still."""
        shares = {edge: link.now / link.best for edge, link in self._links.items() if link.now is not None}
        slow = [edge for edge, share in shares.items() if share <= _SLOWER_LINK]
        return slow[0] if len(slow) == 1 and len(shares) > 1 and min(s for e, s in shares.items() if e != slow[0]) > _SLOWER else None
