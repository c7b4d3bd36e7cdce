"""Who connects goes on listening: to what the others tell, and to interrupts."""

from __future__ import annotations

import signal
import time

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks
from tests.runtime.collectives.world import Raised

import unhang
from unhang.runtime.collectives import preflight
from unhang.runtime.collectives.abortable_group import Addresses
from unhang.runtime.collectives.bounded_store import BoundedStore, Connection

pytestmark = pytest.mark.torch

ENOUGH_S = 8.0


def connects(rank: int) -> float:
    """Rank 1 is interrupted when all have agreed, before it tells its address."""
    began_s, opens = time.monotonic(), preflight.GlooLane
    if rank == 1:

        def interrupted(*args, **kwargs):
            raise KeyboardInterrupt

        preflight.GlooLane = interrupted
    try:
        unhang.all_reduce(torch.ones(3), deadline=60)
    except KeyboardInterrupt:
        assert rank == 1
    except unhang.PeerFailed as e:
        assert rank != 1 and "rank 1: KeyboardInterrupt" in str(e)
    finally:
        preflight.GlooLane = opens
    return time.monotonic() - began_s


def reduces(rank: int) -> list[float]:
    return [unhang.all_reduce(torch.ones(3), deadline=20)[0].item() for _ in range(4)]


def test_those_that_wait_for_an_address_hear_that_it_never_comes(fresh):
    world = fresh(3)
    assert max(world(connects)) < ENOUGH_S
    assert world(reduces) == [[3.0] * 4] * 3


def waits_for_an_address(rank: int) -> None:
    """Rank 1 tells its own when rank 0 has been interrupted."""
    if rank == 1:
        opens = preflight.GlooLane

        def takes_its_time(*args, **kwargs):
            preflight.GlooLane = opens
            of_ranks.store.wait(["interrupted"])
            return opens(*args, **kwargs)

        preflight.GlooLane = takes_its_time
    else:
        gets = Addresses.get

        def waits(self, key):
            Addresses.get = gets
            of_ranks.store.set("waits", "")
            return gets(self, key)

        Addresses.get = waits
    # Torch 2.4 leaves the address answered: its peer learns of it when the time to connect is over.
    unhang.all_reduce(torch.ones(3), deadline=8)


def test_who_waits_for_one_can_be_interrupted(fresh):
    world = fresh(2)
    world.start(waits_for_an_address)
    world.store.wait(["waits"])
    world.signal(0, signal.SIGINT)
    (first,) = world.ended([0])
    world.store.set("interrupted", "")
    (second,) = world.ended([1])
    assert isinstance(first, Raised) and first.kind == "KeyboardInterrupt"
    assert isinstance(second, Raised) and second.kind == "PeerFailed" and "rank 0: KeyboardInterrupt" in second.text
    assert world(reduces) == [[2.0] * 4] * 2


def test_an_address_that_never_comes_is_not_waited_for_beyond_the_time():
    heard = []
    addresses = Addresses(BoundedStore(Connection(dist.HashStore()), "unhang/test"), "lane", 0.4, lambda: heard.append(1))
    addresses.set("0/0", b"here")
    assert addresses.get("0/0") == b"here"
    with pytest.raises(RuntimeError, match=r"rank 7 of the group has told no address within 0\.4 s"):
        addresses.wait(["0/0", "0/7"])
    assert heard
