"""What a person is told of, and what not."""

from dataclasses import replace

import pytest
from tests.chinese import zh

from unhang.runtime.monitoring.counters import OfFailures, Silent, Straggler
from unhang.runtime.monitoring.sinks.alerts import Watch


@pytest.fixture
def watch():
    return Watch(straggler_share=0.5, straggler_snapshots=3)


def kinds(found):
    return [one.kind for one in found]


def failed(count, cause="timeout", collective="all_reduce"):
    return [OfFailures(group="world", collective=collective, cause=cause, count=count, says="rank 3 did not come")]


def test_a_failure_is_told_once_and_again_when_there_are_more(watch, snapshot):
    assert watch.since(snapshot()) == []
    (first,) = watch.since(snapshot(10, failures=failed(1)))
    assert first.says == "all_reduce of world has failed (timeout): rank 3 did not come" and "rank 3 did not come" in zh(first.says)
    assert watch.since(snapshot(20, failures=failed(1))) == []
    (second,) = watch.since(snapshot(30, failures=failed(4)))
    assert second.subject == first.subject and "4 times by now" in second.says and second.fields["count"] == 4
    (other,) = watch.since(snapshot(40, failures=[*failed(4), *failed(1, "mismatch")]))
    assert other.subject != first.subject


def late(count):
    return [OfFailures(group="world", collective="all_reduce", cause="late", count=count, says="rank 3 came too late")]


@pytest.mark.parametrize(
    "snapshots",
    [
        # Heard of together, and the late rank long after the others.
        [[*late(1), *failed(1)]],
        [failed(1), [*failed(1), *late(1)]],
    ],
)
def test_one_late_rank_is_one_message(watch, snapshot, snapshots):
    found = [one for at, failures in enumerate(snapshots) for one in watch.since(snapshot(10 * at, failures=failures))]
    assert [one.fields["cause"] for one in found] == ["timeout"]
    # Another one later is another message.
    (again,) = watch.since(snapshot(100, failures=[*failed(3), *late(3)]))
    assert again.fields["cause"] == "timeout"


def test_a_late_rank_of_which_nobody_else_tells_is_told_at_once(watch, snapshot):
    (found,) = watch.since(snapshot(0, failures=late(1)))
    assert found.fields["cause"] == "late" and "rank 3 came too late" in found.says
    assert watch.since(snapshot(10, failures=late(1))) == []


def test_chinese_says_what_is_an_error_s_own_text(watch, snapshot):
    (found,) = watch.since(snapshot(failures=failed(2, "mismatch")))
    assert zh(found.says) == "全体 rank 的 all_reduce 失败（调用不匹配，至今 2 次）；错误原文：rank 3 did not come"


def test_what_the_first_snapshot_holds_has_happened_since_the_start(watch, busy):
    found = watch.since(busy())
    assert kinds(found) == ["restart", "failure", "evaluation_failure", "silent"]
    assert [one.says for one in found] == [
        "the training has been started again (restart 1)",
        "all_reduce of world has failed (broken connection, 2 times by now): rank 3 is gone",
        "an evaluation has failed, the training goes on (1 of 5): rank 1: KeyError: a label",
        "rank 2 of 4 has not been heard from for 31 s: ended, stopped or cut off",
    ]
    assert watch.since(busy(10)) == []


def test_ranks_that_fall_silent_and_come_back(watch, snapshot):
    def silent(*ranks):
        return [Silent(rank=rank, for_s=40.0) for rank in ranks]

    (one,) = watch.since(snapshot(0, silent=silent(2)))
    (more,) = watch.since(snapshot(10, world_size=64, silent=silent(*range(2, 14))))
    assert one.fields["ranks"] == [2] and more.fields["ranks"] == list(range(3, 14))
    assert more.says.startswith("ranks 3, 4, 5, 6, 7, 8, 9, 10 and 3 more of 64 have not been heard from")
    (back,) = watch.since(snapshot(20, silent=silent(*range(3, 14))))
    assert (back.kind, back.fields["ranks"]) == ("heard_again", [2])


def waited(*seconds):
    total = sum(seconds)
    return [Straggler(group="world", rank=rank, waited_s=s, share=s / total) for rank, s in enumerate(seconds) if s]


def told(watch, snapshot, *stragglers):
    """Totals of each snapshot, of which the difference to the one before is told, as a monitor does."""
    found, before = [], None
    for i, some in enumerate(stragglers):
        old = {one.rank: one.waited_s for one in before or ()}
        lately = waited(*(max(0.0, one.waited_s - old.get(one.rank, 0.0)) for one in some)) if before is not None else []
        lately = [replace(one, rank=some[one.rank].rank) for one in lately]
        found += watch.since(snapshot(10 * i, stragglers=some, interval_s=None if before is None else 10.0, interval_stragglers=lately))
        before = some
    return found


def test_a_straggler_is_one_for_which_others_wait_again_and_again(watch, snapshot):
    (one,) = told(watch, snapshot, waited(0, 1, 1), waited(0, 4, 1.5), waited(0, 7, 2), waited(0, 10, 2.5))
    assert (one.kind, one.subject, one.fields["waited_s"], one.fields["for_s"]) == ("straggler", "world|1", 9.0, 30.0)
    # Of all the waiting since the start it is still 80 %.
    assert told(watch, snapshot, *[waited(0, 10, 2.5)] * 5) == []


def test_a_straggler_goes_on_being_told_of(watch, snapshot):
    found = told(watch, snapshot, *[waited(0, 3 * i + 1) for i in range(8)])
    assert [(one.kind, one.fields["waited_s"]) for one in found] == [("straggler", 9.0)] * 2


@pytest.mark.parametrize(
    "stragglers",
    [
        pytest.param([waited(0, 9, 1), waited(0, 18, 2), waited(0, 18, 12), waited(0, 27, 13)], id="not in a row"),
        pytest.param([waited(0, 1 + 0.1 * i) for i in range(6)], id="costs 1 % of the time"),
        pytest.param([waited(0, 1), waited(0, 1), waited(0, 1), waited(0, 9)], id="once, after nothing"),
        pytest.param([waited(0, 3 * i + 1, 3 * i + 1, 3 * i + 1) for i in range(6)], id="all alike"),
    ],
)
def test_what_is_no_straggler(watch, snapshot, stragglers):
    assert told(watch, snapshot, *stragglers) == []


def test_a_lost_store_is_told_once(watch, snapshot):
    lost = {"store_lost": "it no longer answers", "silent": [Silent(rank=rank, for_s=0.0) for rank in (1, 2, 3)]}
    assert watch.since(snapshot()) == []
    one, other = watch.since(snapshot(10, **lost))
    assert (one.kind, other.kind, other.fields["ranks"]) == ("store_lost", "silent", [1, 2, 3])
    assert one.says == "the monitor has lost the store, and hears nothing of the other 3 ranks any more: it no longer answers"
    assert watch.since(snapshot(20, **lost)) == []
