"""Which ranks are told together, by their last heartbeats."""

from __future__ import annotations

from unhang.knowledge import seen as words
from unhang.records.status import Place, Seen, fewer, together

AT = Place(file="/p/t.py", line=3, name="f")


def one(rank, **fields):
    return Seen(ranks=(rank,), **({"place": AT, "step": None, "silent_s": 0.1} | fields | {"least_step": fields.get("step")}))


def test_a_rank_without_a_step_does_not_get_those_of_others():
    told = together([one(0, step=5), one(1), one(2, step=7), one(3)])
    assert [(s.ranks, s.least_step, s.step) for s in told] == [((0, 2), 5, 7), ((1, 3), None, None)]
    assert words.told(told) == "ranks 0 and 2 at t.py:3 in f (steps 5-7); ranks 1 and 3 at t.py:3 in f"


def test_a_rank_whose_heartbeats_came_does_not_get_the_silence_of_others():
    told = together([one(0), one(1, silent_s=90.0), one(2, silent_s=None), one(3, silent_s=0.2)])
    assert words.told(told) == (
        "ranks 0 and 3 at t.py:3 in f; rank 1 at t.py:3 in f (no heartbeat for 90 s by then); rank 2 at t.py:3 in f (no heartbeat came)"
    )


def test_of_fewer_ranks_only_what_holds_for_each_is_known():
    (both,) = together([one(0, step=5), one(1, step=7)])
    assert fewer(both, {2}) == both and fewer(both, {0, 1}) is None
    assert fewer(both, {0}) == Seen(ranks=(1,), place=AT, silent_s=0.1)
    (same,) = together([one(0, step=5), one(1, step=5)])
    assert fewer(same, {0}) == one(1, step=5)
