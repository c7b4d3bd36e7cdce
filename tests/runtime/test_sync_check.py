"""Ranks that no longer train the same model are named, by real ranks over Gloo."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from tests.runtime.collectives import world as of_ranks
from tests.runtime.collectives.conftest import fresh, worlds  # noqa: F401

import unhang
from unhang.runtime import sync_check

pytestmark = pytest.mark.torch


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))


def checked(rank: int, what: str) -> tuple:
    trained, step, loss = model(), 100, 1.0
    with torch.no_grad():
        if rank == 1 and what == "parameter":
            trained[0].weight[0, 0] += 1e-6
        if rank == 1 and what == "places":
            trained[0].weight[[0, 1]] = trained[0].weight[[1, 0]]
        if rank == 1 and what == "buffer":
            trained[1].running_mean += 1
    if rank == 1 and what == "loss":
        loss = torch.tensor(float("nan"))
    if rank == 1 and what == "step":
        step = 200
    try:
        return unhang.sync_check(step, model=trained, loss=loss, deadline=30), unhang.sync_check(step + 1, model=trained)
    except unhang.OutOfSync as e:
        return e.ranks, str(e)


@pytest.mark.parametrize(
    ("what", "says"),
    [("parameter", "0.weight (rank 1) differs"), ("places", "0.weight (rank 1) differs"), ("loss", "rank 1 has nan"), ("step", "rank 1 is at 200")],
)
def test_who_has_diverged_is_named_on_all_ranks(worlds, what, says):  # noqa: F811
    for ranks, said in worlds(3)(checked, what):
        assert ranks == (1,) and says in said


@pytest.mark.parametrize("what", ["nothing", "buffer"])
def test_equal_ranks_pass_and_other_steps_cost_nothing(worlds, what):  # noqa: F811
    assert worlds(3)(checked, what) == [(True, False)] * 3


def test_where_there_is_no_majority_it_is_told_who_stands_against_whom(worlds):  # noqa: F811
    for ranks, said in worlds(2)(checked, "parameter"):
        assert ranks == (0, 1)
        assert said.endswith("0.weight (rank 0 against rank 1) differs. There is no majority: which rank is right cannot be told from this")


def diverges(rank: int, who: tuple[int, ...], step: int) -> tuple:
    try:
        return unhang.sync_check(100 if rank != step else 200, loss=float("nan") if rank in who else 1.0, deadline=30)
    except unhang.OutOfSync as e:
        return e.ranks, str(e)


@pytest.mark.parametrize(
    ("who", "step", "ranks", "says"),
    [
        (
            (0, 1, 2),
            -1,
            (0, 1, 2),
            "rank 2 has nan. Parameters were not compared: without a model it cannot be told whether the ranks are alike",
        ),
        ((1, 2), -1, (1, 2), "the ranks are out of sync at step 100. loss: rank 1 has nan; rank 2 has nan"),
        ((1,), 1, (1,), "loss: rank 1 has nan. Rank 1 differs from most"),
        (
            (1,),
            2,
            (1, 2),
            "at step 100-200. steps: rank 0 is at 100; rank 1 is at 100; rank 2 is at 200. loss: rank 1 has nan. Ranks 1, 2 differ from most",
        ),
    ],
)
def test_most_is_said_of_what_is_so_of_most(worlds, who, step, ranks, says):  # noqa: F811
    for found, said in worlds(3)(diverges, who, step):
        assert found == ranks and said.endswith(says)


def all_have_none(rank: int) -> str:
    try:
        unhang.sync_check(100, model=model(), loss=float("nan") if rank else float("inf"), deadline=30)
    except unhang.OutOfSync as e:
        return str(e)
    return ""


def test_equal_parameters_clear_nobody(worlds):  # noqa: F811
    """One rank's bad batch makes the gradients of all no number one step later."""
    for said in worlds(2)(all_have_none):
        assert said.endswith("rank 1 has nan. All hold the same parameters: on which of them it began cannot be told from this")


def test_sides_are_named_as_far_as_anybody_reads():
    assert sync_check._sides({0: "a", 1: "b", 2: "b", 3: "a"}) == "ranks 0, 3 against ranks 1, 2"
    assert sync_check._sides({rank: str(rank) for rank in range(8)}) == "rank 0 against rank 1 against rank 2 and 5 other values"


@pytest.mark.parametrize(("loss", "says"), [("x", "not 'x'"), ([1.0], r"not \[1.0\]"), (torch.ones(2), "not one of 2")])
def test_what_is_no_loss_is_named(loss, says):
    with pytest.raises((TypeError, ValueError), match=f"^loss is a number or a tensor of one element, {says}$"):
        sync_check._loss(loss)


def fails(rank: int) -> tuple[str, tuple]:
    try:
        unhang.sync_check(100, loss=torch.ones(2) if rank == 1 else 1.0, deadline=20)
        said = ""
    except Exception as e:
        said = type(e).__name__
        # It was not waited for.
        assert rank == 1 or "within" not in f"{e} {e.closed}"
    return said, tuple(unhang.agree(f"after {rank}", deadline=20).values.items())


def test_a_check_that_fails_on_one_rank_leaves_all_in_step(fresh):  # noqa: F811
    (zero, after), (one, after_one) = fresh(2)(fails)
    assert (zero, one) == ("PeerFailed", "ValueError")
    assert after == after_one == ((0, "after 0"), (1, "after 1"))


WRONG = {
    "model": ({"model": [torch.nn.Linear(1, 1)]}, "model is a torch module"),
    "loss": ({"loss": "x"}, "loss is a number"),
    "deadline": ({"deadline": "long"}, "a deadline is a positive number"),
    "group": ({"group": "world"}, "group is a process group"),
    "step": ({"step": 100.0}, "step is a whole number, not 100.0"),
}


def given_wrong(rank: int, what: str) -> tuple[str, str, tuple]:
    try:
        unhang.sync_check(**{"step": 100, "model": model(), "deadline": 300, **(WRONG[what][0] if rank == 1 else {})})
        kind = said = ""
    except Exception as e:
        kind, said = type(e).__name__, str(e)
    return kind, said, tuple(unhang.agree(f"after {rank}", deadline=20).values.items())


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_one_rank_s_arguments_the_others_are_told(worlds, what):  # noqa: F811
    zero, one = worlds(2)(given_wrong, what)
    assert one[0] in ("TypeError", "ValueError") and WRONG[what][1] in one[1]
    assert zero[0] == "PeerFailed" and f"rank 1: {one[0]}: {WRONG[what][1]}" in zero[1] and "did not come" not in zero[1]
    assert zero[2] == one[2] == ((0, "after 0"), (1, "after 1"))


def test_steps_that_are_no_numbers_are_refused_where_nobody_knows_whether_others_check():
    with pytest.raises(TypeError, match="step is a whole number, not 'x'"):
        unhang.sync_check("x", every=2)
    assert not unhang.sync_check(101.0)


def comes_late(rank: int, what: str) -> tuple[str, tuple, str, float]:
    unhang.barrier(deadline=20)
    if rank == 1:
        of_ranks.store.wait(["given up"])
    try:
        if what == "sync_check":
            unhang.sync_check(100, model=model(), deadline=1)
        else:
            unhang.reduce_metrics({"loss": 1.0}, deadline=1)
        kind, missing, said = "", (), ""
    except unhang.CollectiveTimeout as e:
        kind, missing, said = type(e).__name__, e.missing, str(e)
        of_ranks.store.set("given up", "yes")
    return kind, missing, said, unhang.all_reduce(torch.full((2,), float(rank)), deadline=20)[0].item()


@pytest.mark.parametrize("what", ["sync_check", "reduce_metrics"])
def test_who_comes_too_late_is_told_so_and_the_others_where_it_stood(fresh, what):  # noqa: F811
    zero, one, two = fresh(3)(comes_late, what)
    for kind, missing, said, after in (zero, two):
        assert (kind, missing, after) == ("CollectiveTimeout", (1,), 3.0)
        assert what in said and "not all ranks came within 1 s" in said and "Not heard from: rank 1 (at test_sync_check.py:" in said
    assert one[0] == "LatePeer" and one[1] == (1,) and one[3] == 3.0
    assert one[2].startswith(f"rank 1 came too late to {what}: the others gave it up after 1")


def in_parts(rank: int) -> tuple[list[int], bool]:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    found = []
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.NO_SHARD):
        torch.manual_seed(0)
        sharded = torch.nn.Sequential(
            FullyShardedDataParallel(torch.nn.Linear(8, 8), use_orig_params=True, device_id=torch.device("cpu"), sharding_strategy=strategy),
            torch.nn.Linear(8, 8),
        )
        assert unhang.sync_check(100, model=sharded, deadline=20)
        found.append(len(dict(sync_check._whole(sharded))))
    return found, True


def test_what_fsdp_has_divided_is_left_out_whatever_it_looks_like(fresh):  # noqa: F811
    assert fresh(2)(in_parts) == [([2, 4], True)] * 2


def monitored(rank: int, path) -> list[str]:
    with warnings.catch_warnings(record=True) as warned, unhang.Monitor([unhang.JSONL(path)], every_s=60):
        warnings.simplefilter("always")
        trained = model()
        # As in a training: a loss is the end of a graph.
        assert unhang.sync_check(100, model=trained, loss=trained(torch.ones(2, 4)).sum(), deadline=20)
        with torch.no_grad():
            trained[0].weight += rank
        with pytest.raises(unhang.OutOfSync):
            unhang.sync_check(200, model=trained, deadline=20)
    return [str(w.message) for w in warned]


def test_a_monitor_is_told_of_what_was_found_and_nothing_is_warned_of(fresh, tmp_path):  # noqa: F811
    path = tmp_path / "monitor.jsonl"
    assert [[w for w in warned if "scalar" in w] for warned in fresh(2)(monitored, path)] == [[], []]
    last = json.loads(path.read_text().splitlines()[-1])
    (failure,) = last["failures"]
    assert (failure["collective"], failure["cause"], failure["count"]) == ("sync_check", "out of sync", 1)
    assert "0.weight" in failure["says"]
    assert [(one["collective"], one["count"]) for one in last["calls"]] == [("sync_check", 1)]


@pytest.mark.parametrize("every", [0, -1, True, 1.5])
def test_every_is_a_whole_number(every):
    with pytest.raises(ValueError, match="every is a whole number"):
        unhang.sync_check(1, every=every)
