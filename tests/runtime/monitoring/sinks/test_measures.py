"""Names and numbers that charts are made of."""

import math
import re

import pytest

from unhang.runtime.monitoring.sinks.measures import axis, flat, group_word


def test_everything_of_a_snapshot_has_a_name(busy):
    found = flat(busy())
    assert set(found) == {
        *(f"unhang/calls/all_reduce/world/{name}" for name in ("count", "latency_p50_s", "latency_p95_s", "latency_p99_s", "busbw_p50_gbps")),
        *(f"unhang/calls/barrier/ranks_0_2/{name}" for name in ("count", "latency_p50_s", "latency_p95_s", "latency_p99_s")),
        *(f"unhang/calls/broadcast/ranks_1_3/{name}" for name in ("count", "latency_p50_s", "latency_p95_s", "latency_p99_s", "busbw_p50_gbps")),
        "unhang/failures/all_reduce/world/broken_connection",
        *(f"unhang/{since}/world/{name}" for since in ("stragglers", "interval_stragglers") for name in ("rank", "share", "waited_s")),
        "unhang/deadlines_s/all_reduce",
        "unhang/store_lost",
        *(
            f"unhang/{name}"
            for name in (
                "failed_calls",
                "silent",
                "evaluations",
                "evaluation_failures",
                "restarts",
                "world_size",
                "heard_from",
                "dropped",
                "store_lost",
            )
        ),
    }
    # The worst of them.
    assert (found["unhang/stragglers/world/rank"], found["unhang/stragglers/world/share"]) == (3.0, 0.8)
    assert (found["unhang/interval_stragglers/world/rank"], found["unhang/interval_stragglers/world/waited_s"]) == (2.0, 1.5)
    assert (found["unhang/failed_calls"], found["unhang/silent"], found["unhang/restarts"]) == (2.0, 1.0, 1.0)
    # How many since the start, how long of late.
    assert (found["unhang/calls/all_reduce/world/count"], found["unhang/calls/all_reduce/world/latency_p95_s"]) == (40, 0.08)
    assert math.isnan(found["unhang/calls/barrier/ranks_0_2/latency_p99_s"]) and math.isinf(found["unhang/calls/broadcast/ranks_1_3/busbw_p50_gbps"])


def test_what_is_known_of_torch_s_own_collectives_is_told_where_it_was_asked_for(snapshot):
    found = flat(snapshot(torch_collectives="not read: why", unread={"world": 5, "ranks 0,1": 2}, store_lost="gone"))
    assert (found["unhang/unread"], found["unhang/torch_read"], found["unhang/store_lost"]) == (7, 0, 1)
    assert flat(snapshot(torch_collectives="counted"))["unhang/torch_read"] == 1


def test_every_back_end_takes_the_names(busy):
    names = sorted(flat(busy()))
    assert all(re.fullmatch(r"[A-Za-z0-9_./-]{1,250}", name) for name in names)
    # In MLflow's files one would be a directory.
    assert not [(one, other) for one in names for other in names if other.startswith(f"{one}/")]


@pytest.mark.parametrize(
    ("group", "word"),
    [
        ("world", "world"),
        ("ranks 5", "ranks_5"),
        ("ranks 0,1", "ranks_0_1"),
        ("ranks 0,1,2,3", "ranks_0-3"),
        ("ranks 0,8,16", "ranks_0-16by8"),
        ("ranks 0,1,3", "ranks_0_1_3"),
    ],
)
def test_groups_have_short_names(group, word):
    assert group_word(group) == word


def test_large_groups_without_order_have_different_names():
    many = [rank * rank for rank in range(600)]
    one, other = (group_word("ranks " + ",".join(map(str, ranks))) for ranks in (many, [*many[:-1], 10**6]))
    assert one != other and len(one) < 60 and one.startswith("ranks_0_1_and_598_more_")


def test_the_axis_is_the_training_s_step_or_else_seconds(snapshot):
    assert axis(snapshot(20.4), snapshot().time_s) == 20
    assert axis(snapshot(20.4, step=7), snapshot().time_s) == 7
    assert axis(snapshot(-3), snapshot().time_s) == 0
