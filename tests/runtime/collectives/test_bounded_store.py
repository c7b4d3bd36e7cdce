"""The store beside the groups: what is decided once is decided for all, under every store of torch's, and no wait is longer than it was told."""

from __future__ import annotations

import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

import unhang
from unhang.errors import StoreLost
from unhang.runtime.collectives.bounded_store import BoundedStore, Connection

pytestmark = pytest.mark.torch


@pytest.fixture(params=["tcp", "file", "hash"])
def boards(request, tmp_path):
    """Two of one store, as two ranks have them."""
    if request.param == "tcp":
        server = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        stores = [server, dist.TCPStore("127.0.0.1", server.port, None, is_master=False)]
        for store in stores:
            store.set_timeout(timedelta(seconds=10))
    elif request.param == "file":
        stores = [dist.FileStore(str(tmp_path / "store"), 2) for _ in range(2)]
    else:
        stores = [dist.HashStore()] * 2
    return [BoundedStore(Connection(store), "unhang/test") for store in stores]


def test_the_first_decides(boards):
    one, other = boards
    assert one.decide("k", b"first") == b"first"
    assert other.decide("k", b"second") == b"first"
    assert other.look("k") == b"first" and one.look("nothing") is None


def test_of_many_at_once_one_decides(boards):
    start = threading.Barrier(8)

    def decides(n: int) -> bytes:
        start.wait()
        return boards[n % 2].decide("k", b"%d" % n)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(decides, range(8)))) == 1


def test_counting(boards):
    one, other = boards
    assert [one.count("n"), other.count("n"), one.count("n", 10), other.count("n", 0)] == [1, 2, 12, 12]


def test_a_wait_ends_with_the_value_or_with_its_time(boards):
    one, other = boards
    began = time.monotonic()
    assert one.wait("k", 0.05) is None
    assert time.monotonic() - began >= 0.05
    late = threading.Timer(0.1, lambda: other.put("k", b"here"))
    late.start()
    assert one.wait("k", 30) == b"here"
    late.join()


def test_forgetting(boards):
    one, other = boards
    one.put("a", b"1")
    one.put("b", b"2")
    assert other.all_of(["a", "b"]) == [b"1", b"2"]
    other.forget(["a", "never was"])
    assert one.look_at(["a", "b"]) == [None, b"2"]


def test_what_is_forgotten_at_that_moment_is_not_waited_for(boards):
    one, other = boards

    def looks(key: str) -> None:
        while one.look(key) is not None:
            pass

    with ThreadPoolExecutor(1) as threads:
        for n in range(100):
            other.put(f"{n}", b"1")
            looking = threads.submit(looks, f"{n}")
            other.forget([f"{n}"])
            looking.result(5)


def test_boards_of_other_names_are_others(boards):
    boards[0].put("k", b"mine")
    assert BoundedStore(Connection(boards[1].store), "other").look("k") is None


def test_without_a_group_there_is_no_board():
    with pytest.raises(StoreLost):
        BoundedStore.beside("unhang/test")


@pytest.mark.parametrize(("agents", "whose"), [("False", "rank 0's process"), ("True", "the launcher's process")])
def test_a_store_that_is_gone(monkeypatch, agents, whose):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agents)
    server = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    board = BoundedStore(Connection(dist.TCPStore("127.0.0.1", server.port, None, is_master=False)), "unhang/test")
    board.put("k", b"v")
    del server
    for ask in (lambda: board.look("k"), lambda: board.wait("k", 30), lambda: board.decide("k", b"v"), lambda: board.count("n")):
        with pytest.raises(StoreLost, match=rf"no longer answers: its server \(usually in {whose}\) has ended or closed the connection, or"):
            ask()


def lost(rank: int) -> list[str]:
    said = []
    for call in (lambda: unhang.agree(1, deadline=5), lambda: unhang.barrier(deadline=5)):
        try:
            # What has connections of its own goes on without the store, until it is missed.
            while True:
                call()
        except unhang.CollectiveError as e:
            said.append(type(e).__name__)
    return said


def warm(rank: int) -> None:
    for _ in range(5):
        unhang.barrier()


@pytest.mark.parametrize("before", [False, True])
def test_when_the_store_is_lost_all_are_told(fresh, before):
    """Whoever serves it has ended: rank 0, or the launcher."""
    world = fresh(3)
    if before:
        world(warm)
    world.store = None
    assert world(lost) == [["StoreLost", "StoreLost"]] * 3
    for rank in range(3):
        # torch writes its own lines for each attempt of ours; we do not try again and again.
        assert world.stderr_of(rank).read_text().count("failed") <= 12


def test_who_goes_on_waiting_does_not_begin_to_be_eager_anew(monkeypatch):
    there = BoundedStore(Connection(dist.HashStore()), "group")
    now_s, looks = 0.0, []
    look = there.look

    def looked(key):
        nonlocal now_s
        now_s += 50e-6
        looks.append(key)
        return look(key)

    def slept(seconds):
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(there, "look", looked)
    monkeypatch.setattr("unhang.runtime.collectives.bounded_store.time", types.SimpleNamespace(monotonic=lambda: now_s, sleep=slept))
    for key in ("a", "a", "a", "b"):
        assert there.wait(key, 0.25) is None
    first, then, last = looks.index("b"), looks.count("a"), looks.count("b")
    assert first == then and last > 20
    # Of the three waits for one key the first is the eager one.
    assert then < 2 * last
