"""Clocks of hosts differ: what a ring has lost is judged by one clock."""

from __future__ import annotations

import pytest
from tests.flight import jobs
from tests.flight.test_outcome import DEFAULT, answer

S = 1_000_000_000
GROUPS = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("tp", [0, 3]), "2": ("dp", [2, 3])}


def of(rank, ahead_s, *, issued, shared=True):
    """Ranks 2 and 3 go on in a group of their own; rank 0 waits for rank 3 in another one, and the ring of rank 3 has lost that time."""
    first = [jobs.entry(i, DEFAULT, i + 1, "all_reduce", 4, 20, "completed", t=i * S) for i in range(5)]
    own = [("1", "tp", "started", 10)] if rank == 0 or (rank == 3 and issued) else []
    entries = [*first, *(jobs.entry(6, (name, desc), 1, "all_reduce", 8, 30, state, t=t * S) for name, desc, state, t in own)]
    if rank in (2, 3):
        entries += [jobs.entry(7 + i, ("2", "dp"), i + 1, "all_reduce", 8, 40, "completed", t=(10 + i) * S // 5 * 5) for i in range(100)]
    if rank == 3:
        entries = entries[-40:]
    return jobs.dump(
        [e | {"time_created_ns": e["time_created_ns"] + ahead_s * S} for e in entries], {g: v for g, v in GROUPS.items() if rank in v[1]}
    )


@pytest.mark.parametrize("ahead_s", [0, -60, -300, 60])
def test_a_ring_that_has_lost_the_time_on_a_host_whose_clock_is_behind(ahead_s):
    found = answer({r: of(r, ahead_s if r == 3 else 0, issued=True) for r in range(4)})
    assert (found.kind, found.waiting, found.unseen) == ("cannot-tell", (0,), (3,))


@pytest.mark.parametrize("ahead_s", [0, 20])
def test_a_ring_that_still_has_that_time(ahead_s):
    """Rank 0 began to wait long after the oldest that rank 3 still has."""
    found = waiting_since(100, ahead_s)
    assert (found.kind, found.ranks, found.waiting) == ("missing", (3,), (0,))


def test_a_ring_that_begins_as_the_wait_does():
    """The oldest that rank 3 still has is of 70 s: clocks that agree are some seconds apart."""
    for waits_s, told in ((73, ("cannot-tell", (3,))), (77, ("missing", ()))):
        found = waiting_since(waits_s, 0)
        assert (found.kind, found.unseen) == told


def waiting_since(waits_s, ahead_s):
    dumps = {r: of(r, ahead_s if r == 3 else 0, issued=False) for r in range(4)}
    dumps[0]["entries"][-1]["time_created_ns"] = jobs.T0 + waits_s * S
    return answer(dumps)
