"""Dumps of several moments, and of several runs: an older one lacks what its rank has done since, and no rank is blamed for that."""

from __future__ import annotations

import pytest
from tests.flight import jobs
from tests.flight.test_outcome import ALL4, DEFAULT, answer, gloo, history, last, message, recordings

from unhang.flight.wait_graph import judge

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


@pytest.mark.parametrize("s", [-120, 120])
def test_a_clock_that_is_off_by_more_than_all_calls_took_looks_like_another_run(s):
    dumps = dumps_of(15, 15, 15, 15, pending=(0, 1, 2))
    found = answer(dumps | {3: moved(dumps[3], s * S)})
    assert (found.kind, found.unseen, found.left_out) == ("cannot-tell", (3,), ((3, 0),))
    assert answer(dumps | {3: moved(dumps[3], s // 60 * S)}).ranks == (3,)


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
def test_whose_calls_all_lie_outside_those_of_the_others_is_of_another_run(s, odd):
    """Nobody can be through a call to which others come only later."""
    dumps = dumps_of(13, 13, 13, 13, pending=(0, 1, 2, 3))
    dumps[odd]["entries"][-1]["profiling_name"] = "nccl:broadcast"
    assert answer(dumps).ranks == (odd,)
    found = answer({r: moved(d, s * S) if r == odd else d for r, d in dumps.items()})
    assert (found.kind, found.unseen, found.left_out) == ("cannot-tell", (odd,), ((odd, 1 if odd == 0 else 0),))


@pytest.mark.parametrize("s", [-182, 182])
def test_a_short_run_beside_a_longer_one_is_another(s):
    """Rank 0 hung in #6, and the others went through forty."""
    dumps = {r: gloo(range(1, 41), members=[0, 1, 2]) for r in (1, 2)}
    dumps[0] = moved(gloo(range(1, 7), members=[0, 1, 2], done=range(1, 6)), s * S)
    assert answer(dumps).left_out == ((0, 1),)


def test_a_longer_run_of_yesterday_beside_rings_that_have_lost_their_beginning():
    """Rank 3 was through #90 yesterday; of the others, which are at #51 today, the ring holds no more than the newest ten."""
    dumps = {r: moved(jobs.dump([*history(50)[40:], last(51, "started", t=60_000)], ALL4), DAY) for r in range(3)}
    dumps[3] = jobs.dump(history(90), ALL4)
    assert answer(dumps).left_out == ((3, 0),)


def test_who_comes_late_to_the_first_call_is_of_the_same_run():
    """Nothing that is over is shared: rank 3 came half a minute after the others, to another call."""
    dumps = {r: jobs.dump([last(1, "started")], ALL4) for r in range(3)} | {3: jobs.dump([last(1, "started", op="broadcast", t=30 * S)], ALL4)}
    assert (answer(dumps).kind, answer(dumps).left_out) == ("op", ())


def test_calls_that_overlap_in_time_are_of_one_run_whatever_the_clocks():
    dumps = {r: jobs.dump([last(n, "completed", t=n * 10 * S) for n in range(1, 14)], ALL4) for r in range(4)}
    dumps[3] = moved(dumps[3], 22 * S)
    assert answer(dumps).left_out == ()


def buckets_of_gloo(*done, ahead=3):
    """Three calls at once behind `ahead` others, to none of which rank 3 came: which of them have ended on ranks 0 to 2."""
    numbers = range(1, ahead + 4)
    dumps = {r: gloo(numbers, members=[0, 1, 2, 3], done=[*range(1, ahead + 1), *ended]) for r, ended in enumerate(done)}
    return dumps | {3: gloo(range(1, ahead + 1), members=[0, 1, 2, 3])}


@pytest.mark.parametrize("done", [((4, 5, 6), (4, 5, 6), (5, 6)), ((4, 5, 6), (4, 5), (5, 6)), ((6,), (4, 6), ()), ((4, 5, 6), (4, 5, 6), ())])
def test_asynchronous_calls_of_gloo_have_failed_in_any_order(done):
    """One that is pending behind its followers' issue shows that nobody waited for it."""
    found = answer(buckets_of_gloo(*done))
    assert (found.kind, found.ranks, found.number, found.waiting, found.gave_up) == ("missing", (3,), 4, (0, 1, 2), False)
    assert (found.older, found.perhaps_older) == ((), ())


def test_where_all_that_a_rank_lacks_has_ended_its_dump_may_be_older():
    found = answer(buckets_of_gloo((4, 5, 6), (4, 5, 6), (4, 5, 6)))
    assert (found.kind, found.waiting, found.unseen, found.older, found.perhaps_older) == ("cannot-tell", (), (3,), (), (3,))
    # What was issued before the first of which it is known that nobody waited for it may have gone well.
    found = answer(buckets_of_gloo((4, 5, 6), (4, 5), (4, 6)))
    assert (found.kind, found.waiting, found.unseen, found.perhaps_older) == ("cannot-tell", (2,), (3,), (3,))


def test_who_goes_on_for_long_behind_a_call_of_gloo_waits_for_the_others_in_turn():
    """A thread of rank 0 has #4 pending, and trains on: what is behind it is over wherever another one follows."""
    dumps = {r: gloo(range(1, 41), members=[0, 1, 2, 3], done=[n for n in range(1, 41) if n != 4 or r]) for r in range(3)}
    dumps[3] = gloo(range(1, 21), members=[0, 1, 2, 3])
    for d in dumps.values():
        d["entries"] = [e | {"time_created_ns": e["time_created_ns"] + e["collective_seq_id"] * S} for e in d["entries"]]
    found = answer(dumps)
    assert (found.kind, found.unseen, found.perhaps_older) == ("cannot-tell", (3,), (3,))


def prepared(*, late_s, timeout_s):
    """Rank 0 prepares the data for so long, while the others wait in their first call; then it calls something else."""
    dumps = {r: jobs.dump([last(1, "started", record=0, t=S)], ALL4) for r in (1, 2, 3)}
    dumps[0] = jobs.dump([last(1, "started", record=0, op="broadcast", t=late_s * S)], ALL4)
    for d in dumps.values():
        d["entries"] = [e | {"timeout_ms": timeout_s * 1000} for e in d["entries"]]
    return dumps


def test_others_may_wait_for_a_rank_for_as_long_as_their_timeout():
    found = answer(prepared(late_s=3000, timeout_s=3600))
    assert (found.kind, found.ranks, found.left_out) == ("op", (0,), ())
    assert answer(prepared(late_s=3000, timeout_s=600)).left_out == ((0, 1),)
    assert answer(prepared(late_s=9000, timeout_s=3600)).left_out == ((0, 1),)


def test_an_older_dump_with_calls_on_the_way_reopens_nothing():
    """One call a minute. Rank 3 had #10 and #11 on the way when its dump was taken; twenty minutes later rank 2 does not come to #30."""
    dumps = {r: gloo(range(1, 31 if r != 2 else 30), members=[0, 1, 2, 3], done=range(1, 30)) for r in range(3)}
    dumps[3] = gloo(range(1, 12), members=[0, 1, 2, 3], done=range(1, 10))
    for d in dumps.values():
        d["entries"] = [
            e | {"time_created_ns": e["time_created_ns"] + min(e["collective_seq_id"], 10 if d is dumps[3] else 99) * 60 * S} for e in d["entries"]
        ]
    found = answer(dumps)
    assert (found.kind, found.ranks, found.number, found.waiting, found.perhaps_older) == ("missing", (2,), 30, (0, 1), (3,))
    done = {r: gloo(range(1, 31), members=[0, 1, 2, 3]) for r in range(3)} | {3: dumps[3]}
    for r in range(3):
        done[r]["entries"] = [e | {"time_created_ns": e["time_created_ns"] + e["collective_seq_id"] * 60 * S} for e in done[r]["entries"]]
    assert answer(done).waiting in ((), (3,))


@pytest.mark.parametrize("more", [2, 40])
def test_of_calls_behind_those_that_an_older_dump_has_on_the_way_nothing_is_shown(more):
    """A job that moves fast: rank 3 was looked at a moment before the others."""
    dumps = {r: gloo(range(1, 12 + more), members=[0, 1, 2, 3]) for r in range(3)}
    dumps[3] = gloo(range(1, 12), members=[0, 1, 2, 3], done=range(1, 10))
    found = answer(dumps)
    assert found.waiting == (3,) and found.finished == (0, 1, 2) and 3 in found.perhaps_older


def test_a_dump_from_before_a_restart_is_of_another_run_however_long_others_may_wait():
    """It hangs in #10, is started again a quarter of an hour later and hangs there again, and rank 3 writes no dump."""
    dumps = {r: jobs.dump([*[e | {"record_id": n} for n, e in enumerate(history(9))], last(10, "started")], ALL4) for r in range(4)}
    dumps = {r: moved(d, 900 * S) if r != 3 else d for r, d in dumps.items()}
    found = answer(dumps)
    assert (found.kind, found.unseen, found.left_out) == ("cannot-tell", (3,), ((3, 0),))


@pytest.mark.parametrize("timeout_ms", [10**30, 86_400_000_000_000, -5, "soon"])
def test_a_timeout_that_is_none_is_no_reason_to_leave_a_dump_out(timeout_ms):
    dumps = dumps_of(3, 3, 3, 3, pending=(0, 1, 2))
    for d in dumps.values():
        d["entries"] = [e | {"timeout_ms": timeout_ms} for e in d["entries"]]
    found = recordings(dumps)
    assert judge(found).ranks == (3,) and all(0 <= r.patience_ns <= DAY for r in found.values())
