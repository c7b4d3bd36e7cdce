"""What is wrong with the arguments of one rank ends the call for all of them, and the next call of one is the next of all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import unhang
from unhang.runtime.collectives.agreement import _packed

pytestmark = pytest.mark.torch


def guarded(monitor):
    with unhang.evaluation(deadline=20, monitor=monitor) as block:
        block.add("a", m=1.0)
    return block.result


# What rank 1 gives, the others what is right.
WRONG = {
    "all_reduce": lambda bad: unhang.all_reduce(torch.ones(2), group="world" if bad else None, deadline=20),
    "broadcast": lambda bad: unhang.broadcast(torch.ones(2), group=0 if bad else None, deadline=20),
    "all_gather": lambda bad: unhang.all_gather(torch.ones(2), group=[0, 1] if bad else None, deadline=20),
    "reduce_scatter": lambda bad: unhang.reduce_scatter(torch.ones(6), group=dist if bad else None, deadline=20),
    "all_gather_object": lambda bad: unhang.all_gather_object(1, "world" if bad else None, deadline=20),
    "barrier": lambda bad: unhang.barrier(60 if bad else None, deadline=20),
    "reduce_metrics": lambda bad: unhang.reduce_metrics({"a": 1.0}, "world" if bad else None, deadline=20),
    "no_mapping": lambda bad: unhang.reduce_metrics([1] if bad else {"a": 1.0}, deadline=20),
    "no_text": lambda bad: unhang.reduce_metrics({1 if bad else "a": 1.0}, deadline=20),
    "count": lambda bad: unhang.reduce_metrics({"a": (1.0, -2 if bad else 2)}, deadline=20),
    "source": lambda bad: unhang.broadcast(torch.ones(2), "0" if bad else 0, deadline=20),
    "truth": lambda bad: unhang.all_ok("false" if bad else True, deadline=20),
    "nothing": lambda bad: unhang.all_ok(None if bad else True, deadline=20),
    "truths": lambda bad: unhang.all_ok(torch.ones(2) if bad else torch.ones(1), deadline=20),
    "agree": lambda bad: unhang.agree(1, "world" if bad else None, deadline=20).missing,
    "monitor": lambda bad: unhang.evaluate(lambda *_: {"a": 1}, {"a": 1}, batch_size=1, monitor="m" if bad else None, deadline=20),
    "monitor_guarded": lambda bad: guarded("m" if bad else None),
    "evaluate": lambda bad: unhang.evaluate(lambda *_: {"a": 1}, {"a": 1}, batch_size=1, group="world" if bad else None, deadline=20),
    "named": lambda bad: unhang.evaluate(lambda *_: {"a": 1}, {1 if bad else "a": 1}, batch_size=1, deadline=20),
}
SAID = {
    "no_mapping": r"metrics are a mapping of names to numbers or pairs \(sum, count\), not list \[1\]",
    "no_text": r"metrics are a mapping of names to numbers or pairs \(sum, count\), not dict \{1: 1.0\}",
    "source": "src is the number of a rank, not str '0'",
    "truth": "ok is true or false, not str 'false'",
    "monitor": "monitor is called with the result; str cannot be called",
    "monitor_guarded": "monitor is called with the result; str cannot be called",
    "nothing": "ok is true or false, not NoneType None",
    "truths": r"ok is true or false, not Tensor tensor\(\[1\., 1\.\]\)",
    "count": "the count of metric 'a' is a number from 0 on, not -2",
    "named": "the name of a data set is text, not int 1",
}


def settles(tensor: float) -> float:
    return unhang.all_reduce(torch.full((2,), tensor), deadline=20)[0].item()


def gives(rank: int, how: str) -> tuple[str, str, list[float]]:
    # Of a kind that goes without asking.
    for _ in range(4):
        settles(1.0)
    kind, said = "", ""
    try:
        said = str(WRONG[how](rank == 1))
    except Exception as e:
        kind, said = type(e).__name__, str(e)
    return kind, said, [settles(float(batch)) for batch in (2, 3)]


@pytest.mark.parametrize("how", WRONG)
def test_the_others_are_told_at_once_and_stay_in_step(worlds, how):
    zero, one, two = worlds(3)(gives, how)
    assert [found[2] for found in (zero, one, two)] == [[6.0, 9.0]] * 3
    own = SAID.get(how, "group is a process group of torch.distributed, or None for all ranks, not ")
    assert one[0] in ("TypeError", "ValueError") and re.match(own, one[1])
    for kind, said, _ in (zero, two):
        if how == "agree":
            assert (kind, said) == ("", "(1,)")
        elif how in ("truth", "truths", "nothing"):
            assert (kind, said) == ("", "False")
        elif how in ("evaluate", "named", "monitor"):
            assert kind == "ValueError" and re.search(f"rank 1: TypeError: {own}", said)
        elif how == "monitor_guarded":
            # Nothing is raised: it is in the result.
            assert kind == "" and re.search(f"rank 1: TypeError: {own}", said)
        else:
            assert kind == "PeerFailed" and re.search(f"rank 1: {one[0]}: {own}", said)


def fails(rank: int) -> tuple:
    try:
        unhang.all_reduce(torch.ones(2), chunk_bytes=3 if rank == 1 else "auto", deadline=20)
    except unhang.PeerFailed as e:
        return isinstance(e, unhang.CollectiveTimeout), e.ranks, e.missing, [said.rank for said in e.closed.reports if said.own]
    except ValueError:
        return ()
    return (None,)


def test_an_error_of_one_rank_is_no_timeout_of_the_others(worlds):
    assert worlds(3)(fails) == [(False, (1,), (), [1]), (), (False, (1,), (), [1])]


def of_no_member(rank: int) -> tuple[str, float]:
    group = dist.new_group([0, 1])
    said = ""
    try:
        unhang.barrier(group, deadline=20)
    except unhang.CollectiveError as e:
        said = str(e)
    return said, settles(float(rank))


def test_who_is_no_member_has_begun_no_call(fresh):
    assert fresh(3)(of_no_member) == [("", 3.0), ("", 3.0), ("this rank is no member of that group", 3.0)]


def agrees(rank: int) -> tuple[str, tuple]:
    try:
        return "", unhang.agree(torch.ones(1) if rank == 0 else 1, deadline=20).missing
    except TypeError as e:
        return str(e), ()


def test_what_cannot_be_agreed_on_is_named_with_what_can(worlds):
    (said, _), (_, missing) = worlds(2)(agrees)
    assert said.startswith("value is what JSON can hold (None, a truth, number, text, list, or a mapping of such), not Tensor tensor([1.])")
    assert missing == (0,)


@dataclass
class Told:
    names: object


@pytest.mark.parametrize(
    "value",
    [{1, 2}, frozenset(), {"a": [{3}]}, ({1},), Told({"a"}), b"abc", Decimal("1.5"), datetime(2026, 1, 1), timedelta(1), Path("a"), torch.tensor(1)],
)
def test_nor_is_what_would_be_something_else_to_the_others(value):
    with pytest.raises(TypeError, match=r"is not JSON serializable"):
        _packed(value)


@pytest.mark.parametrize("value", [{1: 2}, [{"a": {3: 1}}], {None: 1}, ({"a": 1, True: 2},)])
def test_nor_are_keys_that_would(value):
    with pytest.raises(TypeError, match=r"the keys of a mapping are text, not"):
        _packed(value)


def test_nor_is_more_than_the_store_takes_at_once():
    assert len(_packed("x" * 3_999_998, 2)) == 4_000_000
    with pytest.raises(ValueError, match=r"value has 4,000,001 bytes as JSON, of 4,000,000 that each of 2 ranks may give"):
        _packed("x" * 3_999_999, 2)


@pytest.mark.parametrize("value", [{"a": [1, None, True]}, (1, "x"), 0.5, "1"])
def test_what_is_the_same_to_all(value):
    assert json.loads(_packed(value)) == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("asked", [bool, lambda agreed: agreed and 1, lambda agreed: 1 if not agreed else 2])
def test_what_was_agreed_on_is_no_truth(asked):
    # One that holds False would be true.
    with pytest.raises(TypeError, match=r"ask for its value, for unanimous or missing, or call unhang\.all_ok"):
        asked(unhang.Agreed(values={0: False}, missing=()))


def calls_in_a_child(rank: int, what: str) -> str:
    if what == "after calls":
        settles(1.0)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = ""
        try:
            unhang.all_reduce(torch.ones(1), deadline=5)
        except BaseException as e:
            said = f"{type(e).__name__}: {e}"
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    os.waitpid(pid, 0)
    with os.fdopen(ours) as told:
        said = told.read()
    assert settles(1.0) == 2.0
    return said.replace(str(pid), "PID")


@pytest.mark.parametrize("what", ["after calls", "before any"])
def test_a_fork_of_a_rank_is_refused(fresh, what):
    for rank, said in enumerate(fresh(2)(calls_in_a_child, what)):
        assert said.startswith(f"CollectiveError: process PID is a fork of rank {rank} (a worker of a DataLoader?) and has none of its connections")


LOADS = """
import torch, torch.distributed as dist, torch.utils.data, unhang

class Asks(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        try:
            return str(unhang.agree(index, deadline=5))
        except unhang.CollectiveError as e:
            return str(e)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(*next(iter(torch.utils.data.DataLoader(Asks(), num_workers=1, multiprocessing_context="fork"))))
dist.destroy_process_group()
"""


def test_a_worker_is_refused_also_where_it_is_the_first_to_call():
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, timeout=60, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
    assert "is a fork of rank 0 (a worker of a DataLoader?)" in done.stdout, done
