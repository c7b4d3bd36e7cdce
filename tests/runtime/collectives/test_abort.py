"""How processes end that have used guarded collectives: in silence, in time, with the code of the training."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks
from tests.runtime.collectives.world import Gone

import unhang
from unhang.runtime.collectives import abort
from unhang.runtime.collectives import abortable_group as lanes
from unhang.runtime.collectives import guarded_group as circles

pytestmark = pytest.mark.torch


def works(rank: int) -> None:
    for _ in range(5):
        unhang.all_reduce(torch.ones(100))
    unhang.barrier()
    unhang.agree(1)


def leaves(rank: int) -> None:
    works(rank)
    dist.barrier()
    dist.destroy_process_group()


def told(world) -> str:
    # torch warns of whoever ends without destroy_process_group, as it does without us.
    lines = "".join(world.stderr_of(rank).read_text() for rank in range(world.size)).splitlines()
    return "\n".join(line for line in lines if "destroy_process_group" not in line)


def test_after_leaving_the_group_nothing_is_written(fresh):
    world = fresh(2, ends=True)
    assert world.finish(leaves) == [0, 0]
    assert told(world) == ""


def leaves_nothing_of_it(rank: int) -> bool:
    works(rank)
    group = weakref.ref(dist.distributed_c10d._get_default_group())
    dist.destroy_process_group()
    gc.collect()
    return group() is None


def test_a_group_that_is_destroyed_is_held_by_nothing(fresh):
    # Its threads end with the last reference, and one that lets go of a tensor while the interpreter ends aborts the process.
    assert fresh(2)(leaves_nothing_of_it) == [True, True]


@pytest.mark.integration
def test_without_leaving_it_the_process_ends_all_the_same(fresh):
    world = fresh(2, ends=True)
    assert world.finish(works) == [0, 0]
    assert told(world) == ""


def has_a_child(rank: int) -> int:
    """As a data loader has, of which the child drops what it has inherited."""
    works(rank)
    held, ends = threading.Event(), threading.Event()

    def holds() -> None:
        with circles._circles_lock:
            held.set()
            ends.wait(20)

    threading.Thread(target=holds, daemon=True).start()
    assert held.wait(20)
    pid = os.fork()
    if pid == 0:
        gc.collect()
        # It is no rank: it has no circle. A group of its own may have one.
        os._exit(8 if circles._circles else 7 if circles._circles_lock.acquire(blocking=False) else 9)
    ends.set()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    works(rank)
    return code


def test_a_forked_child_does_not_wait_for_threads_that_it_has_not_got(fresh):
    assert fresh(2)(has_a_child) == [7, 7]


class Stopping:
    """A board beside which the clock goes on while an answer is on its way."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    def look(self, key: str) -> None:
        self._clock[0] += 60


def listens(rank: int) -> list[bool]:
    group = dist.new_group()
    unhang.barrier(deadline=20)
    unhang.barrier(group, deadline=20)
    one, other = circles.of(), circles.of(group)
    found = [one.stood_still(), other.stood_still()]
    clock = [abort.time.monotonic()]
    real, abort.time = abort.time, SimpleNamespace(monotonic=lambda: clock[0])
    try:
        one.listen(one.board)
        one.listen(Stopping(clock))
        found.append(one.stood_still())
        one.listen(one.board)
        found += [one.stood_still(), other.stood_still()]
    finally:
        abort.time = real
    return found


def test_an_old_answer_is_no_news_nor_is_that_of_another_group(fresh):
    assert fresh(2)(listens) == [[False, False, True, False, True]] * 2


def again(rank: int, path: str, times: int) -> list[float]:
    """Groups that come and go, all over one store."""
    found = []
    for _ in range(times):
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.PrefixStore(f"life {len(found)}", of_ranks.store), rank=rank, world_size=2)
        for _ in range(4):
            tensor = unhang.all_reduce(torch.full((3,), float(rank + 1)), deadline=20)
        found.append(tensor[0].item())
    return found


def test_a_group_after_another(fresh, tmp_path):
    assert fresh(2)(again, str(tmp_path), 3) == [[3.0] * 3] * 2


def stands_still(rank: int) -> str:
    """So much that it does not fit into what the kernel keeps: a send is under way when the connection is closed."""
    for _ in range(3):
        unhang.all_reduce(torch.ones(4 << 20), deadline=30)
    if rank == 1:
        of_ranks.store.set("stops", "now")
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        unhang.all_reduce(torch.ones(4 << 20), deadline=0.6)
    except unhang.CollectiveTimeout as e:
        return type(e).__name__
    return "done"


def buried(rank: int) -> int:
    return len(lanes._buried)


def test_a_send_that_nobody_receives_holds_nobody_up(fresh):
    world = fresh(2)
    world.start(stands_still)
    assert world.ended([0]) == ["CollectiveTimeout"]
    world.signal(1, signal.SIGCONT)
    assert world.ended([1]) == ["LatePeer"]
    assert world.finish(works) == [0, 0]


@pytest.mark.integration
def test_nor_the_end_of_the_process(fresh):
    world = fresh(2, ends=True)
    world.start(stands_still)
    assert world.ended([0]) == ["CollectiveTimeout"]
    world.signal(1, signal.SIGKILL)
    assert world.ended([1]) == [Gone(-signal.SIGKILL)]
    world._pipes[0].send(None)
    world._processes[0].join(20)
    assert world._processes[0].exitcode == 0


def made_again(rank: int) -> list[tuple[dict, float]]:
    """The same name, the same ranks, the same store. With a backend that does nothing: Gloo itself may read the addresses of the earlier group."""
    import torch.testing._internal.distributed.fake_pg

    found = []
    for incarnation in range(3):
        dist.destroy_process_group()
        dist.init_process_group("fake", store=of_ranks.store, rank=rank, world_size=2)
        agreed = unhang.agree([incarnation, rank], deadline=20)
        reduced = [unhang.all_reduce(torch.full((3,), float(incarnation)), deadline=20)[0].item() for _ in range(4)]
        found.append((agreed.values, reduced[-1]))
    return found


def test_what_an_earlier_group_of_that_name_said_is_no_answer(fresh):
    expected = [({0: [n, 0], 1: [n, 1]}, 2.0 * n) for n in range(3)]
    assert fresh(2)(made_again) == [expected, expected]


def evaluates_after(rank: int) -> int:
    """The first call has failed; in an evaluation whose number begins with the same digit rank 0 waits for longer than it takes to look around."""
    with pytest.raises(ValueError if rank else unhang.PeerFailed):
        unhang.all_reduce(torch.ones(3), deadline=-1 if rank else 20)
    for _ in range(10):
        unhang.all_reduce(torch.ones(3), deadline=20)

    begun: list[int] = []

    def scores(data: object, size: int) -> dict[str, float]:
        begun.append(size)
        time.sleep(4 * rank * abort.LOOK_S)
        return {"score": unhang.all_reduce(torch.ones(3), deadline=20)[0].item()}

    unhang.evaluate(scores, {"one": [1]}, batch_size=1, deadline=20)
    return len(begun)


def test_what_ended_a_call_ends_none_whose_number_begins_with_its(fresh):
    assert fresh(2)(evaluates_after) == [1, 1]


class Unended:
    """Of which nobody will ever hear, while a user presses Ctrl-C a second time."""

    def __init__(self) -> None:
        self.asked = 0

    def is_completed(self) -> bool:
        self.asked += 1
        if self.asked == 2:
            raise KeyboardInterrupt
        return False


class Destroyed:
    def __init__(self, *, interrupted: bool = False) -> None:
        self.closed, self._interrupted = 0, interrupted

    def destroy(self) -> None:
        if self._interrupted and not self.closed:
            self._interrupted = False
            raise KeyboardInterrupt
        self.closed += 1

    def gone(self, within_s: float) -> bool:
        return True


def test_who_is_interrupted_twice_drops_nothing_that_is_under_way(monkeypatch):
    monkeypatch.setattr(lanes, "_buried", [])
    circle, lane, work = circles.GuardedGroup(None), Destroyed(), Unended()
    circle._common["gloo"] = lane
    works = [work]
    with pytest.raises(KeyboardInterrupt):
        circle._break(works)
    # To drop one waits for its threads.
    assert lanes._buried == [(lane, [work])] and works == []


def test_an_interrupt_between_two_lanes_leaves_none_of_them_open():
    circle, first, second = circles.GuardedGroup(None), Destroyed(interrupted=True), Destroyed()
    circle._common.update(one=first, other=second)
    with pytest.raises(KeyboardInterrupt):
        circle._break([])
    # As the interrupted call does on its way out.
    circle._break([])
    assert first.closed and second.closed


def aborts_slowly(rank: int) -> tuple[tuple[int, ...], bool, float]:
    """As with NCCL: rank 1's lanes take longer to be gone than the others wait for reports. Rank 2 does not come to the call after the first."""
    asked: list[float] = []
    if rank == 1:
        lanes.GlooLane.gone = lambda lane, within_s: bool(asked.append(within_s)) or not threading.Event().wait(2 * abort.GRACE_S)
    unhang.all_reduce(torch.ones(3), deadline=20)
    if rank == 2:
        dist.barrier()
    began = time.monotonic()
    with pytest.raises(unhang.LatePeer if rank == 2 else unhang.CollectiveTimeout) as caught:
        unhang.all_reduce(torch.ones(3), deadline=1)
    took = time.monotonic() - began
    if rank < 2:
        dist.barrier()
    again = unhang.all_reduce(torch.ones(3), deadline=20)[0].item() == 3.0
    return caught.value.missing, again, took


def test_who_is_told_of_while_his_lanes_are_aborted_is_not_missing(fresh):
    found = fresh(3)(aborts_slowly)
    assert [(missing, again) for missing, again, _ in found] == [((2,), True)] * 3
    # Its memory is its own again only then.
    assert found[1][2] > 2 * abort.GRACE_S
