"""Lanes that are broken: whatever is under way in them ends, whoever broke his first, and whatever Gloo forgets."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks

from unhang.records.incident import OWN_GROUPS
from unhang.runtime.collectives.abortable_group import GlooLane, bury

pytestmark = pytest.mark.torch

KEPT: dict[str, object] = {}
# More than the kernel keeps for a connection, by far.
LARGE = 64 << 20


def opened(rank: int, size: int) -> None:
    KEPT["lane"] = GlooLane(dist.PrefixStore("lane", of_ranks.store), rank, size)


def recorded(rank: int) -> list[tuple[str, int]]:
    from torch._C import _distributed_c10d as c10d

    for name in ("0/a", "0/b"):
        lane = GlooLane(dist.PrefixStore(name, of_ranks.store), rank, 2, name=name)
        assert lane.ended(lane.all_reduce(torch.ones(3), dist.ReduceOp.SUM), 20)
    entries = json.loads(c10d._dump_fr_trace_json(True, False))["entries"]
    return [(e["process_group"][0], e["collective_seq_id"]) for e in entries if e["process_group"][0].startswith(OWN_GROUPS)]


@pytest.mark.skipif(not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"), reason="this torch records nothing of Gloo")
def test_calls_of_two_lanes_are_told_apart(fresh):
    assert fresh(2)(recorded) == [[("unhang/0/a", 1), ("unhang/0/b", 1)]] * 2


def breaks(rank: int, who: int) -> bool | None:
    lane = KEPT["lane"]
    if rank == who:
        lane.destroy()
    return None


def waits_for_0(rank: int) -> str:
    """Rank 2 has closed its connections, rank 0 has not, and sends nothing."""
    if rank != 1:
        return ""
    lane = KEPT["lane"]
    while True:
        # Until it is seen that rank 2 has gone.
        try:
            lane._group.send([torch.ones(1)], 2, 1).wait()
        except RuntimeError:
            break
    work = lane.broadcast(torch.zeros(8), 0)
    assert not lane.ended(work, 0.1)
    lane.destroy()
    return ends(lane, work)


def ends(lane, work) -> str:
    until = time.monotonic() + 15
    while time.monotonic() < until:
        try:
            if lane.ended(work, 0.1):
                return "done"
        except RuntimeError:
            return "ended"
    return "under way"


def test_what_waits_for_another_peer_than_the_one_that_has_gone_ends_as_well(fresh):
    world = fresh(3)
    world(opened, 3)
    world(breaks, 2)
    assert world(waits_for_0)[1] == "ended"


def large(rank: int, deadline_s: float) -> str:
    """Rank 1 stands still in the middle of a transfer: at rank 0 a send is under way when the connection is closed."""
    lane = KEPT["lane"]
    lane.expect(deadline_s)
    tensor = KEPT["tensor"] = torch.full((LARGE,), 1.0 - rank)
    work = KEPT["work"] = lane.broadcast(tensor, 0)
    if rank == 1:
        while tensor[0].item() == 0.0:
            pass
        os.kill(os.getpid(), signal.SIGSTOP)
        return ""
    of_ranks.store.wait(["stopped"])
    lane.destroy()
    if deadline_s > 100:
        bury([lane], [work])
        KEPT.clear()
        return "buried"
    return ends(lane, work)


def stopped(world) -> None:
    pid = world._processes[1].pid
    while True:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            break
        time.sleep(0.01)
    world.store.set("stopped", "yes")


def test_a_send_that_gloo_forgets_ends_soon_after_the_deadline(fresh):
    world = fresh(2)
    world(opened, 2)
    world.start(large, 1.0)
    stopped(world)
    assert world.ended([0]) == ["ended"]


@pytest.mark.integration
def test_nor_does_the_process_wait_for_it_at_its_end(fresh):
    world = fresh(2, ends=True)
    world(opened, 2)
    world.start(large, 300.0)
    stopped(world)
    assert world.ended([0]) == ["buried"]
    world._pipes[0].send(None)
    world._processes[0].join(20)
    assert world._processes[0].exitcode == 0


def without_gloo(rank: int, late: bool) -> tuple[bool, list[str]]:
    """A barrier of a group that has no Gloo, as one of NCCL: three times, so that it comes often enough for a lane of its own."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    import unhang
    from unhang.runtime.collectives import guarded_group as circles

    group = KEPT["group"] = KEPT.get("group") or dist.new_group(backend="fake")
    opened = []
    circle = circles.of(group)
    before = circle._open

    def noted(turn, kind, key):
        opened.append(kind)
        return before(turn, kind, key)

    circle._open = noted
    try:
        if late and rank == 0:
            of_ranks.store.wait(["given up"])
        for _ in range(4):
            unhang.barrier(group, deadline=0.5 if late else 20)
    finally:
        del circle._open
        if late:
            of_ranks.store.set("given up", "")
    return bool(circle._own), opened


def test_a_barrier_of_a_training_without_gloo_goes_through_the_store(fresh):
    world = fresh(3)
    assert world(without_gloo, False) == [(False, ["store"])] * 3
    found = world.try_(without_gloo, True)
    assert [one.kind for one in found] == ["LatePeer", "CollectiveTimeout", "CollectiveTimeout"]
    assert [one.missing for one in found] == [(0,)] * 3
    assert [own for own, _ in world(without_gloo, False)] == [False] * 3


def astray(rank: int) -> str:
    import unhang

    if rank == 1:
        # No such interface.
        os.environ["GLOO_SOCKET_IFNAME"] = "nosuch0"
    try:
        unhang.all_reduce(torch.ones(3), deadline=2)
    except unhang.CollectiveTimeout as e:
        return str(e)
    return ""


def test_who_cannot_connect_by_gloo_is_told_of_its_variable(fresh):
    assert "GLOO_SOCKET_IFNAME" in fresh(2)(astray)[1]
