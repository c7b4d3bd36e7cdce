"""Who was waited for between two snapshots, whatever was before, and whenever ranks tell."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from unhang import encoding
from unhang.runtime.monitoring import histogram
from unhang.runtime.monitoring.counters import (
    Calls,
    Intervals,
    Moment,
    OfCalls,
    OfFailures,
    Silent,
    Snapshot,
    Straggler,
    Tally,
    calls_since,
    merged,
    summed,
)
from unhang.runtime.monitoring.sinks.prometheus import text


def test_the_docs_list_what_a_sink_gets():
    section = (Path(__file__).parents[3] / "docs/monitoring.md").read_text().partition("## What a snapshot holds")[2].partition("\n## ")[0]
    attributes, held = [
        [[re.findall("`([^`]+)`", cell) for cell in line.split("|")[1:3]] for line in table.splitlines() if line.startswith("| `")]
        for table in section.split("| each of | has |")
    ]
    assert sorted(name for names, _ in attributes for name in names) == sorted(
        [*(field.name for field in fields(Snapshot)), *(name for name, of in vars(Snapshot).items() if isinstance(of, property))]
    )
    of_calls, of_stragglers = ({field.name for field in fields(of)} for of in (OfCalls, Straggler))
    assert {name: {*has} for names, has in held for name in names} == {
        "calls": of_calls,
        "interval_calls": of_calls,
        "failures": {field.name for field in fields(OfFailures)},
        "stragglers": of_stragglers,
        "interval_stragglers": of_stragglers,
        "silent": {field.name for field in fields(Silent)},
    }


def told(at_s: float, *inside_s: float | None) -> list[Tally]:
    """Of each rank how long it has been in calls; None of one that has told nothing new since 0 s."""
    return [
        Tally(rank=rank, calls={"world|all_reduce": Calls(count=1, inside_s=s or 0.0)}, told_at_s=0.0 if s is None else at_s)
        for rank, s in enumerate(inside_s)
    ]


def test_a_rank_that_has_recovered_is_no_longer_named():
    intervals = Intervals()
    assert intervals.since(told(0.0, 90.0, 90.0, 0.0), 100.0) == (None, [])
    interval_s, found = intervals.since(told(10.0, 98.0, 90.0, 8.0), 110.0)
    assert interval_s == 10.0 and [(one.group, one.rank, one.waited_s, one.share) for one in found] == [("world", 1, 8.0, 1.0)]
    assert intervals.since(told(20.0, 99.0, 91.0, 9.0), 120.0) == (10.0, [])


def test_who_has_told_nothing_new_is_left_out():
    intervals = Intervals()
    intervals.since(told(0.0, 0.0, 0.0, None), 0.0)
    _, found = intervals.since(told(10.0, 5.0, 4.0, None), 10.0)
    assert [one.rank for one in found] == [1]


def test_who_has_told_of_twice_the_time_has_not_waited_twice_as_long():
    intervals = Intervals()
    intervals.since(told(0.0, 0.0, 0.0), 0.0)
    first, second = told(20.0, 8.0, 4.0)
    second.told_at_s = 10.0
    assert intervals.since([first, second], 10.0) == (10.0, [])


@pytest.mark.parametrize("time_s", [5.0, 4.0])
def test_no_time_is_no_interval(time_s):
    intervals = Intervals()
    intervals.since(told(0.0, 0.0, 0.0), 5.0)
    assert intervals.since(told(1.0, 1.0, 0.0), time_s) == (None, [])


def after(*calls: tuple[int, float]) -> dict[str, Calls]:
    found = Calls()
    for times, seconds in calls:
        for _ in range(times):
            histogram.add(found.latency_s, seconds)
        found.count += times
    return {"world|barrier": found}


def test_calls_that_have_become_slow_are_not_hidden_by_those_of_before():
    before, now = after((1000, 0.01)), after((1000, 0.01), (50, 1.0))
    (found,) = calls_since(now, before)
    assert (found.count, found.timed) == (50, 50) and found.latency_p50_s == pytest.approx(1.0, rel=0.06)
    assert summed([], calls=now)[0][0].latency_p95_s == pytest.approx(0.01, rel=0.06)
    assert calls_since(now, now) == []


def test_a_histogram_of_prometheus_has_every_call_once():
    calls, *_ = summed([], calls=after((3, 0.5), (2, 0.0001), (1, 5000.0)))
    lines = text(Snapshot(time_s=0.0, world_size=1, heard_from=1, restarts=0, calls=calls)).splitlines()
    buckets = {m[1]: int(m[2]) for line in lines if (m := re.match(r'unhang_call_duration_seconds_bucket{.*le="(.*)"} (.*)', line))}
    assert (buckets["6.103515625e-05"], buckets["0.000244140625"], buckets["0.25"], buckets["1.0"], buckets["1024.0"]) == (0, 2, 2, 5, 5)
    assert buckets["+Inf"] == 6 and sorted(buckets.values()) == list(buckets.values())
    assert 'unhang_call_duration_seconds_count{group="world",collective="barrier"} 6' in lines
    (total,) = [float(line.split()[-1]) for line in lines if "_sum{" in line]
    assert total == pytest.approx(5001.5, rel=0.06)


def of_a_thousand(rank: int) -> Tally:
    """Tensor parallelism of 8, data parallelism of 128."""
    row, column = range(rank // 8 * 8, rank // 8 * 8 + 8), range(rank % 8, 1024, 8)
    names = ["world", *("ranks " + ",".join(map(str, ranks)) for ranks in (row, column))]
    return Tally(rank=rank, calls={f"{name}|{op}": Calls(count=5, inside_s=rank + 1.0) for name in names for op in ("all_reduce", "barrier")})


def test_what_a_thousand_ranks_tell_fits_on_a_screen():
    tallies = [of_a_thousand(rank) for rank in range(1024)]
    calls, _, stragglers, _ = summed(tallies)
    assert {(one.group, one.collective): one.count for one in calls} == {
        (group, op): 5 * groups for group, groups in (("world", 1), ("groups of 8", 128), ("groups of 128", 8)) for op in ("all_reduce", "barrier")
    }
    assert len(stragglers) == 64 and [one.rank for one in stragglers if one.group == "world"] == list(range(8))
    snapshot = Snapshot(time_s=0.0, world_size=1024, heard_from=1024, restarts=0, calls=calls, stragglers=stragglers, interval_stragglers=stragglers)
    assert len(encoding.encode(snapshot)) < 100_000 and text(snapshot).count(chr(10)) < 600


def test_few_groups_have_their_names():
    assert set(merged([of_a_thousand(0), of_a_thousand(9)])) == {*of_a_thousand(0).calls, *of_a_thousand(9).calls}


def fails(rank, count, at_s, *, step=None):
    """A rank that has seen so many timeouts, the newest at that time."""
    key = "world|barrier|timeout"
    return Tally(rank=rank, failures={key: count}, said={key: f"as rank {rank} saw it"}, failed_at={key: Moment(time_s=at_s, step=step)})


@pytest.mark.parametrize(
    ("tallies", "count", "newest"),
    [
        # Of the failures that rank 1 alone has seen none is newer.
        ([fails(0, 1, 100.0, step=50), fails(1, 2, 10.0)], 2, ("as rank 0 saw it", 100.0, 50)),
        # All have seen the same ones, each at its own time.
        ([fails(0, 2, 100.0, step=50), fails(1, 2, 101.0, step=51)], 2, ("as rank 0 saw it", 100.0, 50)),
        # Rank 0 has seen none of them.
        ([Tally(rank=0), fails(1, 3, 10.0, step=1), fails(2, 1, 30.0, step=3), fails(3, 1, 20.0, step=2)], 3, ("as rank 2 saw it", 30.0, 3)),
        # Rank 0 was too late for the newest, which has a cause of its own there.
        ([fails(0, 1, 100.0, step=50), fails(1, 2, 900.0, step=90), fails(2, 1, 901.0, step=91)], 2, ("as rank 1 saw it", 900.0, 90)),
    ],
)
@pytest.mark.parametrize("way", [1, -1])
def test_a_failure_is_told_as_rank_0_saw_it_or_whoever_saw_a_newer_one(tallies, count, newest, way):
    (failure,) = summed(tallies[::way])[1]
    assert (failure.count, (failure.says, failure.time_s, failure.step)) == (count, newest)
