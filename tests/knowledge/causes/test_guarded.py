"""What unhang's own errors tell once they have ended a training: as real ranks raise them, in one log and in several, in both languages."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from tests.chinese import zh
from tests.runtime.collectives.conftest import fresh  # noqa: F401

import unhang
from unhang.knowledge import catalogue
from unhang.knowledge.unhang_errors import fewest

pytestmark = pytest.mark.torch


def told(logs, cause: str, raised: list, *, first: int = 0):
    """What this cause finds in a log of each rank, in which that error ended it; every other root finds nothing."""
    hits, backs = {}, []
    for rank, error in enumerate(raised, first):
        text = f"unhang.errors.{error.kind}: {error.text}"
        source = f"rank{rank}.log"
        for id, found in logs.lines(text, rank=rank, source=source, start=4).items():
            hits[id] = (*hits.get(id, ()), *found)
        backs.append(replace(logs.raised(f"unhang.errors.{error.kind}", error.text, rank=rank, source=source, at=88), end=4))
    view = logs.view(hits=hits, tracebacks=tuple(backs), world_size=len(raised))
    roots = {c.id for c in catalogue.load().values() if c.role == "root" and c.in_logs is not None and c.in_logs(view) is not None}
    assert roots <= {cause}, roots
    return catalogue.get(cause).in_logs(view)


def out_of_sync(rank: int, step: int) -> None:
    unhang.sync_check(step, loss=float("nan") if rank == 1 else 1.0, every=1)


def test_who_trains_another_model_is_named_by_all(fresh, logs):  # noqa: F811
    found = told(logs, "out-of-sync", fresh(3).try_(out_of_sync, 300))
    assert (found.standing, found.ranks, found.where) == ("established", (1,), "/srv/job/train.py:88 in main")
    assert "at step 300" in found.says and "rank 1 differs from most" in found.says and "rank 1 has nan" in found.says
    assert "第 300 步" in zh(found.says) and "rank 1 不同" in zh(found.says)
    assert "same-on-all" not in [r.id for r in found.remedies]


def at_its_own_step(rank: int) -> None:
    unhang.sync_check(300 + (rank == 1), loss=1.0, every=1)


def test_ranks_at_different_steps_say_the_same(fresh, logs):  # noqa: F811
    raised = fresh(3).try_(at_its_own_step)
    assert len({error.text for error in raised}) == 1
    found = told(logs, "out-of-sync", raised)
    assert "at steps 300-301 the ranks do not train the same model: rank 1 differs from most" in found.says and "第 300-301 步" in zh(found.says)


def mismatched(rank: int) -> None:
    unhang.all_reduce(torch.ones(9 if rank == 2 else 8))


def test_who_wants_another_call_is_named_with_both(fresh, logs):  # noqa: F811
    found = told(logs, "collective-mismatch", fresh(3).try_(mismatched))
    assert (found.standing, found.ranks) == ("established", (2,))
    assert "all_reduce of 8 float32" in found.says and "all_reduce of 9 float32" in found.says and "rank 2 differs from most" in found.says
    assert "各 rank 想发出的调用不同" in zh(found.says)


def waits_for(rank: int, what: str) -> None:
    if rank == 1:
        time.sleep(6)
    if what == "barrier":
        unhang.barrier(deadline=1)
    elif what == "check":
        unhang.sync_check(7, loss=1.0, every=1, deadline=1)
    else:
        unhang.reduce_metrics({"loss": (1.0, 1)}, deadline=1)


@pytest.mark.parametrize(("what", "said"), [("barrier", "barrier "), ("check", "sync_check "), ("metrics", "reduce_metrics ")])
def test_who_did_not_come_is_named_with_the_call(fresh, logs, what, said):  # noqa: F811
    raised = fresh(2).try_(waits_for, what)
    found = told(logs, "guarded-call-timeout", raised[:1])
    assert (found.standing, found.ranks) == ("likely", (1,)) and said in found.says and "rank 1" in zh(found.says)
    assert "(call 1 of group 0)" in found.says
    late = told(logs, "guarded-call-timeout", raised[1:], first=1)
    assert late.ranks == (1,) and f"rank 1 came too late to {said}".rstrip() in late.says and "太晚" in zh(late.says)


def gives_wrong(rank: int) -> None:
    unhang.barrier(60 if rank == 1 else None, deadline=20)


def test_who_failed_in_the_call_is_named_by_what_the_others_were_told(fresh, logs):  # noqa: F811
    raised = fresh(2).try_(gives_wrong)
    assert raised[0].kind == "PeerFailed"
    found = told(logs, "guarded-call-timeout", raised[:1])
    assert (found.standing, found.ranks) == ("likely", (1,)) and "TypeError: group is a process group" in found.says


def test_where_who_did_not_come_stood_is_the_place_to_look_at(logs):
    text = (
        "unhang.errors.CollectiveTimeout: all_reduce of 8 float32 elements (cuda, AVG) (call 12 of group 'tp') did not end: nothing moved for 300 s. "
        "Not heard from: rank 3 (at train.py:61 in step), 5. 0 of 2 chunks were complete on all ranks that answered."
    )
    found = catalogue.get("guarded-call-timeout").in_logs(logs.view(hits=logs.lines(text, rank=0)))
    assert (found.ranks, found.where) == ((3, 5), "train.py:61 in step") and "rank 3 停在 train.py:61 in step" in zh(found.says)
    assert found.says.endswith("nothing moved for 300 s; ranks 3 and 5 did not come (rank 3 stood at train.py:61 in step)")


def test_who_did_not_come_because_it_was_stopped_is_said_to_be(logs):
    text = (
        "unhang.errors.CollectiveTimeout: barrier (call 2 of group '0') did not end: nothing moved for 5 s. "
        "Not heard from: rank 1 (its process is stopped: SIGSTOP or Ctrl-Z), 4."
    )
    found = catalogue.get("guarded-call-timeout").in_logs(logs.view(hits=logs.lines(text, rank=0)))
    assert (found.ranks, found.where) == ((1, 4), None) and "rank 1 的进程已被暂停" in zh(found.says)
    assert found.says.endswith("ranks 1 and 4 did not come (the process of rank 1 was stopped: SIGSTOP or Ctrl-Z)")


def evaluates(rank: int) -> None:
    group = dist.new_group([0, 2])

    def metrics(data: int, size: int) -> dict[str, float]:
        if rank == 2:
            dist.all_reduce(torch.ones(1), group=group, async_op=True)
        return {"a": 1.0}

    unhang.evaluate(metrics, {"a": 1}, batch_size=1, deadline=60)


def test_an_evaluation_that_left_a_group_out_of_step_names_the_group(fresh, logs):  # noqa: F811
    found = told(logs, "evaluation-out-of-step", fresh(3).try_(evaluates, bound_s=60))
    assert (found.standing, found.ranks) == ("established", (0, 2))
    assert "group '1'" in found.says and "rank 0: 0, rank 2: 1" in found.says and "次数不一致" in zh(found.says)


def test_one_of_whose_ranks_not_all_came_may_be_out_of_step(logs):
    text = (
        "unhang.errors.EvaluationFailed: the training's own group may be out of step: in this evaluation it was used, and how many collectives some "
        "of its ranks made is not known (rank 0 0, rank 2 0). Rank 1 did not answer within 4 s (at tar3.py:5 in test). To go on would mix results"
    )
    found = catalogue.get("evaluation-out-of-step").in_logs(logs.view(hits=logs.lines(text, rank=0)))
    assert (found.standing, found.ranks, found.where) == ("likely", (1,), "tar3.py:5 in test")
    assert "not known (known: rank 0: 0, rank 2: 0); rank 1 did not come to its end (at tar3.py:5 in test)" in found.says
    assert "rank 1 没有来到评估结尾（停在 tar3.py:5 in test）" in zh(found.says)


def test_a_lost_store_is_a_consequence(logs):
    hits = logs.lines("unhang.errors.StoreLost: the store of torch.distributed no longer answers: Broken pipe", rank=1)
    assert set(hits) == {"store-disconnect"} and hits["store-disconnect"][0].signature.role == "symptom"


def test_what_an_evaluation_survived_is_no_cause(logs):
    assert logs.lines("not ok: rank 1: CollectiveTimeout: barrier (call 2 of group '0') did not end: nothing moved for 5 s.") == {}


@pytest.mark.parametrize(("counts", "odd"), [({0: 3, 1: 2}, (0, 1)), ({0: 3, 1: 3, 2: 2}, (2,)), ({0: 1, 1: 1, 2: 2, 3: 2}, (0, 1, 2, 3))])
def test_most_is_more_than_half(counts, odd):
    assert fewest(counts) == odd
