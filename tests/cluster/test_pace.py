"""A training that has become slower, and why, from what its ranks and links were seen to do."""

from __future__ import annotations

import pytest

from unhang.hosts.pace import Pace
from unhang.records.status import Now, RankNow, Waiting

HOSTS = {"node1": range(2), "node2": range(2, 4), "node3": range(4, 6)}
RING = (("node1", "node2"), ("node2", "node3"), ("node3", "node1"))


def slow_at_last(*, steps_per_s=1.0, working=(), seldom=4, slow_links=(), before=10.0):
    """A minute at `before` steps a second, and one at `steps_per_s` in which only `working` ranks wait `seldom`, and links carry a tenth."""
    pace, step, bytes_sent = Pace(HOSTS), 0.0, dict.fromkeys(RING, 0)
    for s in range(120):
        is_slow = s >= 60
        step += steps_per_s if is_slow else before
        waits = [r for r in range(6) if (s % seldom == 0 if is_slow and r in working else s % 5 if is_slow else s % 2)]
        ranks = tuple(
            RankNow(rank=r, pid=1, host="h", since_s=0, step=int(step), waiting=Waiting(since_s=s) if r in waits else None) for r in range(6)
        )
        for edge in RING:
            bytes_sent[edge] += 100_000 if is_slow and edge in slow_links else 1_000_000
        answers = {a: {"links": [{"local": a, "peer": b, "bytes": bytes_sent[a, b], "again_bytes": 0, "busy_s": s / 10}]} for a, b in RING}
        pace.links(answers, float(s))
        found = pace.look(Now(attempt=0, host="", time_s=0, at_s=float(s), every_s=1, hang_after_s=60, ranks=ranks))
        if found is not None:
            return found
    return None


@pytest.mark.parametrize(
    ("course", "hosts"),
    [
        pytest.param({"working": (2, 3)}, ("node2",), id="all ranks of a host are late"),
        pytest.param({"slow_links": RING[:1]}, ("node1", "node2"), id="one link carries less"),
        pytest.param({"working": (2, 3), "steps_per_s": 8.0}, None, id="no slower"),
        pytest.param({"working": (2, 3), "before": 1.0}, None, id="slow from the start"),
        pytest.param({"working": (2,)}, None, id="one rank of a host"),
        pytest.param({"working": (2, 3, 4, 5)}, None, id="two hosts"),
        pytest.param({"slow_links": RING[:2]}, None, id="two links"),
        pytest.param({}, None, id="all wait, and nobody is late"),
    ],
)
def test_what_makes_it_slower(course, hosts):
    found = slow_at_last(**course)
    assert (None if found is None else found.hosts) == hosts
