"""Rank 0 alone in a collective: possible by watchdog lines; likely where every rank's traceback tells its line, or holds the test."""

from __future__ import annotations

import pytest

from unhang.frames import Frame
from unhang.knowledge import catalogue
from unhang.logs import Traceback


def judge(view):
    return catalogue.get("rank0-guarded-collective").in_logs(view)


def test_rank_0_alone_of_many(logs):
    found = judge(logs.view(timeouts=(logs.timeout(0, 40, "ALLREDUCE", 1),), printed=frozenset(range(4)), world_size=4))
    assert (found.standing, found.ranks) == ("possible", (0,)) and "ranks 1 to 3 printed no timeout" in found.says


@pytest.mark.parametrize("alone", [1, 3])
def test_another_rank_alone_is_no_guard(logs, alone):
    assert judge(logs.view(timeouts=(logs.timeout(alone, 40),), world_size=4)) is None


def test_of_two_ranks_the_other_may_be_slow(logs):
    assert judge(logs.view(timeouts=(logs.timeout(0, 40),), world_size=2)) is None
    assert judge(logs.view()) is None


TIMED_OUT = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"


def stood(logs, *calls: tuple[int, str, int, str]):
    """A view in which each rank gave up in a call of torch.distributed: (rank, call, line, code of that line)."""
    hits: dict = {}
    backs = []
    for rank, call, line, code in calls:
        end = 20 * (rank + 1)
        frames = (
            Frame(file="/srv/job/train.py", line=line, name="evaluate", code=code),
            Frame(file="/srv/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line=3252, name=call),
        )
        backs.append(Traceback(source="train.log", line=end - 9, end=end, type="RuntimeError", text=TIMED_OUT[14:], frames=frames, rank=rank))
        for cause, found in logs.lines(TIMED_OUT, rank=rank, start=end).items():
            hits[cause] = (*hits.get(cause, ()), *found)
    return logs.view(hits=hits, tracebacks=tuple(backs))


def test_rank_0_in_another_line_than_all_others(logs):
    view = stood(logs, (0, "barrier", 22, "dist.barrier()"), (1, "all_reduce", 17, "x"), (2, "all_reduce", 17, "x"))
    found = judge(view)
    assert (found.standing, found.ranks) == ("likely", (0,)) and "rank 0 alone gave up in barrier" in found.says
    assert found.where == "/srv/job/train.py:22 in evaluate"
    assert catalogue.get("collective-mismatch").in_logs(view) is None


@pytest.mark.parametrize(
    "calls",
    [
        ((0, "all_reduce", 17, "x"), (1, "barrier", 22, "x"), (2, "all_reduce", 17, "x")),
        ((0, "barrier", 22, "x"), (1, "all_reduce", 17, "x"), (2, "broadcast", 19, "x")),
        ((0, "barrier", 22, "dist.barrier()"), (1, "all_reduce", 17, "x")),
        ((0, "all_reduce", 22, "x"), (1, "all_reduce", 17, "x"), (2, "all_reduce", 17, "x")),
    ],
    ids=["rank 1 is the odd one", "the others differ", "of two either", "the same call"],
)
def test_other_partings_are_no_guard(logs, calls):
    assert judge(stood(logs, *calls)) is None


@pytest.mark.parametrize(
    "code", ["if rank == 0: dist.barrier()", "if accelerator.is_main_process: accelerator.wait()", "if dist.get_rank() == 0: save()"]
)
def test_a_test_of_the_rank_in_the_line_tells_of_two_as_well(logs, code):
    found = judge(stood(logs, (0, "barrier", 22, code), (1, "all_reduce", 17, "x")))
    assert found.standing == "likely" and code in found.says
