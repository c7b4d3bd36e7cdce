"""Measured collectives as a table, and speeds against their baseline."""

import io

import pytest
from tests.bench.test_baseline import made

from unhang.bench import baseline
from unhang.bench.collective_bench import Group, Limit, Result, Row
from unhang.report.collective_bench import Report, check_table
from unhang.report.console import Console


def printed(show):
    show(console := Console(io.StringIO(), width=160))
    return [line.split() for line in console.file.getvalue().splitlines()]


def test_a_bar_is_the_share_of_the_link_and_absent_without_one():
    rows = tuple(Row(op=op, size_bytes=1024, calls=5, busbw_gbps=speed) for op, speed in (("memory", 40.0), ("all_reduce", 5.0)))
    group = Group(backend="gloo", hosts=("node7",), torch="2.13", nccl=None, device="CPU")
    result = Result(stopped="complete", rows=rows, group=group)
    _, memory, reduced, says, _ = printed(Report(result=result, limit=Limit(what="memory", gbps=10.0), lang="en").print)
    assert reduced[-3:] == ["50.0", "%", "█" * 10] and memory[-1] == "40" and says[:5] == ["1", "rank", "on", "1", "host,"]
    _, *shown, _ = printed(Report(result=result, limit=None, lang="en").print)
    assert not any("█" in line[-1] for line in shown)


def test_the_time_that_a_bandwidth_rests_on_is_shown():
    mean = {"calls": 5, "p50_s": 0.001, "p95_s": 0.002, "p99_s": 0.003}
    rows = (
        Row(op="all_reduce", size_bytes=1 << 20, algbw_gbps=1.05, mean_s=0.004, **mean),
        *(
            Row(op="pairs", size_bytes=1 << 20, busbw_gbps=1.0, mean_s=mean_s, pair=pair, **mean)
            for pair, mean_s in (((0, 1), 0.005), ((1, 0), 0.006))
        ),
    )
    heads, reduced, *_, pairs = printed(Report(result=Result(stopped="complete", rows=rows, group=None), limit=None, lang="en").print)
    assert heads[3:5] == ["mean", "p50"] and reduced[4:8] == ["4", "ms", "1", "ms"]
    assert " ".join(pairs) == "pairs: 1 MiB in 5 ms to 6 ms (mean of each pair)"


def test_the_columns_of_a_check_agree():
    pytest.importorskip("scipy")
    # The medians say -12 %.
    before, now = (1.33, 1.0, 1.0, 1.33, 1.33), [1.1, 1.1, 1.25, 1.4]
    (found,) = baseline.judge(made({"a": before}), {"a": now}, margin=0.1)
    _, cells = printed(lambda console: console.print(check_table(made({"a": before}), {"a": now}, [found], 0.1)))
    assert cells[:7] == ["a", "1.15", "s", "1.21", "s", "+4.6", "%"]
