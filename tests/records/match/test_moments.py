"""Dumps of several moments, and of several runs: an older one lacks what its rank has done since, and no rank is blamed for that."""

from __future__ import annotations

import pytest
from tests.records.match import jobs
from tests.records.match.test_outcome import ALL4, DEFAULT, answer, gloo, history, last, message, recordings

from unhang.records.match.outcome import judge

S = 1_000_000_000
DAY = 86_400 * S


def dumps_of(*upto, pending=(), groups=ALL4):
    """Ranks whose dumps hold so many completed calls, and for some of them one more that is pending."""
    return {r: jobs.dump([*history(n), *([last(n + 1, "started", t=n * 1000)] if r in pending else [])], groups) for r, n in enumerate(upto)}


def moved(dump, ns):
    return dump | {"entries": [e | {"time_created_ns": e["time_created_ns"] + ns} for e in dump["entries"]]}


def test_a_rank_whose_dump_is_older_is_not_missing():
    """Ranks 1 to 3 have completed what needs rank 0, and its dump lacks it."""
    found = answer(dumps_of(10, 15, 15, 15, pending=(1, 2, 3)))
    assert (found.kind, found.number, found.waiting, found.unseen, found.older) == ("cannot-tell", 16, (1, 2, 3), (0,), (0,))
    # Rank 3 has been through all that the others have.
    found = answer(dumps_of(10, 15, 15, 15, pending=(1, 2)))
    assert (found.kind, found.ranks, found.unseen, found.older) == ("missing", (3,), (0,), (0,))


def test_where_an_older_dump_waits_nobody_waits_any_more():
    found = answer(dumps_of(9, 15, 15, 15, pending=(0,)))
    assert (found.kind, found.number, found.waiting, found.older) == ("cannot-tell", 10, (0,), (0,))
    found = answer(dumps_of(9, 15, 15, 15, pending=(0, 1, 2)))
    assert (found.kind, found.ranks, found.waiting, found.older) == ("missing", (3,), (1, 2), (0,))


def test_what_was_enqueued_behind_a_call_that_others_have_been_through():
    """Rank 0 had #10 pending and eight more behind it; #16 is what the others wait in."""
    dumps = dumps_of(9, 15, 15, 15, pending=(1, 2, 3))
    dumps[0]["entries"] += [last(n, "scheduled", record=n, t=n * 1000) for n in range(10, 18)]
    found = answer(dumps)
    assert (found.kind, found.number, found.waiting, found.unseen) == ("cannot-tell", 16, (1, 2, 3), (0,))


def test_dumps_of_a_healthy_job_that_were_taken_in_turn():
    found = answer(dumps_of(10, 11, 12, 13))
    assert (found.kind, found.waiting, found.unseen) == ("cannot-tell", (), (0, 1, 2))
    found = answer({r: gloo(range(1, 11 if r == 1 else 16), members=[0, 1, 2, 3]) for r in range(4)})
    assert (found.kind, found.waiting, found.unseen) == ("cannot-tell", (), (1,))


def test_an_older_dump_votes_with_what_was_over():
    """Rank 2 went astray at #4, and all went on; its dump is older. What rank 0 had pending then proves nothing."""
    dumps = dumps_of(15, 15, 9, 15)
    dumps[2]["entries"][3]["input_sizes"] = [[5]]
    found = answer(dumps)
    assert (found.kind, found.ranks, found.number, found.unseen) == ("shape", (2,), 4, (2,))
    dumps = dumps_of(15, 15, 9, 15)
    dumps[2]["entries"].append(last(10, "started", op="broadcast"))
    assert answer(dumps).kind == "cannot-tell"


def test_a_broadcast_that_is_over_proves_nothing():
    """For who sends it, it is over at once."""
    dumps = dumps_of(3, 3, 3, 3)
    for r in (0, 1):
        dumps[r]["entries"].append(last(4, "completed" if r == 0 else "started", op="broadcast"))
    found = answer(dumps)
    assert (found.kind, found.ranks, found.older) == ("missing", (2, 3), ())


def test_a_message_to_a_rank_whose_dump_is_older():
    dumps = dumps_of(15, 9, 15, 15)
    dumps[0]["entries"].append(message(20, "send 0->1", t=20_000))
    found = answer(dumps)
    assert (found.kind, found.unseen) == ("cannot-tell", (1,))


def test_one_name_of_two_groups_whose_members_nobody_tells():
    """Ranks 0 and 1 have been through nine calls of theirs, rank 3 never comes to #6 of the other one."""
    dumps = {r: gloo([1, 2, 3]) for r in range(4)}
    for r, n in ((0, 9), (1, 9), (2, 6), (3, 5)):
        group = ("1", "undefined")
        dumps[r]["entries"] += [
            jobs.entry(3 + i, group, i, "all_reduce", 2, 30, "completed" if i < 6 or r < 2 else "scheduled", t=9000 + i, backend="gloo")
            for i in range(1, n + 1)
        ]
    found = answer(dumps)
    assert (found.kind, found.waiting, found.unseen) == ("cannot-tell", (2,), (3,))


@pytest.mark.parametrize("odd", [last(21, "started", op="broadcast"), None])
def test_a_dump_of_yesterday(odd):
    dumps = {r: moved(jobs.dump([*history(50), last(51, "started", t=60_000)], ALL4), DAY) for r in range(3)}
    dumps[3] = jobs.dump([*history(20), *([odd] if odd else [])], ALL4)
    found = answer(dumps)
    assert (found.kind, found.number, found.unseen, found.left_out) == ("cannot-tell", 51, (3,), ((3, 0),))
    # It was the longer run.
    dumps[3] = jobs.dump(history(90), ALL4)
    assert answer(dumps).left_out == ((3, 0),)


def test_dumps_of_yesterday_of_a_larger_world():
    eight = {"0": ("default_pg", list(range(8)))}
    dumps = {r: moved(jobs.dump([*history(50), *([last(51, "started", t=60_000)] if r < 3 else [])], ALL4), DAY) for r in range(4)}
    dumps |= {r: jobs.dump([*history(20), *([last(21, "started", t=60_000)] if r != 5 else [])], eight) for r in range(4, 8)}
    found = answer(dumps)
    assert (found.kind, found.ranks, [rank for rank, _ in found.left_out]) == ("missing", (3,), [4, 5, 6, 7])
    # One of them has left no dump: still most of its ranks are here.
    del dumps[3]
    found = answer(dumps)
    assert (found.kind, found.unseen, [rank for rank, _ in found.left_out]) == ("cannot-tell", (3,), [4, 5, 6, 7])


@pytest.mark.parametrize("ns", [-120 * S, 120 * S])
def test_clocks_of_hosts_differ_and_their_calls_fit(ns):
    dumps = dumps_of(15, 15, 15, 15, pending=(0, 1, 2))
    dumps[3] = moved(dumps[3], ns)
    found = answer(dumps)
    assert (found.kind, found.ranks, found.left_out) == ("missing", (3,), ())


def test_who_hangs_is_older_than_what_the_rings_of_the_others_hold():
    """Rank 3 hangs; the others wait for it, and go on with a group of their own for an hour."""
    side = ("1", "side")
    groups = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("side", [0, 1, 2])}
    dumps = {r: jobs.dump([last(4, "started", record=400, t=3_601 * S)], groups) for r in range(3)}
    for r in range(3):
        dumps[r]["entries"][:0] = [jobs.entry(300 + i, side, 300 + i, "all_reduce", 4, 20, "completed", t=(3_500 + i) * S) for i in range(100)]
    dumps[3] = jobs.dump(history(3), ALL4)
    found = judge(recordings(dumps))
    assert (found.kind, found.ranks, found.left_out) == ("missing", (3,), ()) and found.group_name == DEFAULT[0]


@pytest.mark.parametrize("over", [0, 3])
def test_who_has_not_come_to_a_world_that_was_made_again_is_of_this_run(over):
    """An hour later; what the others have been through in it, rank 2 has, too, after its dump was taken."""

    def of(r):
        old = [e | {"pg_id": 0} for e in history(9)]
        new = [last(n, "completed", record=20 + n, t=3600 * S + n) | {"pg_id": 1} for n in range(1, over + 1)]
        return jobs.dump([*old, *([] if r == 2 else [*new, last(over + 1, "started", record=30, t=3600 * S + 9) | {"pg_id": 1}])], ALL4)

    found = answer({r: of(r) for r in range(4)})
    expected = ("cannot-tell", (2,), (2,)) if over else ("missing", (), ())
    assert (found.kind, found.unseen, found.older) == expected
    assert (found.number, found.waiting, found.left_out) == (over + 1, (0, 1, 3), ())


def rounds_of_gloo(*upto, pending=()):
    """One call in each of three groups a round; all of them are over, but for one more of some ranks."""
    dumps = {}
    for r, n in enumerate(upto):
        calls = [(i, g) for i in range(1, n + 1) for g in (DEFAULT, ("1", "undefined"), ("2", "undefined"))]
        entries = [jobs.entry(at, g, i, "all_reduce", 64, 22, "completed", t=1000 * at, backend="gloo") for at, (i, g) in enumerate(calls)]
        if r in pending:
            entries.append(jobs.entry(len(calls), DEFAULT, n + 1, "all_reduce", 64, 22, "scheduled", t=1000 * len(calls), backend="gloo"))
        dumps[r] = jobs.dump(entries, pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})
    return dumps


def test_on_gloo_who_went_on_in_another_group_did_not_give_up():
    """Rank 0 issued #13 of groups 1 and 2 behind #13 of group 0, and nobody tells whether that had failed."""
    found = answer(rounds_of_gloo(13, 12, 12))
    assert (found.kind, found.waiting, found.gave_up, found.older, found.perhaps_older) == ("cannot-tell", (), False, (), (1, 2))
    assert set(found.unseen) >= {1, 2} and not any(s.lacking for s in found.last)
    # All of rank 2's calls are each the only one of its group.
    found = answer(rounds_of_gloo(13, 12, 1))
    assert (found.kind, found.waiting, found.older, found.perhaps_older) == ("cannot-tell", (), (), (1, 2))
    found = answer(rounds_of_gloo(13, 13, 1, pending=(0, 1)))
    assert (found.kind, found.waiting, found.unseen, found.perhaps_older) == ("cannot-tell", (0, 1), (2,), (2,))


def test_on_gloo_who_has_issued_nothing_behind_it_gave_up():
    dumps = rounds_of_gloo(13, 13, 13)
    for r in (0, 1):
        dumps[r]["entries"].append(jobs.entry(39, DEFAULT, 14, "all_reduce", 64, 22, "completed", t=90_000, backend="gloo"))
    found = answer(dumps)
    assert (found.kind, found.ranks, found.waiting, found.gave_up, found.perhaps_older) == ("missing", (2,), (0, 1), True, ())


@pytest.mark.parametrize("s", [-599, -22, 22, 599])
@pytest.mark.parametrize("odd", [0, 2])
def test_whose_calls_all_lie_outside_those_of_the_others_may_be_of_another_run(s, odd):
    dumps = dumps_of(13, 13, 13, 13, pending=(0, 1, 2, 3))
    dumps[odd]["entries"][-1]["profiling_name"] = "nccl:broadcast"
    assert answer(dumps).out_of_time == ()
    found = answer({r: moved(d, s * S) if r == odd else d for r, d in dumps.items()})
    assert (found.kind, found.ranks, [(r, round(ns / S)) for r, ns in found.out_of_time]) == ("op", (odd,), [(odd, s)])


def test_who_comes_late_to_the_first_call_is_of_the_same_run():
    """Nothing that is over is shared: rank 3 came half a minute after the others, to another call."""
    dumps = {r: jobs.dump([last(1, "started")], ALL4) for r in range(3)} | {3: jobs.dump([last(1, "started", op="broadcast", t=30 * S)], ALL4)}
    assert (answer(dumps).kind, answer(dumps).out_of_time) == ("op", ())


def test_calls_that_overlap_in_time_are_of_one_run_whatever_the_clocks():
    dumps = {r: jobs.dump([last(n, "completed", t=n * 10 * S) for n in range(1, 14)], ALL4) for r in range(4)}
    dumps[3] = moved(dumps[3], 22 * S)
    assert answer(dumps).out_of_time == ()


def test_asynchronous_calls_of_gloo_may_have_failed_one_behind_the_other():
    """Three buckets at once, to none of which rank 3 came: they have timed out on two ranks, and are pending on the third."""
    dumps = {r: gloo([1, 2, 3, 4, 5, 6], members=[0, 1, 2, 3], done=range(1, 7) if r < 2 else range(1, 4)) for r in range(3)}
    dumps[3] = gloo([1, 2, 3], members=[0, 1, 2, 3])
    found = answer(dumps)
    assert (found.kind, found.waiting, found.unseen, found.older, found.perhaps_older) == ("cannot-tell", (2,), (3,), (), (3,))
