"""Whom the tests of links convict, on hosts whose links are made up: 4 to 64 of them, with noise as a busy network has it."""

from __future__ import annotations

import math
import random

import pytest

from unhang.hosts import edges
from unhang.hosts.edges import Probe


def probed(size, bad, *, noise=0.2, seed=0):
    """All probes of a preflight. `bad` gives of a pair what is wrong: "fails", or the logarithm of its speed's factor."""
    chosen = random.Random(seed)
    hosts = [f"node{n}" for n in range(1, size + 1)]

    def speed(a, b):
        wrong = bad(a, b)
        return 1e9 * math.exp(max(chosen.gauss(0, noise) for _ in range(3)) + (wrong if wrong != "fails" else 0))

    def probe(a, b):
        if bad(a, b) == "fails":
            return Probe(edge=(a, b), at="connect", error="timed out")
        return Probe(edge=(a, b), out_bytes_per_s=speed(a, b), in_bytes_per_s=speed(b, a), segments=10_000, lost=chosen.randrange(3))

    probes = [probe(*edge) for pairs in edges.rounds(hosts, seed=seed) for edge in pairs]
    planned = len(probes)
    for _ in range(5):
        probes += [probe(*edge) for pairs in edges.matchings(sorted(edges.suspects(probes))) for edge in pairs]
    return hosts, probes, planned


def apart(size):
    return lambda a, b: "fails" if (int(a[4:]) <= size // 2) != (int(b[4:]) <= size // 2) else 0.0


FAULTS = {
    "none": (lambda a, b: 0.0, []),
    "edge": (lambda a, b: "fails" if (a, b) == ("node3", "node2") else 0.0, [("edge", ("node3", "node2"), "out")]),
    "both ways": (lambda a, b: "fails" if {a, b} == {"node3", "node2"} else 0.0, [("edge", ("node2", "node3"), "both")]),
    "host": (lambda a, b: "fails" if "node2" in (a, b) else 0.0, [("host", ("node2",), "both")]),
    "deaf": (lambda a, b: "fails" if b == "node2" else 0.0, [("host", ("node2",), "in")]),
    "slow host": (lambda a, b: -2.3 if a == "node2" else 0.0, [("slow-host", ("node2",), "out")]),
    "slow edge": (lambda a, b: -2.3 if (a, b) == ("node3", "node2") else 0.0, [("slow-edge", ("node3", "node2"), "out")]),
    "two": (lambda a, b: "fails" if a == "node2" else -2.3 if b == "node4" else 0.0,
            [("host", ("node2",), "out"), ("slow-host", ("node4",), "in")]),
}  # fmt: skip


# Beyond 16 hosts not every pair is tried: node2 and node3 are neighbours in the ring.
@pytest.mark.parametrize("size", [4, 8, 64])
@pytest.mark.parametrize("name", FAULTS)
def test_the_bad_one_is_named_and_nobody_else(name, size):
    if size == 4 and name == "two":
        pytest.skip("four hosts with two faults leave two that are well")
    bad, expected = FAULTS[name]
    _, probes, _ = probed(size, bad, seed=size)
    found = edges.judge(probes)
    assert [(f.kind, f.hosts, f.way) for f in found] == expected
    assert all(f.is_established for f in found) or size == 4


@pytest.mark.parametrize("size", [4, 8, 64])
def test_groups_that_do_not_reach_each_other(size):
    hosts, probes, _ = probed(size, apart(size))
    (found,) = edges.judge(probes, hosts)
    assert found.kind == "groups" and found.is_established
    assert found.groups == (tuple(hosts[: size // 2]), tuple(hosts[size // 2 :]))


def test_where_nothing_works_nobody_is_blamed():
    (found,) = edges.judge(probed(4, lambda a, b: "fails")[1])
    assert found.kind == "groups" and [len(group) for group in found.groups] == [1, 1, 1, 1]
    (found,) = edges.judge(probed(2, lambda a, b: "fails")[1])
    assert found.kind == "edge" and not found.is_established


def test_tests_that_ended_early_part_nobody():
    assert edges.judge([Probe(edge=edge) for edge in (("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"))]) == ()


def test_healthy_hosts_are_left_alone():
    """40 runs at the noise of a machine that does other things meanwhile."""
    assert not [f for seed in range(40) for f in edges.judge(probed(8, lambda a, b: 0.0, noise=0.4, seed=seed)[1])]


def test_loss_counts_for_each_segment():
    probes = [Probe(edge=edge, segments=10_000, lost=500 if edge == ("b", "c") else 3) for pairs in edges.rounds("abcd") for edge in pairs] * 3
    assert [(f.kind, f.hosts, round(f.factor, 2)) for f in edges.judge(probes)] == [("loss", ("b", "c"), 0.05)]


@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_up_to_16_hosts_each_pair_is_tried_both_ways_and_never_two_at_once(size):
    hosts = [f"h{n}" for n in range(size)]
    planned = edges.rounds(hosts)
    assert sorted(edge for pairs in planned for edge in pairs) == sorted((a, b) for a in hosts for b in hosts if a != b)
    assert all(len({host for edge in pairs for host in edge}) == 2 * len(pairs) for pairs in planned)


@pytest.mark.parametrize("size", [17, 100, 10_000])
def test_beyond_that_twenty_rounds_do_at_any_size(size):
    hosts = [f"h{n}" for n in range(size)]
    planned = edges.rounds(hosts)
    assert len(planned) == 20 and all(len({host for edge in pairs for host in edge}) == 2 * len(pairs) for pairs in planned)
    ring = {(hosts[i], hosts[(i + 1) % size]) for i in range(size - size % 2)}
    assert ring <= {edge for pairs in planned for edge in pairs}


def test_the_upper_bound_is_that_of_clopper_and_pearson():
    for failed, tried, bound in ((0, 50, 0.0582), (3, 100, 0.0757), (5, 10, 0.7776), (10, 10, 1.0), (0, 0, 1.0)):
        assert edges.upper_bound(failed, tried) == pytest.approx(bound, abs=1e-4)
