"""Ranks from the names of dumps: a word that says so, else the number that differs."""

from __future__ import annotations

import random

import pytest

from unhang.records.flight.naming import ranks_of


@pytest.mark.parametrize(
    "pattern",
    [
        "nccl_trace_rank_{}",
        "/tmp/comm_lib_trace_rank_{}",
        "rank{}.json",
        "rank_{}.pkl.gz",
        "node-03_rank_{}",
        "host7/rank_{}_attempt2",
        "trace_2026_11_03_{}",
        "job17_node2_{}.zst",
        "dump.{}",
        "d/{}/trace.bin",
        "global_rank-{}.json.zst",
    ],
)
def test_a_number_in_any_name(pattern):
    ranks = [0, 1, 2, 10, 11]
    names = [pattern.format(r) for r in ranks]
    random.Random(3).shuffle(names)
    found = ranks_of(names)
    assert not found.unsure and found.ranks == {pattern.format(r): r for r in ranks}


def test_hosts_in_the_names_are_no_ranks():
    names = [f"node-{r // 8:02d}/nccl_trace_rank_{r}" for r in range(32)]
    assert ranks_of(names).ranks == {name: r for r, name in enumerate(names)}
    names = [f"gpu{r // 4 + 100}_{r}" for r in range(8)]
    assert ranks_of(names).ranks == {name: r for r, name in enumerate(names)}


def test_a_number_that_also_differs_is_not_the_one():
    names = [f"trace_{r}_{9000 + 37 * r}" for r in range(4)]
    assert ranks_of(names).ranks == {name: r for r, name in enumerate(names)}


def test_names_that_do_not_tell_are_numbered_and_it_is_said():
    found = ranks_of(["b/rank_0", "a/rank_0", "a/rank_1", "b/rank_1"])
    assert found.unsure and found.ranks == {"a/rank_0": 0, "a/rank_1": 1, "b/rank_0": 2, "b/rank_1": 3}
    assert ranks_of(["one", "two"]).unsure
    assert ranks_of([]).ranks == {}


def test_one_name_alone():
    assert ranks_of(["nccl_trace_rank_7"]).ranks == {"nccl_trace_rank_7": 7}
    assert ranks_of(["trace"]).unsure
