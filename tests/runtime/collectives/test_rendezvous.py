"""Ranks that meet in a store which outlives them: nothing of an earlier process is read, whoever comes first, and who does not come is named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks
from tests.runtime.collectives.world import reads_its_keys

import unhang
from unhang.runtime.collectives.bounded_store import BoundedStore, Connection
from unhang.runtime.collectives.rendezvous import Rendezvous

pytestmark = pytest.mark.torch


@pytest.fixture
def server():
    return dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


def joins(rank: int, port: int, size: int) -> None:
    """With a backend that does nothing: Gloo itself reads the addresses of the generation before."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    of_ranks.store = dist.TCPStore("127.0.0.1", port, None, is_master=False, timeout=timedelta(seconds=60))
    theirs = dist.TCPStore("127.0.0.1", port, None, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("fake", store=theirs, rank=rank, world_size=size)


def until(says: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not says():
        assert time.monotonic() - began < 20
        time.sleep(0.01)


def standing(store, name: str) -> bytes:
    """Of the key that ends with `name`; empty where there is none."""
    for key in store.list_keys():
        if key.endswith(name):
            return bytes(store.get(key))
    return b""


def calls(rank: int, generation: int) -> list:
    agreed = unhang.agree([generation, rank], deadline=20)
    found = unhang.evaluate(lambda data, size: {"score": (float(generation), 1)}, {"one": [1]}, batch_size=1, deadline=20)
    reduced = [unhang.all_reduce(torch.full((3,), float(generation)), deadline=20)[0].item() for _ in range(4)]
    return [agreed.values, found.flat()["eval/one/score"], reduced]


def expected(generation: int, size: int) -> list:
    return [[{rank: [generation, rank] for rank in range(size)}, float(generation), [float(generation * size)] * 4]] * size


def lives(rank: int, port: int, size: int, generation: int, last: int) -> list:
    """`last` comes when the others wait for it."""
    joins(rank, port, size)
    if rank == last == 0:
        until(lambda: all(standing(of_ranks.store, f"/hello/{other}") for other in range(1, size)))
    elif rank == last:
        host = f"host of {generation}"
        until(lambda: of_ranks.store.check([host]) and standing(of_ranks.store, "/host") not in (b"", of_ranks.store.get(host)))
    elif rank == 0:
        of_ranks.store.set(f"host of {generation}", standing(of_ranks.store, "/host") or b"none")
    return calls(rank, generation)


@reads_its_keys
@pytest.mark.parametrize("last", [[0, 0, 0], [2, 2, 2], [2, 0, 1]])
def test_a_generation_reads_nothing_of_the_one_before(fresh, server, last):
    for generation, who in enumerate(last):
        world = fresh(3, store=False)
        assert world(lives, server.port, 3, generation, who) == expected(generation, 3)
        world.close()


def alone(rank: int, port: int, generation: int) -> object:
    joins(rank, port, 2)
    return None if rank == 1 else calls_alone(generation)


def calls_alone(generation: int) -> dict:
    return dict(unhang.agree([generation, 0], deadline=0.5).values)


@reads_its_keys
@pytest.mark.parametrize("last", [0, 1])
def test_who_never_came_in_the_generation_before_is_in_the_new_one(fresh, server, last):
    world = fresh(2, store=False)
    assert world(alone, server.port, 0)[0] == {0: [0, 0]}
    world.close()
    assert fresh(2, store=False)(lives, server.port, 2, 1, last) == expected(1, 2)


def without_the_last(rank: int, port: int) -> dict | None:
    joins(rank, port, 3)
    return None if rank == 2 else dict(unhang.agree([0, rank], deadline=3).values)


def comes_last(rank: int, port: int) -> list:
    """Rank 0 when rank 1 has turned its earlier process down, rank 2 when rank 0 is there."""
    joins(rank, port, 3)
    before = standing(of_ranks.store, "/host")
    if rank == 0:
        until(lambda: b',["' in standing(of_ranks.store, "/hello/1"))
    elif rank == 2:
        until(lambda: standing(of_ranks.store, "/host") != before)
    return calls(rank, 1)


@reads_its_keys
def test_an_earlier_first_rank_that_still_lives(fresh, server):
    """It answers, since somebody is missing still; where rank 1 had another process, rank 1 does not enter, and waits for another answer."""
    old = fresh(3, store=False)
    assert old(without_the_last, server.port)[:2] == [{0: [0, 0], 1: [0, 1]}] * 2
    assert fresh(3, store=False)(comes_last, server.port) == expected(1, 3)


def made_again(rank: int, port: int, others_use_it: bool) -> list:
    """A process that destroys its group and makes it again, beside one that is new; only rank 0 has used the library before, or both."""
    joins(rank, port, 2)
    if rank == 0 or others_use_it:
        unhang.agree(0, deadline=0.3 if not others_use_it else 20)
    of_ranks.store.add("used", 1)
    until(lambda: of_ranks.store.add("used", 0) == 2)
    dist.destroy_process_group()
    of_ranks.store.add("left", 1)
    until(lambda: of_ranks.store.add("left", 0) == 2)
    joins(rank, port, 2)
    return calls(rank, 1)


@pytest.mark.parametrize("others_use_it", [False, True])
def test_a_group_that_is_made_again(fresh, server, others_use_it):
    assert fresh(2, store=False)(made_again, server.port, others_use_it) == expected(1, 2)


# -- the first rank does not come


def waits_for_the_first(rank: int, call: str) -> object:
    if rank == 0:
        until(lambda: of_ranks.store.check(["given up"]))
    deadline = 20 if rank == 0 else 2
    try:
        if call == "agree":
            agreed = unhang.agree(rank, deadline=deadline)
            return dict(agreed.values), agreed.missing
        if call == "evaluate":
            found = unhang.evaluate(lambda data, size: {"score": 1.0}, {"one": [1]}, batch_size=1, deadline=None if rank == 0 else 2)
            return found.why, found.missing
        unhang.barrier(deadline=deadline)
        return "done"
    finally:
        if rank:
            of_ranks.store.set("given up", "yes")


def goes_on(rank: int) -> list[float]:
    return [unhang.all_reduce(torch.full((3,), float(rank)), deadline=20)[0].item() for _ in range(4)]


def test_the_first_rank_is_named_where_it_does_not_come(fresh):
    for _ in range(3):
        world = fresh(3)
        found = world.try_(waits_for_the_first, "barrier")
        missing = found[0].closed.missing
        assert missing[0] == 0 and len(missing) < 3, found
        assert [one.kind for one in found] == ["LatePeer" if rank in missing else "CollectiveTimeout" for rank in range(3)], found
        assert all(one.closed == found[0].closed for one in found), found
        assert world(goes_on) == [[3.0] * 4] * 3
        # On a busy machine another one may stand still for longer than reports are waited for, and is late as well.
        if missing == (0,):
            return
    pytest.fail("another rank than the first was late three times")


def test_nor_does_a_decision_wait_for_it_and_it_obeys(fresh):
    world = fresh(3)
    assert world(waits_for_the_first, "agree") == [({1: 1, 2: 2}, (0,))] * 3
    assert world(goes_on) == [[3.0] * 4] * 3


def comes_with_the_others(rank: int, sign: str) -> list:
    if rank == 0:
        until(lambda: bool(standing(of_ranks.store, sign)))
    agreed = [unhang.agree(rank, deadline=deadline) for deadline in (20 if rank == 0 else 2, 20)]
    return [(dict(one.values), one.missing) for one in agreed] + goes_on(rank)


@reads_its_keys
@pytest.mark.parametrize("sign", ["/wants", "/who/1", "/who/2"])
def test_where_it_comes_just_then_all_decide_the_same(fresh, sign):
    """They have called for a round without it, or are in one, and wait for each other a moment longer."""
    world = fresh(3)
    first, *others = world(comes_with_the_others, sign)
    assert others == [first] * 2
    assert first[1] == ({0: 0, 1: 1, 2: 2}, ())


def hurries(rank: int) -> list[tuple[dict, tuple]]:
    if rank == 0:
        until(lambda: bool(standing(of_ranks.store, "/who/1") or standing(of_ranks.store, "/who/2")))
    agreed = [unhang.agree(rank, deadline=0.1), unhang.agree(rank, deadline=20)]
    return [(dict(one.values), one.missing) for one in agreed]


@reads_its_keys
def test_nor_where_it_waits_for_less_time_than_they_take_to_tell_it(fresh):
    first, *others = fresh(3)(hurries)
    assert others == [first] * 2 and first[1] == ({0: 0, 1: 1, 2: 2}, ())


def is_stopped(rank: int) -> tuple[dict, tuple]:
    if rank:
        until(lambda: of_ranks.store.check(["stops"]) and bool(standing(of_ranks.store, "/host")))
        os.kill(int(of_ranks.store.get("stops")), signal.SIGSTOP)
    else:
        of_ranks.store.set("stops", str(os.getpid()))
    # The others have to find each other in it, on a busy machine.
    agreed = unhang.agree(rank, deadline=20 if rank == 0 else 3)
    return dict(agreed.values), agreed.missing


@reads_its_keys
def test_nor_for_one_that_was_there_and_stands_still(fresh):
    world = fresh(3)
    world.start(is_stopped)
    found = world.ended([1, 2])
    world.signal(0, signal.SIGCONT)
    assert found + world.ended([0]) == [({1: 1, 2: 2}, (0,))] * 3
    assert world(goes_on) == [[3.0] * 4] * 3


def test_nor_an_evaluation(fresh):
    world = fresh(3)
    found = world.try_(waits_for_the_first, "evaluate")
    assert [one[1] for one in found[1:]] == [(0,)] * 2
    assert all("rank 0 did not answer" in one[0] for one in found[1:])


def in_a_group(rank: int, members: list[int], times: int) -> list[float]:
    groups = [dist.new_group(members) for _ in range(times)]
    if rank not in members:
        return []
    return [unhang.all_reduce(torch.full((3,), float(rank + n)), group=group, deadline=20)[0].item() for n, group in enumerate(groups)]


def test_groups_without_the_first_rank_and_several_of_the_same_ranks(fresh):
    assert fresh(3)(in_a_group, [1, 2], 3) == [[], [3.0, 5.0, 7.0], [3.0, 5.0, 7.0]]


def fails_at_first(rank: int) -> object:
    if rank == 1:
        with pytest.raises(ValueError, match="deadline"):
            unhang.all_reduce(torch.ones(3), deadline=-1)
    else:
        with pytest.raises(unhang.PeerFailed, match="rank 1: ValueError"):
            unhang.all_reduce(torch.ones(3), deadline=20)
    return goes_on(rank)


def test_who_fails_before_it_has_met_anybody_tells_them_all_the_same(fresh):
    assert fresh(3)(fails_at_first) == [[3.0] * 4] * 3


def meetings(size: int) -> list[Rendezvous]:
    root = BoundedStore(Connection(dist.HashStore()), "unhang/test")
    return [Rendezvous(root, range(size), rank) for rank in range(size)]


def test_who_is_answered_already_founds_no_other_round():
    _, one, other = meetings(3)
    one.hello()
    assert other.meet(0.01) is True
    other.tend(other.root)
    assert one.meet(0) is True and one.round == other.round


def test_whose_seat_is_taken_in_a_round_is_not_let_into_it_again():
    first, one, other = meetings(3)
    later = Rendezvous(one.root, range(3), 1)
    for process in (one, later):
        first.hello()
        process.hello()
        first.tend(first.root)
        process.tend(process.root)
    assert one.round == first.round and later.round == ""
    later.hello()
    first.tend(first.root)
    # Were it answered by the first round, it would not hear of this one.
    assert other.meet(0.01) is True
    other.tend(other.root)
    later.tend(later.root)
    assert later.round == other.round


def test_the_first_rank_leaves_a_round_that_it_has_had_to_itself_and_no_other():
    first, one = meetings(2)
    first.hello()
    first.settled = True
    assert first.move() is False
    # Not answered, for once.
    assert one.meet(0.01) is True
    one.tend(one.root)
    assert first.move() is True and first.round == one.round and not first.settled
    first.settled = True
    assert first.move() is False


def test_nor_one_in_which_others_have_heard_what_it_decided():
    first, one, other = meetings(3)
    first.hello()
    one.hello()
    first.tend(first.root)
    assert one.meet(0.01) is False and one.round == first.round
    assert other.meet(0.01) is True
    other.tend(other.root)
    first.settled = one.settled = True
    assert not first.move() and not one.move()
    one.settled = False
    assert one.move() is True and one.round == other.round


@pytest.mark.parametrize("size", [3, 32])
def test_where_the_first_rank_stands_still_its_round_lets_in_while_there_is_time(size):
    first, one, other, *_ = meetings(size)
    first.hello()
    one.hello()
    first.tend(first.root)
    assert one.meet(20) is False
    one.tend(one.root)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(other.meet, 6.0)
        until(lambda: one.tend(one.root) > 0 and waits.done())
    assert waits.result() is False and other.round == first.round
