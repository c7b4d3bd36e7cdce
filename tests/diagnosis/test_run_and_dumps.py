"""One rule, one answer: a run directory, and the same dumps without anything beside them."""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import replace

import pytest
from tests.flight import jobs
from tests.flight.test_outcome import KINDS, injected
from tests.tables import for_each

from unhang.diagnosis.recorders import examine

DEFAULT = ("0", "default_pg")
GROUPS = {
    "0": ("default_pg", [0, 1, 2, 3]),
    "tp0": ("tp", [0, 1]),
    "tp1": ("tp", [2, 3]),
    "dp0": ("dp", [0, 2]),
    "dp1": ("dp", [1, 3]),
}
PAIR = {"0": ("default_pg", [0, 1])}


@pytest.fixture
def judged(build, lab):
    """What is said of a run in which every rank left its dump, and of the dumps alone."""

    def judge(dumps, *, stood=()):
        b = build()
        for r, raw in sorted(dumps.items()):
            pending = [e for e in raw["entries"] if not e["retired"]]
            inside = lab.in_collective("all_reduce", lab.user(21, "step")) if pending or r in stood else (lab.user(77, "evaluate"),)
            b.rank(r, frames=inside, backend="nccl", world=len(dumps))
            path = b.rundir.flight(1, r)
            b.rundir.write_bytes(path, pickle.dumps(raw))
            b.ranks[-1] = replace(b.ranks[-1], flight=b.rundir.relative(path))
        return b.judge().primary, examine([b.rundir.flight(1, r) for r in dumps]).verdict.primary

    return judge


def history(n):
    return [jobs.entry(i - 1, DEFAULT, i, "all_reduce", 4, 20, "completed", t=i * 1000) for i in range(1, n + 1)]


def last(n, state="started", op="all_reduce", *, t=90_000, group="0", **more):
    return jobs.entry(n + 99, (group, GROUPS[group][0]), n, op, more.pop("elements", 4), 21, state, t=t, **more)


def message(name, *, elements=4):
    return last(0, op=name, elements=elements) | {"is_p2p": True, "p2p_seq_id": 1, "collective_seq_id": 0}


def of(rank, *entries, groups=None):
    return jobs.dump([*history(3), *entries], {name: g for name, g in (groups or GROUPS).items() if rank in g[1]})


@for_each("kind", KINDS)
@for_each(("world", "tp"), [(2, 1), (4, 1), (16, 4)])
def test_what_was_injected_is_the_same_in_both(judged, kind, world, tp):
    dumps, *_ = injected(jobs.Plan(world=world, tp=tp, seed=world, steps=20), kind, random.Random(world))
    run, alone = judged(dumps)
    assert run.ranks == alone.ranks
    # Beside the dumps it is seen why a rank is missing.
    assert (run.cause, alone.cause) == (("process-stuck", "collective-timeout") if kind == "missing" else ("collective-mismatch",) * 2)
    for words in ("the next two calls are swapped", "with one call too many", "with one call left out"):
        assert (words in run.says) == (words in alone.says)


@pytest.mark.parametrize("later", [0, 3])
def test_a_rank_that_has_not_come_to_a_group_that_was_made_again(judged, later):
    """Its newest call is #9 of the old one, and the others wait in #1 of the new one."""

    def made_again(rank):
        old = [e | {"pg_id": 0} for e in history(9)]
        # Of no two ranks at the same nanosecond: such dumps are copies.
        new = [last(n, "completed", "broadcast", t=50_000 + 10 * rank + n) for n in range(1, later + 1)]
        new += [last(later + 1, op="broadcast")] if rank != 2 else []
        return jobs.dump([*old, *(e | {"pg_id": 1} for e in new)], {"0": GROUPS["0"]})

    run, alone = judged({r: made_again(r) for r in range(4)})
    assert (run.cause, run.ranks, run.standing) == ("process-stuck", (2,), "likely")
    assert "while ranks 0, 1 and 3 wait in broadcast" in run.says and alone.ranks == (2,)


def test_all_to_all_of_which_more_is_sent_than_received(judged):
    run, alone = judged({r: of(r, last(4, op="all_to_all", outputs=3 if r == 1 else 4)) for r in range(4)})
    assert (run.cause, run.standing, run.ranks) == (alone.cause, alone.standing, alone.ranks) == ("collective-mismatch", "established", (0, 1, 2, 3))
    assert (
        "ranks 0, 2 and 3 send 4 and receive 4 elements; rank 1 sends 4 and receives 3 elements" in run.says
        and run.remedies[0].id == "fitting-splits"
    )
    assert "whose sizes are wrong cannot be told from this" in alone.says and run.where == alone.where is not None
    # Nobody knows which one is wrong.
    pair = {r: of(r, last(4, op="all_to_all", outputs=3 if r == 1 else 4), groups=PAIR) for r in range(2)}
    run, alone = judged(pair)
    assert run.ranks == alone.ranks == (0, 1) and run.standing == alone.standing
    # Uneven everywhere, and yet it fits.
    run, alone = judged({r: of(r, last(4, op="all_to_all", outputs=(2, 6, 4, 4)[r])) for r in range(4)})
    assert run.cause == alone.cause == "unknown" and "nobody is missing" in run.says


@pytest.mark.parametrize(
    ("ones", "others", "says", "standing"),
    [
        ("send 0->1", "send 1->0", "ranks send to each other, and none of them receives", "likely"),
        ("recv 0<-1", "recv 1<-0", "ranks wait for each other in a circle", "likely"),
        ("send 0->1", "recv 1<-0", "a message of 8 elements Float (rank 0 at step.py:1", "established"),
    ],
)
def test_messages_that_do_not_meet(judged, ones, others, says, standing):
    run, alone = judged({0: of(0, message(ones, elements=8), groups=PAIR), 1: of(1, message(others), groups=PAIR)})
    assert run.cause == alone.cause == "collective-mismatch" and run.ranks == alone.ranks == (0, 1)
    assert says.split(" (")[0] in run.says and (run.standing, alone.standing) == (standing, standing)


def test_a_message_without_a_partner(judged):
    run, alone = judged({0: of(0, message("send 0->1"), groups=PAIR), 1: of(1, groups=PAIR)})
    assert run.ranks == alone.ranks == (1,) and (run.cause, alone.cause) == ("process-stuck", "collective-timeout")
    # The other one waits for it in a collective.
    run, alone = judged({0: of(0, message("recv 0<-1"), groups=PAIR), 1: of(1, last(4), groups=PAIR)})
    assert run.cause == alone.cause == "collective-mismatch" and run.ranks == alone.ranks == (0, 1) and run.standing == "likely"


def test_a_chain_through_several_groups(judged):
    """Rank 1 waits for 0, which waits for 2, which waits for 3; and once more, with ranks at its end whose calls differ."""
    dumps = {0: of(0, last(1, group="dp0")), 1: of(1, last(1, group="tp0")), 2: of(2, last(1, group="tp1")), 3: of(3)}
    run, alone = judged(dumps)
    assert run.ranks == alone.ranks == (3,) and "while rank 2 waits" in run.says
    dumps |= {3: of(3, last(1, group="dp1")), 1: of(1, last(1, op="broadcast", group="dp1"))}
    run, alone = judged(dumps)
    assert run.cause == alone.cause == "collective-mismatch" and run.ranks == alone.ranks == (1, 3)


def test_a_stop_signal_that_is_waited_for_all_the_time_is_not_where_a_job_stands(judged):
    names = {**PAIR, "sig": ("signal", [0, 1])}

    def with_signal(rank):
        signal = [jobs.entry(0, ("sig", "signal"), 1, "broadcast", 1, 90, "started", t=0)] if rank else []
        steps = [jobs.entry(i, DEFAULT, i, "all_reduce", 4, 20, "completed", t=i * 1_000_000_000) for i in range(1, 60)]
        return jobs.dump([*signal, *steps, *([last(60, t=61_000_000_000)] if rank else [])], names)

    run, alone = judged({r: with_signal(r) for r in range(2)})
    assert run.ranks == alone.ranks == (0,) and run.cause == "process-stuck" and "while rank 1 waits in all_reduce" in run.says


def test_rings_that_have_lost_their_beginning(judged):
    def ring(rank, first, upto, *more):
        entries = [jobs.entry(n, DEFAULT, n, "all_reduce", 4, 20, "completed", t=n * 1000) for n in range(first, upto)]
        return jobs.dump([*entries, *more], {"0": GROUPS["0"]})

    run, alone = judged({r: ring(r, 500 - r, 504, *([last(504, t=504_000)] if r != 2 else [])) for r in range(4)})
    assert run.ranks == alone.ranks == (2,) and run.cause == "process-stuck"
    run, alone = judged({r: ring(r, 600, 620) if r == 2 else ring(r, 500, 504, last(504, t=504_000)) for r in range(4)})
    assert run.cause == alone.cause == "unknown" and run.ranks == alone.ranks == (0, 1, 3)
    assert "overwritten" in run.says and "nobody is missing" not in run.says


def test_a_call_that_is_over_on_some(judged):
    run, alone = judged({r: of(r, last(4, "completed" if r == 2 else "started")) for r in range(4)}, stood=(2,))
    assert run.cause == alone.cause == "unknown" and run.ranks == alone.ranks == (0, 1, 3)
    assert "look at the links from rank 2 to the others" in run.says and "network-mtu" in run.says


def test_coalesced_launches_of_which_one_part_differs(judged):
    def launch(rank):
        parts = [last(4, "scheduled", "_all_gather_base", elements=n, outputs=4 * n) for n in (4, 8 + (rank == 1))]
        return of(rank, *parts, last(4, "started", "coalesced", t=91_000))

    run, alone = judged({r: launch(r) for r in range(4)})
    assert (run.standing, run.ranks) == (alone.standing, alone.ranks) == ("established", (1,))


def test_two_of_four_are_no_majority(judged, build, lab):
    dumps = {r: of(r, last(4, op="broadcast" if r == 1 else "all_reduce")) for r in range(3)}
    b = build()
    for r, raw in dumps.items():
        b.rank(r, frames=lab.in_collective("all_reduce", lab.user(21, "step")), backend="nccl", world=4)
        path = b.rundir.flight(1, r)
        b.rundir.write_bytes(path, pickle.dumps(copy.deepcopy(raw)))
        b.ranks[-1] = replace(b.ranks[-1], flight=b.rundir.relative(path))
    b.rank(3, backend="nccl", world=4)
    run, alone = b.judge().primary, examine([b.rundir.flight(1, r) for r in dumps]).verdict.primary
    assert (run.cause, run.ranks, run.standing) == (alone.cause, alone.ranks, alone.standing) == ("collective-mismatch", (0, 1, 2), "likely")
