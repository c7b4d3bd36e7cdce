"""Whatever one rank raises in an evaluation: all ranks have the same result, what the training needs is as it was, and its group works."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.runtime.collectives import world as of_ranks
from tests.runtime.collectives.world import Gone

import unhang
from unhang.runtime.collectives import guarded_group as circles
from unhang.runtime.collectives import rendezvous
from unhang.runtime.evaluation.results import Evaluation

pytestmark = pytest.mark.torch


def evaluated(rank: int, what: str) -> tuple:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    model[1].eval()
    odd = rank == dist.get_world_size() - 1

    def batches(data: list[float], size: int):
        assert not torch.is_grad_enabled() and not model.training
        torch.rand(3), random.random()
        for begin in range(0, len(data), size):
            if odd and what == "memory" and size > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            batch = data[begin : begin + size]
            yield {"loss": (sum(batch), len(batch))}
            if odd and what == "wrong":
                raise KeyError("label")
            if what == "wrong":
                unhang.all_reduce(torch.ones(3), deadline=60)

    data = {"a": [1.0, 2.0, 3.0, 4.0], "b": [5.0] * 4}
    random.seed(rank)
    torch.manual_seed(rank)
    state, numbers = torch.get_rng_state(), random.getstate()
    found = unhang.evaluate(batches, {"a": data["a"]} if odd or what == "wrong" else data, batch_size=8, model=model, deadline=60)
    kept = torch.equal(state, torch.get_rng_state()) and numbers == random.getstate() and torch.is_grad_enabled()
    total = torch.ones(1)
    dist.all_reduce(total)
    return repr(replace(found, seconds=0.0)), found, kept and model.training and not model[1].training, total.item()


def results(worlds, size: int, what: str) -> Evaluation:
    given = worlds(size)(evaluated, what)
    assert len({said for said, *_ in given}) == 1
    assert [(kept, total) for *_, kept, total in given] == [(True, float(size))] * size
    return given[0][1]


@pytest.mark.parametrize("size", [2, 3])
def test_means_are_over_all_samples_and_all_names(worlds, size):
    found = results(worlds, size, "all")
    assert found.ok and found.flat() == {"eval/a/loss": 2.5, "eval/b/loss": 5.0, "eval/evaluation_failed": 0.0, "eval/attempts": 1.0}
    assert found.data_sets["a"].samples == 4 * size and found.data_sets["b"].samples == 4 * (size - 1)


def test_too_little_memory_on_one_rank_makes_batches_smaller_on_all(worlds):
    found = results(worlds, 3, "memory")
    assert found.ok and (found.data_sets["a"].attempts, found.data_sets["a"].batch_size) == (3, 2)


def test_what_is_wrong_ends_it_for_all_and_is_no_score(worlds):
    found = results(worlds, 3, "wrong")
    one = found.data_sets["a"]
    assert not found.ok and one.attempts == 1 and one.failed_ranks == (2,) and "KeyError: 'label'" in one.why
    assert math.isnan(found.flat()["eval/a/loss"]) and one.partial == {"loss": 2.5} and found.flat()["eval/evaluation_failed"] == 1.0


def fails_soon(rank: int) -> tuple[int, str | None]:
    done = 0

    def metrics(data: int, size: int):
        nonlocal done
        for _ in range(600):
            if rank == 0:
                raise KeyError("label")
            time.sleep(0.02)
            done += 1
            yield {"loss": 1.0}

    found = unhang.evaluate(metrics, {"a": 1}, batch_size=1, deadline=60)
    return done, found.data_sets["a"].why


def test_a_rank_that_fails_ends_the_attempt_of_those_that_go_on(worlds):
    (_, said), (done, said_too) = worlds(2)(fails_soon)
    assert said == said_too and "KeyError" in said
    # Of 12 seconds of it.
    assert done < 200


def names_what_is_no_text(rank: int, where: str) -> str | None:
    name = os.fsdecode(b"caf\xe9") if rank == 1 else "cafe"
    try:
        if where == "data set":
            return unhang.evaluate(lambda data, size: {"loss": 1.0}, {name: 1}, batch_size=1, deadline=20).why
        if where == "metric":
            return unhang.evaluate(lambda data, size: {name: 1.0}, {"a": 1}, batch_size=1, deadline=20).data_sets["a"].why
        with unhang.evaluation(deadline=20) as guard:
            guard.add(name, loss=1.0)
        return guard.result.why
    except ValueError as e:
        return str(e)


@pytest.mark.parametrize("where", ["data set", "metric", "block"])
def test_a_name_that_cannot_be_told_is_refused_on_all_ranks(worlds, where):
    began = time.monotonic()
    one, other = worlds(2)(names_what_is_no_text, where)
    assert time.monotonic() - began < 10
    assert "rank 1: " in one and ("UTF-8" in other or "TypeError" in other)


def waits_for_one_that_goes_on(rank: int) -> tuple[bool, list]:
    gathered = []

    def metrics(data: int, size: int):
        for _ in range(10 if rank == 1 else 1):
            time.sleep(0.4)
            yield {"loss": 1.0}
        gathered.extend(unhang.all_gather_object(rank))

    found = unhang.evaluate(metrics, {"a": 1}, batch_size=1, deadline=1.5, retries=0)
    return found.ok, gathered


def test_who_waits_inside_knows_that_the_others_go_on(worlds):
    assert worlds(2)(waits_for_one_that_goes_on) == [(True, [0, 1])] * 2


def waits_in_the_store(rank: int) -> float:
    waited = 0.0

    def metrics(data: int, size: int) -> dict[str, float]:
        nonlocal waited
        if rank == 1:
            time.sleep(1)
            raise KeyError("label")
        began = time.monotonic()
        try:
            unhang.agree(1)
        finally:
            waited = time.monotonic() - began
        return {}

    unhang.evaluate(metrics, {"a": 1}, batch_size=1, deadline=600)
    return waited


def test_who_waits_for_a_decision_learns_of_a_failure_in_seconds(worlds):
    assert worlds(2)(waits_in_the_store)[0] < 10


def in_a_block(rank: int) -> tuple:
    with unhang.evaluation(deadline=60) as guard:
        guard.add("nli", accuracy=(3, 4))
        if rank == 0:
            raise ValueError("no such label")
    return repr(replace(guard.result, seconds=0.0)), guard.result


def test_a_block_raises_nothing_and_tells_everybody(worlds):
    (said, found), *others = worlds(3)(in_a_block)
    assert all(one == said for one, _ in others)
    assert "rank 0: ValueError: no such label" in found.why and found.data_sets["nli"].partial == {"accuracy": 0.75}


def gives_up(rank: int, known: bool) -> tuple:
    """The second of three data sets, in which a rank stands still; with `known`, an evaluation of all three was before."""

    def metrics(data: str, size: int):
        yield {f"of {data}": (1.0, 2)}
        if rank == 1 and data == fails:
            of_ranks.store.wait([f"given up {known}"])
        yield {f"of {data}": (1.0, 2)}

    fails = ""
    names = {name: name for name in ("a", "b", "c")}
    if known:
        assert unhang.evaluate(metrics, names, batch_size=1, deadline=60).ok
    fails = "b"
    found = unhang.evaluate(metrics, names, batch_size=1, deadline=2, retries=0)
    of_ranks.store.set(f"given up {known}", "yes")
    return repr(replace(found, seconds=0.0)), found


@pytest.mark.parametrize("known", [False, True])
def test_what_was_not_reached_is_not_a_number_and_says_why(fresh, known):
    (said, found), (said_too, _) = fresh(2)(gives_up, known)
    assert said == said_too
    flat = found.flat()
    # Of a data set that was never complete the names are those of the others.
    missing = {"eval/c/of c"} if known else {"eval/c/of a", "eval/c/of b"}
    assert set(flat) == {"eval/a/of a", "eval/b/of b", "eval/evaluation_failed", "eval/attempts"} | missing
    assert flat["eval/a/of a"] == 0.5 and all(math.isnan(flat[name]) for name in {"eval/b/of b"} | missing)
    assert not found.ok and found.failed_ranks == found.missing == (1,)
    a, b, c = found.data_sets.values()
    assert a.complete and b.partial == {"of b": 0.5} and not c.complete and (c.attempts, c.samples) == (0, 0.0)
    stood = "rank 1 did not answer within 2 s (at test_evaluation.py:"
    assert b.why.startswith(stood) and b.why.endswith(" in metrics)")
    assert found.why.startswith(f"b: {stood}") and c.why.startswith(f"not reached: b: {stood}")
    assert found.says.startswith(f"b: {stood}") and found.says.endswith(" in metrics); not reached: c")


def takes_its_time(rank: int, how: str) -> tuple[bool, str, float, bool]:
    """Rank 1 is busy for more than half of the deadline, the others wait."""
    busy_s = 2.2 if rank else 0.0
    for _ in range(5):
        unhang.all_reduce(torch.ones(2), deadline=20)
    # Who computes hears nothing meanwhile: a loop in C, or a moment ago.
    rendezvous._EVERY_S = 30.0 if rank else 0.1

    def metrics(data: int, size: int) -> object:
        if how == "returns":
            time.sleep(busy_s)
            return {"m": 1.0}
        return yields()

    def yields():
        for _ in range(2):
            yield {"m": 1.0}
            time.sleep(busy_s)

    if how == "block":
        with unhang.evaluation(deadline=4) as block:
            time.sleep(busy_s)
            block.add("a", m=1.0)
        found = block.result
    else:
        found = unhang.evaluate(metrics, {"a": 1}, batch_size=1, deadline=4)
    # At once: lanes are given up by all or by none, whether they had asked for alarms or not.
    after = [unhang.all_reduce(torch.full((2,), float(rank)), deadline=20)[0].item() for _ in range(3)]
    return found.ok, found.says, found.data_sets["a"].samples, after == [3.0] * 3


@pytest.mark.parametrize("how", ["yields", "returns", "block"])
def test_who_computes_for_long_is_not_ended_before_the_deadline(fresh, how):
    samples = 6.0 if how == "yields" else 3.0
    assert fresh(3)(takes_its_time, how) == [(True, "", samples, True)] * 3


def is_refused_late(rank: int) -> tuple[str, float]:
    """Others have waited for more than half of the deadline, which this rank has not heard of."""
    for _ in range(5):
        unhang.all_reduce(torch.ones(2), deadline=20)
    rendezvous._EVERY_S = 30.0 if rank else 0.1
    time.sleep(2.3 if rank == 1 else 0.0)
    said = ""
    try:
        unhang.evaluate(lambda data, size: {"m": 1.0}, {"a": 1}, batch_size=0 if rank == 1 else 1, deadline=4)
    except ValueError as e:
        said = str(e)
    return said, unhang.all_reduce(torch.full((2,), float(rank)), deadline=20)[0].item()


def test_who_comes_late_with_arguments_that_make_no_sense_is_in_step_afterwards(fresh):
    given = fresh(3)(is_refused_late)
    assert all("batch_size is a whole number from 1 on" in said for said, _ in given) and [after for _, after in given] == [3.0] * 3


def raises_its_alarm_late(rank: int) -> tuple[bool, float]:
    """Half of the deadline is over, and all has been decided before that is told."""
    for _ in range(5):
        unhang.all_reduce(torch.ones(2), deadline=20)
    circle = circles.of()
    raises = circle._raise_alarm
    circle._raise_alarm = lambda key: (time.sleep(0.6), raises(key))
    with unhang.evaluation(deadline=4) as block:
        time.sleep(2.3 if rank else 0.0)
        block.add("a", m=1.0)
    # Until its own thread has heard of it.
    time.sleep(0.0 if rank else 0.6)
    return block.result.ok, unhang.all_reduce(torch.full((2,), float(rank)), deadline=20)[0].item()


def test_an_alarm_that_is_raised_when_all_is_over_harms_no_call(fresh):
    assert fresh(2)(raises_its_alarm_late) == [(True, 1.0)] * 2


def swallows(rank: int) -> tuple[bool, float]:
    """What ended its call is no failure to the function; that its lanes are gone the others learn all the same."""
    for _ in range(5):
        unhang.all_reduce(torch.ones(2), deadline=20)
    rendezvous._EVERY_S = 30.0

    def metrics(data: int, size: int) -> dict[str, float]:
        if rank:
            with contextlib.suppress(unhang.CollectiveError):
                unhang.all_reduce(torch.ones(2), deadline=20)
        return {"m": 1.0}

    found = unhang.evaluate(metrics, {"a": 1}, batch_size=1, deadline=4)
    return found.ok, unhang.all_reduce(torch.full((2,), float(rank)), deadline=20)[0].item()


def test_lanes_that_one_rank_has_given_up_are_given_up_by_all(fresh):
    assert fresh(3)(swallows) == [(True, 3.0)] * 3


NOTHING = {
    "no batch": ({"a": [1]}, lambda *_: iter(()), "no metric was given on any rank: fn returned or yielded none"),
    "no metric": ({"a": [1]}, lambda *_: {}, "no metric was given on any rank: fn returned or yielded none"),
    "no sample": ({"a": [1]}, lambda *_: {"loss": (0.0, 0)}, "no sample was counted on any rank"),
    "empty": ({"a": []}, lambda *_: iter(()), "nothing to measure: the data set is empty on all ranks"),
}


def measures(rank: int, what: str) -> tuple:
    data, fn, _ = NOTHING[what]
    found = unhang.evaluate(fn, data, batch_size=1, deadline=60)
    assert found.says == f"a: {found.data_sets['a'].why}"
    return found.ok, found.data_sets["a"].why, found.data_sets["a"].attempts, found.flat()["eval/evaluation_failed"]


@pytest.mark.parametrize("what", NOTHING)
def test_what_measured_nothing_is_no_success(worlds, what):
    assert worlds(2)(measures, what) == [(False, NOTHING[what][2], 1, 1.0)] * 2


def measures_some(rank: int) -> tuple:
    found = unhang.evaluate(lambda data, _: ({"loss": float(one)} for one in data), {"a": [4] * rank}, batch_size=1, deadline=60)
    nothing = unhang.evaluate(lambda *_: {}, {}, batch_size=1, deadline=60)
    return found.ok, found.flat()["eval/a/loss"], nothing.ok, nothing.why, nothing.flat()


def test_a_rank_without_a_share_is_well_and_no_data_set_at_all_is_not(worlds):
    failed = {"eval/evaluation_failed": 1.0, "eval/attempts": 0.0}
    assert worlds(2)(measures_some) == [(True, 4.0, False, "no rank has given a data set", failed)] * 2


def loses(rank: int, where: str) -> tuple[str, object, float]:
    def metrics(data: str, size: int):
        yield {"loss": 1.0}
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        # Who goes on for long learns of it as well.
        for _ in range(600 if where == "in a batch" and rank == 0 else 0):
            time.sleep(0.05)
            yield {"loss": 1.0}

    if where == "before":
        unhang.agree(1)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    found = unhang.evaluate(metrics, {"a": "a", "b": "b"}, batch_size=1, deadline=600)
    return repr(replace(found, seconds=0.0)), found, time.monotonic() - began


@pytest.mark.parametrize("where", ["before", "in a batch", "in a wait"])
def test_a_process_that_has_ended_is_not_waited_for_until_the_deadline(fresh, where):
    given = fresh(3).try_(loses, where)
    assert given.pop(1) == Gone(-signal.SIGKILL)
    (said, found, took), (said_too, _, took_too) = given
    assert said == said_too and max(took, took_too) < 15
    assert found.missing == found.failed_ranks == (1,) and not found.ok and set(found.data_sets) == {"a", "b"}
    assert "rank 1: its process has ended" in found.why and "not reached" in found.data_sets["b"].why


def out_of_step(rank: int, fails: bool) -> str:
    def raw(data: int, size: int) -> dict[str, float]:
        if rank:
            dist.all_reduce(torch.ones(1), async_op=True)
        elif fails:
            raise RuntimeError("bad sample")
        return {"a": 1.0}

    try:
        unhang.evaluate(raw, {"a": 1}, batch_size=1, deadline=60)
    except unhang.EvaluationFailed as e:
        return str(e)
    return ""


def test_a_group_that_is_out_of_step_is_no_longer_trained_with(fresh):
    assert all("out of step" in said and "had failed" not in said for said in fresh(2)(out_of_step, False))


def test_what_put_it_out_of_step_is_said_on_all_ranks(fresh):
    world = fresh(2)
    for said in world(out_of_step, True):
        assert "out of step" in said and " Rank 0 had failed with RuntimeError: bad sample (test_evaluation.py:" in said
    # At once, and by itself: the others may wait in a collective of the training's own.
    told = "unhang: rank 0 has failed in an evaluation of 'a' (attempt 1), and waits for the others: RuntimeError: bad sample (test_evaluation.py:"
    assert told in world.stderr_of(0).read_text() and "has failed" not in world.stderr_of(1).read_text()


def parsed(text: str) -> object:
    return json.loads(text)


def ends_early() -> None:
    raise StopIteration


def fails_deep_inside(rank: int) -> str:
    def metrics(data: int, size: int) -> object:
        yield {"a": 1.0}
        if rank == 1:
            ends_early() if data else parsed("{")

    return unhang.evaluate(metrics, {"text": 0, "iter": 1}, batch_size=1, retries=1, deadline=20).says


def test_where_it_came_from_is_told_once_by_the_rank_itself(fresh):
    world = fresh(2)
    (said,) = set(world(fails_deep_inside))
    first, at = ends_early.__code__.co_firstlineno + 1, parsed.__code__.co_firstlineno + 1
    assert f"RuntimeError: generator raised StopIteration (test_evaluation.py:{first})" in said
    told = world.stderr_of(1).read_text()
    began, again, other = (told.index(one) for one in ("of 'iter' (attempt 1)", "of 'iter' (attempt 2)", "of 'text' (attempt 1)"))
    here = fails_deep_inside.__code__.co_filename
    assert f"\n    at {here}:{first} in ends_early\n    at {here}:" in told[began:again] and "    at " not in told[again:other]
    assert " in raw_decode\n" in told and f"\n    at {here}:{at} in parsed\n    at {here}:" in told and "attempt.py" not in told
    # What an evaluation survives ends no process, and no log may look as if it had.
    assert "Traceback" not in told


def leaves(rank: int) -> tuple[str, dict[str, tuple[int, ...]]]:
    def metrics(data: int, size: int) -> dict[str, float]:
        if rank == 1:
            sys.exit(3)
        return {"a": 1.0}

    with contextlib.suppress(SystemExit):
        found = unhang.evaluate(metrics, {"one": 1, "two": 2}, batch_size=1, deadline=20)
        return found.says, {name: one.failed_ranks for name, one in found.data_sets.items()}
    return "", {}


def test_who_leaves_is_said_to_once_and_is_why_nothing_follows(fresh):
    (said, failed), _ = fresh(2)(leaves)
    assert said.startswith("one: rank 1 has left: SystemExit: 3 (test_evaluation.py:") and said.endswith("); not reached: two")
    assert said.count("SystemExit") == 1 and failed == {"one": (1,), "two": (1,)}


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("disk full")


def is_interrupted(rank: int) -> float:
    for _ in range(5):
        unhang.all_reduce(torch.ones(2), deadline=20)

    def fn(data, size):
        unhang.all_reduce(torch.ones(2))
        if rank == 1:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        unhang.evaluate(fn, {"one": [1]}, batch_size=1, deadline=20)
    return unhang.all_reduce(torch.full((2,), float(rank)), deadline=20)[0].item()


def test_who_goes_on_after_an_interruption_of_its_evaluation_is_in_step(fresh):
    assert fresh(3)(is_interrupted) == [3.0] * 3


def fails_where_logs_do(rank: int) -> tuple[bool, str]:
    def fn(data: int, size: int) -> dict[str, float]:
        if rank == 1:
            raise ValueError("bad")
        return {"a": 1.0}

    log = logging.getLogger("unhang")
    log.addHandler(broken := Broken())
    try:
        found = unhang.evaluate(fn, {"a": 1}, batch_size=1, deadline=20)
    finally:
        log.removeHandler(broken)
    return found.ok, found.says


def test_a_log_that_fails_ends_no_training(fresh):
    (ok, says), other = fresh(2)(fails_where_logs_do)
    assert other == (ok, says) and not ok and "rank 1: ValueError: bad" in says


def test_an_evaluation_of_one_process_waits_for_nobody(caplog):
    def fn(data: int, size: int) -> dict[str, float]:
        raise ValueError("bad")

    assert not unhang.evaluate(fn, {"a": 1}, batch_size=1).ok
    assert "waits for the others" not in caplog.text


def yields(data, size):
    yield {"loss": 1.0}
    yield {"loss": "x"}  # gives


def yields_from(data, size):
    yield from yields(data, size)


def counts_less_than_nothing(data, size):
    yield {"loss": (1.0, -2)}  # counts


def returns(data, size):
    return {"loss": "x"}


def loads(data, size):
    # torch's own code raises, in a generator of nobody's.
    return ({"loss": one} for one in ()) if data is None else iter(torch.utils.data.DataLoader(data, batch_size=size, sampler=[99]))


@pytest.mark.parametrize(
    ("fn", "line"), [(yields, "gives"), (yields_from, "gives"), (counts_less_than_nothing, "counts"), (returns, "called"), (loads, "called")]
)
def test_the_place_is_a_line_of_the_user_s_own(fn, line):
    code = Path(__file__).read_text().splitlines()
    found = unhang.evaluate(fn, {"a": [1.0]}, batch_size=1)  # called
    (at,) = [number for number, text in enumerate(code, 1) if text.endswith(f"  # {line}")]
    assert not found.ok and found.data_sets["a"].why.endswith(f" (test_evaluation.py:{at})")
