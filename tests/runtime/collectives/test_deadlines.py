"""Which deadline is in force."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unhang.runtime.collectives import deadlines
from unhang.runtime.collectives.deadlines import DEFAULT_S, Learned, adaptive, checked, deadline, found, tier

pytestmark = pytest.mark.torch


def in_force(given_=None, *, kind: str = "all_reduce", numel: int = 1, step_bytes: int = 0) -> float:
    return found(given_, kind=kind, numel=numel, step_bytes=step_bytes)


@given(st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=5))
def test_of_nested_ones_the_shortest_counts_and_each_ends_with_its_block(seconds):
    def inside(rest: list[float], shortest: float) -> None:
        if rest:
            shortest = min(shortest, rest[0])
            with deadline(rest[0]):
                assert in_force() == shortest
                inside(rest[1:], shortest)
                assert in_force() == shortest

    inside(seconds, float("inf"))
    assert in_force() == DEFAULT_S


def test_the_call_s_own_comes_before_all():
    with deadline(5):
        assert in_force(60) == 60
        assert in_force("tiers", numel=10_000_000) == 900


def test_a_block_that_fails_takes_its_deadline_with_it():
    with pytest.raises(KeyError), deadline(5):
        raise KeyError
    assert in_force() == DEFAULT_S


def test_another_thread_has_its_own():
    seen = []
    with deadline(5):
        thread = threading.Thread(target=lambda: seen.append(in_force()))
        thread.start()
        thread.join()
    assert seen == [DEFAULT_S]


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), True, "5", "tier", None, [], b"1"])
def test_what_is_no_time_is_refused(bad):
    with pytest.raises(ValueError, match="positive number of seconds"):
        checked(bad)
    with pytest.raises(ValueError, match="positive number of seconds"), deadline(bad):
        pass
    assert in_force() == DEFAULT_S


@pytest.mark.parametrize(("numel", "seconds"), [(1, 300), (9_999_999, 300), (10_000_000, 900), (99_999_999, 900), (100_000_000, 1800)])
def test_tiers(numel, seconds):
    assert tier(numel) == seconds


def test_the_default_grows_with_what_has_to_be_completed_at_once():
    assert in_force(step_bytes=125_000_000) == DEFAULT_S + 10


@given(st.lists(st.floats(min_value=0.0, max_value=1000.0), min_size=1, max_size=300))
def test_what_is_learned_follows_the_slowest_of_the_last_calls(took):
    learned = Learned()
    for seconds in took:
        learned.saw("all_reduce", seconds)
    assert learned.deadline_s("all_reduce") == (None if len(took) < 20 else max(30.0, 20 * max(took[-200:])))
    assert learned.deadline_s("barrier") is None


def test_learned_deadlines_are_used_where_they_were_asked_for_only(monkeypatch):
    monkeypatch.setattr(deadlines, "learned", Learned())
    for _ in range(20):
        deadlines.learned.saw("all_reduce", 4.0)
    assert in_force() == DEFAULT_S
    assert deadlines.learned.in_force() == {}
    with adaptive():
        assert in_force() == 80
        assert deadlines.learned.in_force() == {"all_reduce": 80.0}
        assert in_force(kind="barrier") == DEFAULT_S
        with adaptive(False):
            assert in_force() == DEFAULT_S
        with deadline(7):
            assert in_force() == 7
        assert in_force(9) == 9
    assert in_force() == DEFAULT_S


# In a process of its own: it warns once. Whoever had imported the name before calls what was there then.
WRAPS_TORCHS = """
import pickle, threading, torch, torch.distributed as dist, unhang
plain = dist.all_reduce
def step(tensor):
    doubled = tensor * 2
    dist.all_reduce(doubled)
    return doubled
def compiled():
    torch._dynamo.reset()
    assert torch.compile(step, fullgraph=True, backend="eager")(torch.ones(4)).sum() == 8
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
with unhang.deadline(4):
    compiled()
    unhang.all_reduce(tensor)
    print("ours", flush=True)
    dist.all_gather_object([None], 1)
    dist.all_reduce(tensor)
dist.broadcast(tensor, src=0)
with unhang.deadline(4):
    opened, shut = threading.Event(), threading.Event()
    def beside():
        with unhang.deadline(5):
            opened.set()
            shut.wait()
    thread = threading.Thread(target=beside)
    thread.start()
    opened.wait()
assert dist.all_reduce is not plain
shut.set()
thread.join()
assert dist.all_reduce is plain and pickle.loads(pickle.dumps(dist.all_reduce)) is plain
compiled()
print("as before", flush=True)
"""


def test_a_call_of_torchs_inside_is_warned_of_once_and_torch_stays_as_it_is():
    done = subprocess.run([sys.executable, "-c", WRAPS_TORCHS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    before, _, after = done.stdout.partition("ours")
    assert "deadline" not in before
    assert re.findall(r"unhang: unhang\.deadline\(\) does not bound torch\.distributed\.(\w+)", after) == ["all_gather_object"], done.stdout
    assert after.endswith("as before\n"), done.stdout
