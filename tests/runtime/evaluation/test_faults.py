"""Whatever goes wrong in an evaluation: one outcome for all ranks, the late one too, and a training that goes on as if there had been none."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import random
import signal
import threading
import time
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from tests.runtime.collectives import world as of_ranks
from tests.runtime.collectives.world import Gone
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import unhang
from unhang.runtime.collectives import guarded_group as circles
from unhang.runtime.collectives.guarded_group import GuardedGroup
from unhang.runtime.evaluation.results import Evaluation

pytestmark = pytest.mark.torch

# Of a loaded machine: no rank that is well stands still for so long.
DEADLINE_S = 4.0
# The call that is waited in, and the last exchange: each a deadline, and what reports take. The rest is room for the training.
BOUND_S = 2 * DEADLINE_S + 40.0
STEPS = 6
BATCHES = ("first", "middle", "last")
# In the middle batch, of a rank that has said that it comes.
INSIDE = ("all_reduce", "chunks", "barrier")
PIECES = 12
NUMEL = PIECES * 256


# -- what goes wrong, in one rank, once


def raises(name: str) -> None:
    raise KeyError("label")


def lacks_memory(name: str) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def sleeps(name: str) -> None:
    while not of_ranks.store.check([f"{name}/given up"]):
        time.sleep(0.01)


def stops(name: str) -> None:
    of_ranks.store.set(f"{name}/stopped", str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


def dies(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {fault.__name__: fault for fault in (raises, lacks_memory, sleeps, stops, dies)}


# -- a training that evaluates in its middle


def digest(value: object) -> str:
    return hashlib.sha256(pickle.dumps(value)).hexdigest()


def numbers() -> str:
    return digest((random.getstate(), torch.get_rng_state().tolist()))


class Training:
    def __init__(self, rank: int) -> None:
        torch.manual_seed(rank)
        random.seed(rank)
        self.model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)))
        # A part that is frozen has a mode of its own.
        self.frozen = torch.nn.Dropout().eval()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.samples = torch.linspace(-1, 1, 32 * 4).reshape(32, 4)
        self.sampler = iter(DistributedSampler(range(32), seed=3))
        self.losses: list[float] = []

    def step(self) -> None:
        batch = self.samples[[next(self.sampler)]]
        self.optimizer.zero_grad()
        loss = ((self.model(batch) - batch.sum(1, keepdim=True)) ** 2).mean() * (1 + random.random())
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def state(self) -> str:
        parameters = [parameter.detach().tolist() for parameter in self.model.parameters()]
        momentum = [state["momentum_buffer"].tolist() for state in self.optimizer.state.values()]
        modes = [module.training for module in (*self.model.modules(), self.frozen)]
        return digest((parameters, momentum, modes, torch.is_grad_enabled(), self.losses)) + numbers()


def plain(rank: int) -> str:
    training = Training(rank)
    for _ in range(STEPS):
        training.step()
    return training.state() + repr(list(training.sampler))


def evaluates(rank: int, fault: str, where: str, who: int, name: str) -> tuple:
    training = Training(rank)
    # Which calls have connections of their own already is another test's doing.
    circles.of().broken()
    for _ in range(STEPS // 2):
        training.step()
    left = [name] if rank == who else []

    def now(place: str) -> bool:
        return bool(left) and place == where and bool(left.pop())

    def happens(place: str) -> None:
        if fault in FAULTS and now(place):
            FAULTS[fault](name)

    waits = GuardedGroup.wait
    batch = ""

    def wait(circle: GuardedGroup, turn, work) -> None:
        if batch == "middle":
            happens({("all_reduce", 0): "all_reduce", ("all_reduce", 5): "chunks", ("barrier", 0): "barrier"}.get((turn.call.what, turn.done), ""))
        waits(circle, turn, work)

    def test(data: object, size: int):
        nonlocal batch
        for batch in BATCHES:
            happens(batch)
            torch.rand(2), random.random()
            skips = fault == "skips" and now(batch)
            numel = NUMEL + 8 * (fault == "differs" and now(batch))
            if not (skips or (fault == "skips" and now("all_reduce"))):
                unhang.all_reduce(torch.ones(numel), chunk_bytes=1024)
            if not (skips or (fault == "skips" and now("barrier"))):
                unhang.barrier()
            yield {"loss": (training.model.module(training.samples).abs().sum().item(), len(training.samples))}
        if fault == "returns" and now("late"):
            sleeps(name)

    if fault == "comes" and now("late"):
        sleeps(name)
    before = training.state()
    with patch.object(GuardedGroup, "wait", wait):
        found = unhang.evaluate(
            test, {"nli": 1}, batch_size=8, model=(training.model, training.frozen), deadline=60 if fault in QUICK else DEADLINE_S
        )
    of_ranks.store.set(f"{name}/given up", "yes")
    if of_ranks.store.check([f"{name}/stopped"]) and rank != who:
        os.kill(int(of_ranks.store.get(f"{name}/stopped")), signal.SIGCONT)
    kept = before == training.state()
    try:
        for _ in range(STEPS - STEPS // 2):
            training.step()
    except RuntimeError as e:
        return repr(replace(found, seconds=0.0)), found, kept, e
    lasting = ("MainThread", "unhang-places", "unhang-store", "unhang-evaluation")
    threads = [thread.name for thread in threading.enumerate() if thread.name not in lasting]
    return repr(replace(found, seconds=0.0)), found, kept, (training.state() + repr(list(training.sampler)), threads)


# What needs no deadline has one that is longer than the bound.
QUICK = frozenset({"raises", "lacks_memory", "differs"})
ALL = [
    *((fault, where) for fault in ("raises", "lacks_memory", "sleeps", "stops") for where in (*BATCHES, *INSIDE)),
    *(("differs", where) for where in BATCHES),
    *(("skips", where) for where in (*BATCHES, "all_reduce", "barrier")),
    ("returns", "late"),
    ("comes", "late"),
]
KILLED = [("first", 2, 0), ("middle", 3, 2), ("last", 3, 1), ("all_reduce", 3, 2), ("chunks", 2, 1), ("barrier", 3, 0)]
# Each waits for two deadlines. Some of each are enough where nothing was changed.
SLOW = {("sleeps", w) for w in ("middle", "last", "chunks", "barrier")} | {("stops", w) for w in ("first", "last", "all_reduce", "barrier")}
SLOW |= {("dies", where) for where in ("first", "last", "all_reduce", "chunks")}


def marked(fault: str, where: str, *more: int):
    return pytest.param(*((where,) if fault == "dies" else (fault, where)), *more, marks=[pytest.mark.integration] * ((fault, where) in SLOW))


@pytest.mark.parametrize(
    ("fault", "where", "size", "who"), [marked(fault, where, 2 + i % 3, (i // 2) % (2 + i % 3)) for i, (fault, where) in enumerate(ALL)]
)
def test_one_outcome_for_all_and_the_training_goes_on(worlds, fault, where, size, who):
    world = worlds(size)
    expected = world(plain)
    given = world(evaluates, fault, where, who, f"{fault}/{where}", bound_s=BOUND_S)
    assert len({said for said, *_ in given}) == 1, [said for said, *_ in given]
    assert [kept for _, _, kept, _ in given] == [True] * size
    assert [after for *_, after in given] == [(one, []) for one in expected]
    as_it_should(given[0][1], fault, where, who)


def as_it_should(found: Evaluation, fault: str, where: str, who: int) -> None:
    flat = found.flat()
    assert flat["eval/evaluation_failed"] == float(not found.ok)
    if fault in ("sleeps", "stops", "dies", "returns", "comes"):
        said = f"rank {who}: its process has ended" if fault == "dies" else f"rank {who} did not answer within {DEADLINE_S:g} s"
        assert found.missing == (who,) and said in found.why
        assert ("(its process is stopped: SIGSTOP or Ctrl-Z)" in found.why) is (fault == "stops")
        assert fault == "comes" or (found.attempts == 1 and who in found.data_sets["nli"].failed_ranks)
    elif fault == "raises":
        one = found.data_sets["nli"]
        assert (one.failed_ranks, one.attempts, found.missing) == ((who,), 1, ()) and "KeyError: 'label'" in one.why
    elif fault == "skips" and where in BATCHES:
        assert not found.ok and found.missing == () and f"rank {who} has finished" in found.data_sets["nli"].why
    else:
        assert found.ok and found.attempts == 2 and found.data_sets["nli"].batch_size == (4 if fault == "lacks_memory" else 8)
    assert found.ok or math.isnan(flat.get("eval/nli/loss", math.nan))


@pytest.mark.parametrize(("where", "size", "who"), [marked("dies", *case) for case in KILLED])
def test_who_is_killed_is_missing_for_all_others_and_the_training_says_so(fresh, where, size, who):
    given = fresh(size).try_(evaluates, "dies", where, who, "dies", bound_s=BOUND_S)
    assert given.pop(who) == Gone(-signal.SIGKILL)
    assert len({said for said, *_ in given}) == 1
    assert [kept for _, _, kept, _ in given] == [True] * (size - 1)
    as_it_should(given[0][1], "dies", where, who)
    # The training's group has lost a rank: its neighbours in Gloo's ring learn of it at once. Of four ranks the one opposite waits for the group's
    # own timeout, or until they have ended.
    assert all(isinstance(after, RuntimeError) for *_, after in given)
