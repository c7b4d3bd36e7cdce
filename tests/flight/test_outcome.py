"""Jobs with one thing gone wrong: it is found, wherever it is, in whatever order the dumps come; and where nothing is wrong nothing is found."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import random

import pytest
from tests.flight import jobs
from tests.tables import for_each

from unhang.flight.dump_file import decoded
from unhang.flight.recording import recording_of
from unhang.flight.wait_graph import judge


def recordings(dumps, *, as_json=()):
    found = {}
    order = list(dumps)
    random.Random(len(order)).shuffle(order)
    for r in order:
        (opened,) = decoded(written(dumps[r], as_json=r in as_json), "x")
        found[r] = recording_of(opened, rank=r, source=f"rank_{r}")
    return found


def written(dump, *, as_json=False):
    if not as_json:
        return pickle.dumps(dump, protocol=2)
    raw = copy.deepcopy(dump)
    for e in raw["entries"]:
        del e["frames"]
    return json.dumps(raw).encode()


def answer(dumps, **more):
    found = recordings(dumps, **more)
    first = judge(found)
    assert judge(dict(reversed(found.items()))) == first
    return first


def injected(plan, kind, rng):
    """A job with one fault: (dumps, rank, group, number)."""
    odd = rng.randrange(plan.world)
    calls = plan.calls(odd)
    place = rng.randrange(len(calls) // 4, 3 * len(calls) // 4)
    if kind == "order":
        while calls[place][0] != calls[place + 1][0]:
            place += 1
    group, op, elements, line = calls[place]
    number = sum(c[0] == group for c in calls[: place + 1])
    changed = list(calls)
    if kind == "missing":
        changed = [*calls[:place], None]
    elif kind == "op":
        changed[place] = (group, "reduce", elements, 77)
    elif kind == "shape":
        changed[place] = (group, op, elements + 1, line)
    elif kind == "dtype":
        changed[place] = (group, op, elements, line, {"dtype": "Half"})
    elif kind == "order":
        changed[place : place + 2] = [calls[place + 1], calls[place]]
    elif kind == "extra":
        changed.insert(place, (group, "reduce", 3, 77))
    elif kind == "lacking":
        del changed[place]
    dumps = jobs.run(plan, {odd: changed}, ahead=30, ring=rng.choice([2000, 60]))
    return dumps, odd, group, number


KINDS = ["missing", "op", "shape", "dtype", "order", "extra", "lacking"]


@for_each("kind", KINDS)
@for_each("seed", range(3))
@for_each(("world", "tp"), [(4, 1), (8, 1), (16, 4)])
def test_what_was_injected_comes_out(kind, seed, world, tp):
    rng = random.Random(1000 * seed + world + tp)
    plan = jobs.Plan(world=world, tp=tp, seed=seed, steps=20)
    dumps, odd, group, number = injected(plan, kind, rng)
    found = answer(dumps, as_json=[r for r in dumps if rng.random() < 0.3])
    assert (found.kind, found.ranks) == (kind, (odd,))
    if kind == "missing":
        issued = [e["collective_seq_id"] for e in dumps[odd]["entries"] if e["process_group"][0] == found.group_name]
        assert found.number == max(issued, default=0) + 1 and odd not in found.waiting and found.waiting
    else:
        assert (found.group_name, found.number) == (group, number)


@for_each("seed", range(8))
@for_each(("world", "tp"), [(2, 1), (8, 1), (16, 4)])
def test_where_nothing_is_wrong_nothing_is_found(seed, world, tp):
    rng = random.Random(seed)
    dumps = jobs.run(jobs.Plan(world=world, tp=tp, seed=seed), ring=rng.choice([2000, 40]))
    found = answer(dumps)
    assert (found.kind, found.ranks, found.unseen) == ("nothing-wrong", (), ())
    # One dump less, and it cannot be told.
    del dumps[rng.randrange(world)]
    assert answer(dumps).kind == "cannot-tell"


@pytest.mark.parametrize("seed", range(4))
def test_without_the_dump_of_who_never_came_nobody_is_blamed(seed):
    dumps, odd, *_ = injected(jobs.Plan(world=8, seed=seed), "missing", random.Random(seed))
    del dumps[odd]
    found = answer(dumps)
    assert (found.kind, found.unseen) == ("cannot-tell", (odd,)) and odd not in found.ranks


@pytest.mark.parametrize("seed", range(4))
def test_a_dump_that_is_cut_off_says_at_least_so_much(seed):
    dumps, odd, *_ = injected(jobs.Plan(world=4, seed=seed), "missing", random.Random(seed))
    found = recordings(dumps)
    data = pickle.dumps(dumps[odd], protocol=2)
    (opened,) = decoded(data[: int(len(data) * 0.7)], "x")
    found[odd] = recording_of(opened, rank=odd, source="x")
    assert found[odd].cut and (judge(found).kind, judge(found).unseen) == ("cannot-tell", (odd,))


ALL4 = {"0": ("default_pg", [0, 1, 2, 3])}
DEFAULT = ("0", "default_pg")


def history(n, *, backend="nccl", start=1):
    return [jobs.entry(i, DEFAULT, start + i, "all_reduce", 4, 20, "completed", t=i * 1000, backend=backend) for i in range(n)]


def last(number, state, *, record=9, op="all_reduce", t=9_000_000, **more):
    return jobs.entry(record, DEFAULT, number, op, 4, 20, state, t=t, **more)


def test_all_have_joined_and_none_has_finished():
    found = answer({r: jobs.dump([*history(3), last(4, "started")], ALL4) for r in range(4)})
    assert (found.kind, found.number, found.waiting, found.finished) == ("transport", 4, (0, 1, 2, 3), ())


def test_one_has_finished_and_is_not_the_culprit():
    found = answer({r: jobs.dump([*history(3), last(4, "completed" if r == 2 else "scheduled")], ALL4) for r in range(4)})
    assert (found.kind, found.number, found.waiting, found.finished) == ("finished-on-some", 4, (0, 1, 3), (2,))


def test_a_missing_dump_is_not_a_missing_rank():
    found = answer({r: jobs.dump([*history(3), last(4, "started")], ALL4) for r in range(3)})
    assert (found.kind, found.unseen, found.ranks) == ("cannot-tell", (3,), (0, 1, 2))


def test_rings_of_ranks_with_unequal_numbers_of_calls():
    solo = [jobs.entry(i, ("1", "solo"), i + 1, "all_reduce", 2, 9, "completed", t=i * 500) for i in range(24)]
    dumps = {1: jobs.dump([*history(12), last(13, "started")][-10:], {"0": ("default_pg", [0, 1])})}
    mixed = sorted([*history(12), *solo], key=lambda e: e["time_created_ns"])
    mixed = [e | {"record_id": n} for n, e in enumerate([*mixed, last(13, "started")])]
    dumps[0] = jobs.dump(mixed[-10:], {"0": ("default_pg", [0, 1]), "1": ("solo", [0])})
    found = answer(dumps)
    assert (found.kind, found.number, found.waiting) == ("transport", 13, (0, 1))


def test_two_of_two_that_differ_blame_nobody():
    pair = {"0": ("default_pg", [0, 1])}
    found = answer({r: jobs.dump([*history(3), last(4, "started", op=("all_reduce", "broadcast")[r])], pair) for r in range(2)})
    assert (found.kind, found.ranks, found.by) == ("op", (0, 1), "nothing")


def test_who_is_far_ahead_cannot_be_compared():
    dumps = {r: jobs.dump([*history(3, start=10), last(13, "started")], ALL4) for r in range(3)}
    dumps[3] = jobs.dump([e | {"record_id": 400 + n} for n, e in enumerate([*history(3, start=400), last(403, "started")])], ALL4)
    found = answer(dumps)
    assert (found.kind, found.number, found.ahead) == ("cannot-tell", 13, (3,))


def test_parts_of_a_split_group_have_one_name():
    def of(r):
        part = [2 * (r // 2), 2 * (r // 2) + 1]
        return jobs.dump(
            [jobs.entry(0, ("1", "tp"), 1, "all_reduce", 4, 5, "completed", t=1)]
            + ([] if r == 5 else [jobs.entry(1, ("1", "tp"), 2, "all_reduce", 4, 6, "started" if r == 4 else "completed", t=9)]),
            {"1": ("tp", part)},
        )

    found = answer({r: of(r) for r in range(8)})
    assert (found.kind, found.ranks, found.waiting, found.members) == ("missing", (5,), (4,), (4, 5))


def test_a_chain_of_three_groups():
    groups = {"a": ("tp", [0, 1]), "b": ("pp", [1, 2]), "c": ("dp", [2, 3])}

    def of(r):
        mine = {k: v for k, v in groups.items() if r in v[1]}
        before = [jobs.entry(i, (k, v[0]), 1, "all_reduce", 4, 5, "completed", t=i) for i, (k, v) in enumerate(mine.items())]
        here = [] if r == 3 else [jobs.entry(9, ("abc"[r], groups["abc"[r]][0]), 2, "all_reduce", 4, 60 + r, "started", t=1000 - r)]
        return jobs.dump(before + here, mine)

    found = answer({r: of(r) for r in range(4)})
    assert (found.kind, found.ranks, found.group_name) == ("missing", (3,), "c")
    assert [(s.group, s.waiting, s.lacking) for s in found.path] == [("a (tp)", (0,), (1,)), ("b (pp)", (1,), (2,)), ("c (dp)", (2,), (3,))]


def test_two_groups_that_are_used_in_different_orders():
    groups = {"x": ("x", [0, 1]), "y": ("y", [0, 1])}

    def of(order):
        return jobs.dump([jobs.entry(n, (g, g), 1, "all_reduce", 4, 10 + n, "scheduled", t=n) for n, g in enumerate(order)], groups)

    found = answer({0: of("xy"), 1: of("yx")})
    assert (found.kind, found.ranks) == ("groups-crossed", (0, 1)) and len(found.path) == 2


def message(record, what, *, elements=4, number=1, state="started", t=5000, dtype="Float", group=DEFAULT):
    return jobs.entry(record, group, 0, what, elements, 70, state, t=t, dtype=dtype) | {"is_p2p": True, "p2p_seq_id": number}


def test_a_send_without_a_partner():
    dumps = {r: jobs.dump(history(2), ALL4) for r in range(4)}
    dumps[0]["entries"].append(message(3, "send 0->1"))
    found = answer(dumps)
    assert (found.kind, found.ranks, found.waiting) == ("p2p-alone", (1,), (0,))


def test_messages_are_followed_too():
    dumps = {r: jobs.dump(history(2), ALL4) for r in range(4)}
    dumps[0]["entries"].append(message(3, "send 0->1"))
    dumps[1]["entries"].append(message(3, "recv 1<-2"))
    found = answer(dumps)
    assert (found.kind, found.ranks) == ("p2p-alone", (2,))


def test_a_message_of_another_size():
    dumps = {0: jobs.dump([message(0, "send 0->1", elements=8)], {"0": ("default_pg", [0, 1])})}
    dumps[1] = jobs.dump([message(0, "recv 1<-0", elements=4)], {"0": ("default_pg", [0, 1])})
    found = answer(dumps)
    assert (found.kind, found.ranks) == ("p2p-size", (0, 1))
    dumps[1]["entries"][0] |= {"input_sizes": [[8]]}
    assert answer(dumps).kind == "transport"


def test_both_send_first():
    pair = {"0": ("default_pg", [0, 1])}
    found = answer({0: jobs.dump([message(0, "send 0->1")], pair), 1: jobs.dump([message(0, "send 1->0")], pair)})
    assert (found.kind, found.ranks) == ("p2p-both-send", (0, 1))


def test_messages_have_ranks_of_their_group():
    groups = {"pp": ("pp", [2, 5])}
    dumps = {r: jobs.dump(history(1), groups if r in (2, 5) else {}) for r in range(6)}
    dumps[2]["entries"].append(message(0, "send 0->1", group=("pp", "pp")))
    found = answer(dumps)
    assert (found.kind, found.ranks, found.waiting) == ("p2p-alone", (5,), (2,))


def test_messages_that_were_launched_together_end_together():
    pair = {"0": ("default_pg", [0, 1])}
    parts = [message(0, "send 0->1", state="scheduled"), message(1, "recv 0<-1", state="scheduled")]
    theirs = [message(0, "recv 1<-0", state="scheduled"), message(1, "send 1->0", state="scheduled")]
    done = {r: jobs.dump([*history(1), *of, message(2, "coalesced", state="completed")], pair) for r, of in enumerate((parts, theirs))}
    assert answer(done).kind == "nothing-wrong"
    stuck = {0: jobs.dump([*parts, message(2, "coalesced")], pair), 1: jobs.dump(history(1), pair)}
    found = answer(stuck)
    assert (found.kind, found.ranks) == ("p2p-alone", (1,))


def test_calls_that_were_launched_together_have_one_number():
    def of(r):
        parts = [
            jobs.entry(5 + i, DEFAULT, 4, "_all_gather_base", n, 20, "scheduled", t=9000, outputs=4 * n) for i, n in enumerate((4, 8 + (r == 1)))
        ]
        return jobs.dump([*history(3), *parts, last(4, "started", record=7, op="coalesced")], ALL4)

    found = answer({r: of(r) for r in range(4)})
    assert (found.number, found.ranks) == (4, (1,))


def test_all_to_all_of_which_more_is_sent_than_received():
    def of(r, got):
        return jobs.dump([*history(2), last(3, "started", op="all_to_all", outputs=got)], ALL4)

    found = answer({r: of(r, 3 if r == 1 else 4) for r in range(4)})
    assert (found.kind, found.ranks, found.by) == ("shape", (0, 1, 2, 3), "sums")
    assert [s.ranks for s in found.sides] == [(0, 2, 3), (1,)]
    # Rank 1 has always sent more, and rank 2 has not made room for it: of the sums only those of rank 1 stand out.
    found = answer(
        {r: jobs.dump([*history(2), last(3, "started", op="all_to_all") | {"input_sizes": [[6 if r == 1 else 4]]}], ALL4) for r in range(4)}
    )
    assert (found.kind, found.ranks) == ("shape", (0, 1, 2, 3))
    # Uneven everywhere, and yet it fits.
    found = answer({r: of(r, (2, 6, 4, 4)[r]) for r in range(4)})
    assert found.kind == "transport"


def gloo(numbers, *, done=None, op="all_reduce", members=None):
    entries = [
        jobs.entry(i, DEFAULT, n, op, 4, 20, "completed" if done is None or n in done else "scheduled", t=i * 1000, backend="gloo")
        for i, n in enumerate(numbers)
    ]
    raw = jobs.dump(entries, pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})
    return raw | ({"members": {"0": members}} if members else {})


def test_gloo_of_which_one_never_came():
    dumps = {r: gloo([1, 2, 3] if r == 2 else [1, 2, 3, 4], done=[1, 2, 3]) for r in range(4)}
    found = answer(dumps)
    assert (found.kind, found.ranks, found.waiting, found.known) == ("missing", (2,), (0, 1, 3), False)
    dumps = {r: d | {"members": {"0": [0, 1, 2, 3]}} for r, d in dumps.items()}
    assert answer(dumps).known


def test_gloo_calls_that_failed_count_as_retired():
    """All have given up on #4, to which rank 2 never came."""
    dumps = {r: gloo([1, 2, 3] if r == 2 else [1, 2, 3, 4], members=[0, 1, 2, 3]) for r in range(4)}
    found = answer(dumps)
    assert (found.kind, found.ranks, found.number, found.gave_up) == ("missing", (2,), 4, True)
    # A broadcast may be over for who sent it.
    dumps = {r: gloo([1, 2, 3] if r == 2 else [1, 2, 3, 4], members=[0, 1, 2, 3], op="broadcast") for r in range(4)}
    assert answer(dumps).kind == "cannot-tell"


def test_all_have_come_and_gloo_calls_it_over_whether_it_failed_or_not():
    found = answer({r: gloo([1, 2, 3, 4], members=[0, 1, 2, 3]) for r in range(4)})
    assert (found.kind, found.waiting, found.known, found.unproven) == ("cannot-tell", (), True, True)
    assert [(s.group, s.number, s.waiting, s.lacking) for s in found.last] == [("0 (default_pg)", 4, (0, 1, 2, 3), ())]


def test_gloo_calls_that_are_over_are_not_waited_in():
    """The highest rank's dump is missing, and the others' last call has failed, or not: nobody tells how many there are."""
    found = answer({r: gloo([1, 2, 3, 4]) for r in range(3)})
    assert (found.kind, found.waiting, found.known) == ("cannot-tell", (), False)
    # Of one rank alone.
    found = answer({1: gloo([1, 2, 3])})
    assert (found.kind, found.waiting, found.unseen) == ("cannot-tell", (), (0,))


@pytest.mark.parametrize("state", ["completed", "scheduled"])
def test_who_may_belong_to_a_group_of_gloo_is_named(state):
    """Rank 2 never comes to the only call of a group whose members nobody tells: over, after the others timed out, or still pending."""
    dumps = {r: gloo([1, 2, 3]) for r in range(3)}
    for r in (0, 1):
        dumps[r]["entries"].append(jobs.entry(3, ("1", "undefined"), 1, "all_reduce", 2, 30, state, t=9000, backend="gloo"))
    found = answer(dumps)
    assert found.kind == "cannot-tell"
    if state == "scheduled":
        assert (found.waiting, found.outside) == ((0, 1), (2,))
    else:
        assert (found.waiting, found.last[0].waiting, found.last[0].lacking) == ((), (0, 1), (2,))


def test_where_nobody_tells_the_members_that_nobody_is_missing_is_not_said():
    found = answer({r: jobs.dump([*history(3), last(4, "started")]) for r in range(3)})
    assert (found.kind, found.known, found.waiting) == ("cannot-tell", False, (0, 1, 2))
    # One has finished what needs all: all had come.
    found = answer({r: jobs.dump([*history(3), last(4, "completed" if r == 2 else "started")]) for r in range(3)})
    assert (found.kind, found.finished) == ("finished-on-some", (2,))


def test_who_has_not_issued_what_is_over_elsewhere():
    """A broadcast is over for who sends it."""
    found = answer({r: jobs.dump([*history(3), *([last(4, "completed", op="broadcast")] if r == 0 else [])], ALL4) for r in range(4)})
    assert (found.kind, found.waiting, found.last[0].lacking) == ("cannot-tell", (), (1, 2, 3))


def three_of_four(second, **changes):
    """Ranks 0, 1 and 3 wait in #4; `second` are the entries of rank 2."""
    dumps = {r: jobs.dump([*history(3), last(4, "started")], ALL4) for r in range(4)}
    dumps[2] = jobs.dump(second, ALL4) | changes
    return dumps


def status(enqueued, completed):
    return {"0": {"last_enqueued_collective": enqueued, "last_started_collective": enqueued, "last_completed_collective": completed}}


def test_a_recorder_that_holds_nothing_proves_nothing():
    found = answer(three_of_four([]))
    assert (found.kind, found.unseen) == ("cannot-tell", (2,))
    # Only pending calls were kept, and it has none: its counters tell that it has been through #4.
    found = answer(three_of_four([], pg_status=status(4, 4)))
    assert (found.kind, found.unseen) == ("cannot-tell", (2,))
    found = answer(three_of_four([], pg_status=status(3, 3)))
    assert (found.kind, found.ranks) == ("missing", (2,))


def test_a_counter_proves_only_against_a_dump_that_lacks_what_is_over():
    pending = jobs.entry(3, DEFAULT, 2, "all_reduce", 4, 20, "scheduled", t=500)
    dumps = three_of_four([pending], pg_status=status(4, 1))
    dumps = {r: d | {"entries": d["entries"][-1:]} for r, d in dumps.items()}
    found = answer(dumps)
    assert (found.kind, found.number, found.ranks, found.unseen) == ("cannot-tell", 4, (0, 1, 3), (2,))
    # Messages count, too, and the entries say that the newest call is #3.
    found = answer(three_of_four(history(3), pg_status=status(9, 9)))
    assert (found.kind, found.ranks) == ("missing", (2,))


def test_an_entry_that_could_not_be_understood_may_be_the_one():
    found = answer(three_of_four([*history(3), last(4, "started") | {"collective_seq_id": "?"}]))
    assert (found.kind, found.unseen) == ("cannot-tell", (2,))


def test_messages_on_gloo_are_in_no_entry():
    """Ranks 1 and 2 exchanged five: op_id and the counters count them, sequence numbers do not."""
    dumps = {r: gloo([1, 2] if r == 2 else [1, 2, 3], done=[1, 2], members=[0, 1, 2]) for r in range(3)}
    for r, (second, issued) in enumerate([(2, 3), (7, 8), (7, 7)]):
        dumps[r]["entries"][1]["op_id"] = second
        dumps[r]["pg_status"] = {"0": {"last_enqueued_collective": issued, "last_completed_collective": second}}
    found = answer(dumps)
    assert (found.kind, found.ranks, found.number) == ("missing", (2,), 3)


def test_versions_may_be_mixed():
    dumps = {r: jobs.dump([*history(3), *([] if r == 2 else [last(4, "started")])], ALL4) for r in range(4)}
    for e in dumps[1]["entries"]:
        for gone in ("thread_id", "is_p2p", "op_id", "p2p_seq_id", "output_dtypes"):
            e.pop(gone, None)
    dumps[1]["version"] = "2.1"
    for e in dumps[3]["entries"]:
        e["seq_id"] = e.pop("collective_seq_id")
        e["pg_id"] = 0
        for gone in ("process_group", "is_p2p", "input_dtypes", "output_dtypes"):
            e.pop(gone, None)
    del dumps[3]["pg_config"]
    found = answer(dumps)
    assert (found.kind, found.ranks) in (("missing", (2,)), ("cannot-tell", (0, 1, 3)))


def test_a_group_that_is_served_by_a_thread_of_its_own():
    """Rank 1 waits for a stop signal all the time, and trains."""
    signal = jobs.entry(0, ("sig", "signal"), 1, "broadcast", 1, 90, "started", t=0)
    pair = {"0": ("default_pg", [0, 1]), "sig": ("signal", [0, 1])}

    def of(r, hung):
        steps = [jobs.entry(i + 1, DEFAULT, i + 1, "all_reduce", 4, 20, "completed", t=i * 1_000_000_000) for i in range(60)]
        last = [jobs.entry(61, DEFAULT, 61, "all_reduce", 4, 20, "started", t=61_000_000_000)] if hung else []
        return jobs.dump([*([signal] if r == 1 else []), *steps, *last], pair)

    found = answer({r: of(r, False) for r in range(2)})
    assert (found.kind, found.waiting) == ("cannot-tell", ())
    assert [(s.group, s.number, s.waiting, s.lacking) for s in found.aside] == [("sig (signal)", 1, (1,), (0,))]
    found = answer({r: of(r, True) for r in range(2)})
    assert (found.kind, found.waiting, found.group_name) == ("transport", (0, 1), "0") and found.aside[0].waiting == (1,)
    found = answer({r: of(r, r == 1) for r in range(2)})
    assert (found.kind, found.ranks, found.group_name) == ("missing", (0,), "0")


def test_what_one_version_does_not_tell_is_no_difference():
    def of(change):
        dumps = {r: jobs.dump([*history(3), *([] if r == 2 else [last(4, "started")])], ALL4) for r in range(4)}
        for e in dumps[3]["entries"]:
            change(e)
        return dumps

    def without_dtypes(e):
        del e["input_dtypes"], e["output_dtypes"]

    def without_group(e):
        del e["process_group"]
        e["pg_id"] = 0

    def without_description(e):
        e["process_group"] = ("0", "undefined")

    for change in (without_dtypes, without_group, without_description):
        found = answer(of(change))
        assert (found.kind, found.ranks, found.waiting, found.group) == ("missing", (2,), (0, 1, 3), "0 (default_pg)"), change
    found = answer({**of(without_description), 3: of(without_description)[3] | {"pg_config": {"0": {"desc": "undefined", "ranks": "[0, 1, 2, 3]"}}}})
    assert (found.kind, found.ranks, found.known) == ("missing", (2,), True)


def test_dtypes_that_are_told_are_compared_although_one_rank_tells_none():
    dumps = {r: jobs.dump([*history(3), last(4, "started", dtype="Half" if r == 1 else "Float")], ALL4) for r in range(4)}
    assert (answer(dumps).kind, answer(dumps).ranks) == ("dtype", (1,))
    for e in dumps[3]["entries"]:
        del e["input_dtypes"], e["output_dtypes"]
    # Which of the two the last rank issued nobody knows.
    assert answer(dumps).kind == "transport"
    dumps[1]["entries"][-1]["input_sizes"] = [[5]]
    assert (answer(dumps).kind, answer(dumps).ranks) == ("shape", (1,))


def test_the_edges_of_a_launch_are_no_difference():
    def launched(n, record, closed=True):
        parts = [
            jobs.entry(record + i, DEFAULT, n, "_all_gather_base", k, 20, "scheduled", t=10_000 + record, outputs=4 * k) for i, k in enumerate((4, 8))
        ]
        return [*parts, *([jobs.entry(record + 2, DEFAULT, n, "coalesced", 0, 20, "completed", t=10_000 + record)] if closed else [])]

    def of(r, lost=0, upto=10):
        more = [jobs.entry(8 + i, DEFAULT, 5 + i, "all_reduce", 4, 20, "completed" if i < 4 else "started", t=20_000 + i) for i in range(upto - 5)]
        return jobs.dump([*launched(4, 5), *more][lost:], ALL4)

    found = answer({r: of(r, lost=r % 3, upto=9 if r == 3 else 10) for r in range(4)})
    assert (found.kind, found.ranks, found.number) == ("missing", (3,), 9)
    inside = {r: jobs.dump([*history(3), *launched(4, 9, closed=r != 3)], ALL4) for r in range(4)}
    for r in range(3):
        inside[r]["entries"][-1] |= {"state": "started", "retired": False}
    found = answer(inside)
    assert found.kind in ("transport", "cannot-tell") and found.by == "nothing"


def test_groups_that_were_made_again():
    def of(r):
        old = [e | {"pg_id": 0} for e in history(9)]
        new = [jobs.entry(20 + n, DEFAULT, n, "broadcast", 8, 30, "completed", t=50_000 + n) | {"pg_id": 1} for n in (1, 2, 3)]
        return jobs.dump(
            [*old, *new, *([] if r == 2 else [jobs.entry(30, DEFAULT, 4, "broadcast", 8, 31, "started", t=90_000) | {"pg_id": 1}])], ALL4
        )

    found = answer({r: of(r) for r in range(4)})
    assert (found.kind, found.ranks, found.number, found.call) == ("missing", (2,), 4, "broadcast 8 Float")


def test_a_rank_that_has_not_come_to_a_group_that_was_made_again():
    def of(r):
        old = [e | {"pg_id": 0} for e in history(9)]
        return jobs.dump([*old, *([] if r == 2 else [jobs.entry(30, DEFAULT, 1, "broadcast", 8, 31, "started", t=90_000) | {"pg_id": 1}])], ALL4)

    found = answer({r: of(r) for r in range(4)})
    assert (found.kind, found.ranks, found.number, found.call) == ("missing", (2,), 1, "broadcast 8 Float")


def test_a_checkpoint_in_which_some_stand_while_all_go_on():
    names = {"0": ("default_pg", [0, 1, 2, 3]), "ck": ("ckpt", [0, 1, 2, 3])}

    def of(r):
        steps = [jobs.entry(i, DEFAULT, i, "all_reduce", 4, 20, "completed", t=10 + i * 1_000_000_000) for i in range(1, 61)]
        first = jobs.entry(0, ("ck", "ckpt"), 1, "all_reduce", 4, 90, "started", t=0) if r != 3 else steps[0] | {"record_id": 0}
        return jobs.dump([first, *(steps if r != 3 else steps[1:])], names)

    found = answer({r: of(r) for r in range(4)})
    assert (found.kind, found.waiting) == ("cannot-tell", ())
    assert [(s.group, s.waiting, s.lacking) for s in found.aside] == [("ck (ckpt)", (0, 1, 2), (3,))]
    assert [s.group for s in found.last] == ["0 (default_pg)"]


def test_a_time_that_cannot_be_does_not_take_a_rank_out_of_a_hang():
    dumps = {r: jobs.dump([*history(3), last(4, "started")], ALL4) for r in range(4)}
    dumps[3]["entries"][0]["time_created_ns"] = 2**62
    found = answer(dumps)
    assert (found.kind, found.waiting, found.aside) == ("transport", (0, 1, 2, 3), ())


def test_of_places_of_which_nothing_can_be_told_the_fullest():
    """Two groups of Gloo in another order: whoever waits first."""
    for first in (0, 2):
        dumps = {r: gloo([1]) for r in range(3)}
        for r in range(3):
            group = ("2", "undefined") if r == 2 else ("1", "undefined")
            dumps[r]["entries"].append(jobs.entry(1, group, 1, "all_reduce", 2, 30, "scheduled", t=5000 if r == first else 9000, backend="gloo"))
        found = answer(dumps)
        assert (found.kind, found.waiting, found.outside) == ("cannot-tell", (0, 1), (2,))


def test_a_partner_whose_dump_has_lost_that_time_is_not_blamed():
    dumps = {0: jobs.dump([message(0, "send 0->1", t=5000)], {"0": ("default_pg", [0, 1])})}
    late = [jobs.entry(500 + i, DEFAULT, i + 1, "all_reduce", 4, 20, "completed", t=20_000_000_000 + i) for i in range(3)]
    dumps[1] = jobs.dump(late, {"0": ("default_pg", [0, 1])})
    found = answer(dumps)
    assert (found.kind, found.ranks, found.unseen) == ("cannot-tell", (0,), (1,))


def test_the_sender_of_a_message_is_the_first_side():
    pair = {"0": ("default_pg", [0, 1])}
    found = answer({0: jobs.dump([message(0, "recv 0<-1")], pair), 1: jobs.dump([message(0, "send 1->0", elements=8)], pair)})
    assert [(s.call, s.ranks) for s in found.sides] == [("send 8 Float", (1,)), ("recv 4 Float", (0,))]


def test_of_half_the_members_nobody_is_the_majority():
    """Five of eight issued four elements; of those only one dump was given."""
    eight = {"0": ("default_pg", list(range(8)))}
    dumps = {r: jobs.dump([*history(3), last(4, "started") | {"input_sizes": [[4 if r < 5 else 5]]}], eight) for r in (0, 5, 6, 7)}
    found = answer(dumps)
    assert (found.kind, found.ranks, found.by, found.unseen) == ("shape", (0, 5, 6, 7), "nothing", (1, 2, 3, 4))
    assert [s.ranks for s in found.sides] == [(5, 6, 7), (0,)]


SECOND = 1_000_000_000
BESIDE = {"0": ("default_pg", [0, 1, 2, 3]), "X": ("tp", [0, 1]), "Y": ("dp", [0, 2]), "H": ("hb", [0, 3])}


def beside(*, first_waits=True):
    """Rank 0 waits in X for rank 1, and its heartbeat goes on with rank 3; rank 2 waits in Y for rank 0."""
    dumps = {r: jobs.dump(history(3), {g: v for g, v in BESIDE.items() if r in v[1]}) for r in range(4)}
    if first_waits:
        dumps[0]["entries"].append(jobs.entry(10, ("X", "tp"), 1, "all_reduce", 4, 30, "started", t=10 * SECOND))
    dumps[2]["entries"].append(jobs.entry(10, ("Y", "dp"), 1, "all_reduce", 4, 40, "started", t=11 * SECOND))
    for r in (0, 3):
        dumps[r]["entries"] += [jobs.entry(20 + i, ("H", "hb"), i, "barrier", 1, 90, "completed", t=(11 + 5 * i) * SECOND) for i in range(1, 20)]
    return dumps


def test_who_waits_beside_others_is_not_the_one_that_never_came():
    found = answer(beside())
    assert (found.kind, found.ranks, found.group_name) == ("missing", (1,), "X")
    assert [(s.waiting, s.lacking) for s in found.path] == [((2,), (0,)), ((0,), (1,))]
    # Without the call in X rank 0 has nothing that keeps it.
    found = answer(beside(first_waits=False))
    assert (found.kind, found.ranks, found.group_name) == ("missing", (0,), "Y")


def test_of_who_waits_beside_others_in_what_all_have_joined_nothing_is_told():
    """It may serve a stop signal, and hang elsewhere."""
    dumps = beside()
    dumps[1]["entries"].append(jobs.entry(10, ("X", "tp"), 1, "all_reduce", 4, 30, "started", t=10 * SECOND))
    dumps[1]["entries"] += [jobs.entry(20 + i, ("1", "own"), i, "barrier", 1, 90, "completed", t=(11 + 5 * i) * SECOND) for i in range(1, 20)]
    found = answer(dumps)
    assert (found.kind, found.waiting, found.group_name) == ("cannot-tell", (2,), "Y") and found.aside[0].waiting == (0, 1)
    # Of a message to it, too.
    dumps[2]["entries"][-1] = message(10, "send 2->0", t=11 * SECOND)
    found = answer(dumps)
    assert (found.kind, found.waiting, found.ranks, found.call) == ("cannot-tell", (2,), (2,), "send to rank 0")


def test_a_receive_that_is_posted_ahead_is_no_circle():
    """Rank 0 has posted it for later; all have joined the all_reduce behind it."""
    pair = {"0": ("default_pg", [0, 1])}
    dumps = {r: jobs.dump([*history(3), *([message(8, "recv 0<-1", t=4000)] if r == 0 else []), last(4, "scheduled")], pair) for r in range(2)}
    found = answer(dumps)
    assert (found.kind, found.number, found.waiting) == ("transport", 4, (0, 1))


@pytest.mark.parametrize(("state", "kind"), [("started", "transport"), ("scheduled", "groups-crossed")])
def test_a_call_that_runs_was_joined(state, kind):
    groups = {"x": ("x", [0, 1]), "y": ("y", [0, 1])}

    def of(order):
        return jobs.dump([jobs.entry(n, (g, g), 1, "all_reduce", 4, 10 + n, state, t=n) for n, g in enumerate(order)], groups)

    found = answer({0: of("xy"), 1: of("yx")})
    assert (found.kind, found.ranks) == (kind, (0, 1))


def test_every_rank_that_holds_up_others_is_told():
    """A host of which nothing comes any more: each of its ranks is waited for in another group."""
    names = {"0": ("default_pg", list(range(8)))} | {f"dp{i}": ("dp", [i, i + 4]) for i in range(4)}

    def of(r):
        here = [] if r > 3 else [jobs.entry(5, (f"dp{r}", "dp"), 1, "all_reduce", 4, 30, "started", t=10_000 + r)]
        return jobs.dump([*history(3), *here], {g: v for g, v in names.items() if r in v[1]})

    found = answer({r: of(r) for r in range(8)})
    assert (found.kind, found.ranks) == ("missing", (4,))
    assert [(o.kind, o.ranks, o.group_name, o.waiting) for o in found.also] == [("missing", (n + 4,), f"dp{n}", (n,)) for n in (1, 2, 3)]


def test_of_two_groups_that_lack_the_same_rank_both_are_told():
    names = {"0": ("default_pg", list(range(6))), "a": ("a", [0, 2, 3]), "b": ("b", [1, 3, 4]), "c": ("c", [5, 2])}

    def of(r):
        here = [jobs.entry(5, (g, g), 1, "all_reduce", 4, 30, "started", t=10_000 + r) for g, n in (("a", 0), ("b", 1), ("c", 5)) if n == r]
        return jobs.dump([*history(3), *here], {g: v for g, v in names.items() if r in v[1]})

    found = answer({r: of(r) for r in range(6)})
    assert (found.kind, found.ranks, found.group_name) == ("missing", (2, 3), "a")
    # Whom the first lacks alone tells nothing new.
    assert [(o.kind, o.ranks, o.group_name) for o in found.also] == [("missing", (3, 4), "b")]


def test_beside_ranks_that_parted_who_has_not_come_is_told():
    def of(r):
        return [] if r == 2 else [last(4, "started", op="broadcast" if r == 3 else "all_reduce")]

    found = answer({r: jobs.dump([*history(3), *of(r)], ALL4) for r in range(4)})
    assert (found.kind, found.ranks, found.late) == ("op", (0, 1, 3), ((2, 3),))
    # A dump that is cut off tells nothing of the kind.
    dumps = recordings({r: jobs.dump([*history(3), *of(r)], ALL4) for r in range(4)})
    assert judge({**dumps, 2: dataclasses.replace(dumps[2], cut="cut off")}).late == ()


def test_who_has_not_started_what_others_have():
    def of(state):
        return {r: jobs.dump([*history(3), last(4, "scheduled" if r == 1 else state)], ALL4) for r in range(4)}

    found = answer(of("started"))
    assert (found.kind, found.ranks, found.unstarted, found.waiting) == ("transport", (1,), (1,), (0, 1, 2, 3))
    # Where nobody's start is told, nobody's is late.
    found = answer(of("scheduled"))
    assert (found.kind, found.ranks, found.unstarted) == ("transport", (0, 1, 2, 3), ())


def rounds(order, n, *, groups, last_order, t=0):
    """`n` rounds of one call in each group, in this order, and then one more round of which the first call is pending."""
    calls = [(i, g) for i in range(1, n + 1) for g in order]
    entries = [jobs.entry(k, (g, g), i, "all_reduce", 4, 22, "completed", t=t + 1000 * k) for k, (i, g) in enumerate(calls)]
    behind = [jobs.entry(len(calls), (last_order[0], last_order[0]), n + 1, "all_reduce", 4, 35, "scheduled", t=t + 1000 * len(calls))]
    return jobs.dump([*entries, *behind], groups)


def test_of_groups_that_are_crossed_who_differs_from_more_than_half():
    """Nothing went before: one of three came to y first; of four, two did."""
    for world, odd, found in ((3, (2,), (2,)), (3, (0,), (0,)), (4, (2, 3), (0, 1, 2, 3)), (5, (1, 4), (1, 4))):
        groups = {g: (g, list(range(world))) for g in "xy"}
        o = answer({r: rounds("xy", 0, groups=groups, last_order="yx" if r in odd else "xy") for r in range(world)})
        assert (o.kind, o.ranks, o.waiting, o.by) == (
            "groups-crossed",
            found,
            tuple(range(world)),
            "majority" if len(found) < world else "nothing",
        )


def test_of_groups_that_are_crossed_those_of_whom_there_is_no_dump_are_no_majority():
    groups = {g: (g, list(range(5))) for g in "xy"}
    o = answer({r: rounds("xy", 0, groups=groups, last_order="yx" if r == 2 else "xy") for r in range(3)})
    assert (o.kind, o.ranks, o.by) == ("groups-crossed", (0, 1, 2), "nothing")


def test_of_groups_that_are_crossed_who_differs_from_its_own_earlier_rounds():
    groups = {g: (g, [0, 1]) for g in "xy"}
    for odd in (0, 1):
        o = answer({r: rounds("xy", 13, groups=groups, last_order="yx" if r == odd else "xy") for r in (0, 1)})
        assert (o.kind, o.ranks, o.waiting, o.by) == ("groups-crossed", (odd,), (0, 1), "history")
    # One round is no habit, and neither is a rank's that has none beside another one's.
    o = answer({r: rounds("xy", 1, groups=groups, last_order="yx" if r else "xy") for r in (0, 1)})
    assert (o.ranks, o.by) == ((0, 1), "nothing")
    # Five rounds with two calls of x in each.
    dumps = {r: jobs.dump([], groups) for r in (0, 1)}
    for r, then in ((0, "x"), (1, "y")):
        counts = {"x": 0, "y": 0}
        for k, g in enumerate(["x", "x", "y"] * 5 + ["x", then]):
            counts[g] += 1
            state = "scheduled" if k == 16 else "completed"
            dumps[r]["entries"].append(jobs.entry(k, (g, g), counts[g], "all_reduce", 4, 22, state, t=1000 * k))
    o = answer(dumps)
    assert (o.kind, o.ranks, o.by) == ("groups-crossed", (1,), "history")


def test_where_most_have_taken_a_new_order_nobody_is_blamed():
    groups = {g: (g, [0, 1, 2]) for g in "xy"}
    o = answer({r: rounds("xy", 13, groups=groups, last_order="xy" if r == 2 else "yx") for r in range(3)})
    assert (o.kind, o.ranks, o.by) == ("groups-crossed", (0, 1, 2), "nothing")


CKPT = ALL4 | {"1": ("ckpt", [0, 1, 2, 3])}


def behind_a_lost_call(*, apart_ns=SECOND, backend="nccl", issued=(2, 2, 2, 1), completed=1, **changes):
    """#2 of "1" is in no ring any more; 40 calls of the default group are over since. One rank has its #1 alone."""
    dumps = {}
    for r, newest in enumerate(issued):
        over = [jobs.entry(50 + n, DEFAULT, n + 1, "all_reduce", 4, 20, "completed", t=n * apart_ns, backend=backend) for n in range(40)]
        told = {0: {"last_enqueued_collective": 40, "last_completed_collective": 40}}
        told |= {1: {"last_enqueued_collective": newest, "last_completed_collective": min(newest, completed)}}
        dumps[r] = jobs.dump([e | {"pg_id": 0} for e in over], CKPT, pg_status=told) | changes
    return dumps


def test_what_counters_alone_tell_to_be_pending_is_not_healthy():
    found = answer(behind_a_lost_call())
    (counted,) = found.counted
    assert (found.kind, counted.group, counted.number, counted.completed) == ("cannot-tell", "1 (ckpt)", 2, 1)
    assert (counted.ranks, counted.fewer, counted.lagging) == ((0, 1, 2), ((3, 1),), False)
    found = answer(behind_a_lost_call(completed=2))
    assert (found.kind, found.counted) == ("nothing-wrong", ())


def test_a_counter_that_may_lag_is_no_hang():
    found = answer(behind_a_lost_call(apart_ns=1000, issued=(2, 2, 2, 2)))
    assert (found.kind, [c.lagging for c in found.counted]) == ("nothing-wrong", [True])
    # Gloo's may stay one behind for ever; of a group of an earlier default group nobody counts on.
    assert answer(behind_a_lost_call(backend="gloo")).counted == ()
    again = behind_a_lost_call()
    for d in again.values():
        d["entries"] = [e | {"pg_id": 7} for e in d["entries"]]
        d["pg_status"][7] = d["pg_status"].pop(0)
    assert answer(again).kind == "nothing-wrong"


def test_of_groups_whose_names_nothing_tells_counters_count_all_the_same():
    dumps = behind_a_lost_call(issued=(2, 2, 2, 2), pg_config={})
    for d in dumps.values():
        d["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    found = answer(dumps)
    assert (found.kind, [(c.group, c.ranks) for c in found.counted]) == ("cannot-tell", [("#1", (0, 1, 2, 3))])


def all_behind(number, *, completed, over=0, **more):
    """20 pending calls from `number` on in every ring, behind `over` calls of another group."""
    dumps = {}
    for r in range(4):
        entries = [jobs.entry(50 + n, ("1", "ckpt"), 5 + n, "all_reduce", 4, 20, "completed", t=1000 * n) for n in range(over)]
        entries += [jobs.entry(80 + n, DEFAULT, number + n, "all_reduce", 4, 20, "scheduled", t=1000 * (100 + n), **more) for n in range(20)]
        told = {0: {"last_enqueued_collective": number + 19, "last_completed_collective": completed}}
        dumps[r] = jobs.dump([e | {"pg_id": int(e["process_group"][0])} for e in entries], CKPT, pg_status=told if completed is not None else {})
    return dumps


def test_the_call_that_hangs_may_be_overwritten_by_those_behind_it():
    found = answer(all_behind(27, completed=5))
    assert (found.kind, found.number, found.buried) == ("cannot-tell", 27, tuple((r, 5) for r in range(4)))
    found = answer(all_behind(27, completed=26))
    assert (found.kind, found.number, found.buried) == ("transport", 27, ())
    # Without counters, what is over behind it tells.
    assert answer(all_behind(27, completed=None)).kind == answer(all_behind(27, completed=None, backend="gloo")).kind == "cannot-tell"
    assert answer(all_behind(27, completed=None, over=3)).kind == "transport"
    # Nothing was before it.
    assert answer(all_behind(1, completed=-1)).kind == "transport"


def test_what_stands_behind_a_call_that_is_only_pending_is_told_for_itself():
    """Rank 0 waits for rank 1, which has had another call pending for long, and trains; for want of rank 2, whose call with
    rank 3 brings no data."""
    groups = ALL4 | {"ab": ("ab", [0, 1]), "bc": ("bc", [1, 2]), "x": ("x", [2, 3]), "solo": ("solo", [1])}
    late = 40_000_000_000

    def waits(group, t):
        return jobs.entry(3, (group, group), 1, "all_reduce", 4, 30, "started", t=t)

    dumps = {
        0: jobs.dump([*history(3), waits("ab", late + 9)], groups),
        1: jobs.dump([*history(3), waits("bc", 9_000), jobs.entry(4, ("solo", "solo"), 1, "all_reduce", 4, 40, "completed", t=late)], groups),
        2: jobs.dump([*history(3), waits("x", late + 5)], groups),
        3: jobs.dump([*history(3), waits("x", late + 5)], groups),
    }
    found = answer(dumps)
    assert (found.kind, found.group_name, found.waiting) == ("transport", "x", (2, 3))
    assert [(s.waiting, s.lacking) for s in found.aside] == [((1,), (2,))]
