"""Ranks from the names of dumps: a word that says so, else the number that differs."""

from __future__ import annotations

import random

import pytest
from tests.tables import for_each

from unhang.flight.rank_from_name import ranks_of


@for_each(
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
    found = ranks_of(["b/local_rank_0", "a/local_rank_0", "a/local_rank_1", "b/local_rank_1"])
    assert found.unsure and not found.said
    assert found.ranks == {"a/local_rank_0": 0, "a/local_rank_1": 1, "b/local_rank_0": 2, "b/local_rank_1": 3}
    assert ranks_of(["one", "two"]).unsure
    assert ranks_of([]).ranks == {}


def test_a_number_of_the_folder_of_all_is_no_rank():
    for folder in ("/data/run5/", "/tmp/a7/nn/", "runs/2024/"):
        found = ranks_of([f"{folder}trace.pkl", f"{folder}trace_1.pkl"])
        assert found.unsure and set(found.ranks.values()) == {0, 1}


def test_who_says_its_rank_keeps_it_beside_one_that_does_not():
    found = ranks_of(["d/trace_rank_2", "d/all.json", "d/trace_rank_0", "d/more.json"])
    assert found.ranks == {"d/trace_rank_0": 0, "d/trace_rank_2": 2, "d/all.json": 1, "d/more.json": 3}
    assert found.guessed == {"d/all.json", "d/more.json"} and not found.said


def test_one_name_alone():
    assert ranks_of(["nccl_trace_rank_7"]).ranks == {"nccl_trace_rank_7": 7}
    assert ranks_of(["trace"]).unsure
    for name in ("flight_20241122.trace", "job17.trace"):
        assert ranks_of([name]).unsure and ranks_of([name]).ranks == {name: 0}


@pytest.mark.parametrize("more", [["rank_1.bak"], ["rank_0.json", "rank_1.json"], ["attempt_1/rank_0", "attempt_1/rank_1"], ["rank_1_2"]])
def test_several_of_one_rank(more):
    names = ["rank_0", "rank_1", *more]
    found = ranks_of(names)
    assert found.said and not found.unsure and set(found.ranks.values()) == {0, 1}
    assert all(found.ranks[name] == int(name.split("rank_")[1][0]) for name in names)


def test_numbers_that_no_job_has_are_no_ranks():
    names = [f"trace_{n}_{20241122 + 7 * n}" for n in range(2)]
    assert ranks_of(names).ranks == {name: n for n, name in enumerate(names)}
    names = [f"trace_{20241122 + n}" for n in range(2)]
    assert ranks_of(names).unsure
