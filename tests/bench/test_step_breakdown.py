"""What steps were made of: after the warm-up alone, by what can be told of each device, and nothing where nothing was measured."""

import math
from dataclasses import replace

import pytest
from tests.bench.trainings import Trainings

from unhang.bench.explain import explain, summarize
from unhang.bench.step_times import RankFile, durations, measure
from unhang.bench.step_times import summarize as summary

NAN = math.nan
STEPS, DROPPED, STEP_S = 40, 3, 0.1


def so_far(each, first):
    """The warm-up is slow in all that is measured."""
    return tuple(sum(first if j <= DROPPED else each for j in range(i + 1)) for i in range(STEPS))


def rank(number=0, *, device="cpu", world_size="2", loader=NAN, calls=NAN, ddp=(), **more):
    return RankFile(
        rank=number, argv=(), started_with={}, variables={}, torch={"device": device, "world size": world_size}, ends_s=so_far(STEP_S, 1.0),
        loader_s=so_far(loader, 0.5), calls_s=so_far(calls, 0.5), ddp_s=tuple(dict(ddp).get(i, NAN) for i in range(STEPS)), **more,
    )  # fmt: skip


def measured(*ranks, usage=None):
    steps = summary(durations(ranks))
    assert steps.dropped == DROPPED
    return measure(ranks, steps, lambda begin, end: usage or {})


def test_of_the_steps_after_the_warm_up_alone():
    (one,) = measured(rank(loader=0.01, calls=0.02))
    assert (one.loader_s, one.exposed_s, one.compute_s) == pytest.approx((0.01, 0.02, 0.07))
    # A sample is of an earlier step: the one that is read right after the warm-up belongs to it.
    (one,) = measured(rank(ddp={1: 5.0, DROPPED + 1: 5.0, **dict.fromkeys((10, 15, 20, 25), 0.01), 30: 0.06}))
    assert (one.exposed_s, one.loader_s) == (pytest.approx(0.02), None)
    # A first call after the warm-up counts as well.
    late = replace(rank(), calls_s=(*[NAN] * (DROPPED + 1), *(0.02 * i for i in range(1, STEPS - DROPPED))))
    assert measured(late)[0].exposed_s == pytest.approx(0.02)
    # One long sample among a few would stand for the run.
    assert measured(rank(ddp=dict.fromkeys((10, 20, 30, 35), 0.01)))[0].exposed_s is None


def test_what_cannot_be_told_is_not_measured():
    assert [(m.exposed_s, m.compute_s) for m in measured(rank())] == [(None, None)]
    # With CUDA a call is over before its communication is.
    (gpu,) = measured(rank(device="cuda:0 (NVIDIA H100)", calls=0.02, loader=0.01))
    assert (gpu.exposed_s, gpu.compute_s, gpu.loader_s) == (None, None, pytest.approx(0.01))
    # Calls are not all of it where DDP communicates and was timed in the warm-up alone.
    assert measured(rank(calls=0.02, ddp={2: 0.05}))[0].exposed_s is None
    assert measured(rank(world_size="1"))[0].exposed_s == 0.0


def test_ranks_of_a_run_together(tmp_path, monkeypatch):
    gpu = {"gpu": "0000:3b:00.0", "cuda_bytes": 5}
    found = measured(rank(0, loader=0.01, host_bytes=10, **gpu), rank(1, loader=0.03, host_bytes=30, **gpu), usage={gpu["gpu"]: 360.0})
    told = summarize([replace(Trainings(tmp_path, monkeypatch).run().state.runs[0], ranks=found)])
    # Two ranks share the GPU: its energy counts once, for each of 36 steps.
    assert told == {
        "loader_s": pytest.approx(0.02), "exposed_s": None, "compute_s": None, "host_bytes": 30, "cuda_bytes": 5,
        "energy_j": pytest.approx(10.0),
    }  # fmt: skip


@pytest.mark.parametrize("is_known", [True, False])
def test_the_difference_is_put_down_to_what_became_longer(tmp_path, monkeypatch, is_known):
    trainings = Trainings(tmp_path, monkeypatch)
    trainings.step_s["b"], trainings.parts_s = 0.12, {"a": (0.01, NAN, 0.005), "b": (0.01, NAN, 0.025)} if is_known else {}
    result = trainings.run()
    said = list(explain(trainings.arms, result.state.runs, result.state.comparisons))
    assert len(said) == (2 if is_known else 0)
    if is_known:
        assert said[0] == (
            "the mean step of a takes 100 ms: 10.0 % waiting for the data loader, 5.0 % in communication that computation does not hide, "
            "85.0 % in the rest; "
            "so a faster transport can shorten a step of a by at most about 5.0 %"
        )
        assert said[1].startswith("the mean step of b differs from that of a by +")
        assert "communication that is not hidden +20.00 ms" in said[1]
