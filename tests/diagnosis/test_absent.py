"""Who never came, from the watchdogs' words."""

from __future__ import annotations

from unhang.diagnosis.absent import absent
from unhang.knowledge.cause import LogView
from unhang.records.logs.said import At, Status, Timeout

GROUP = "0(default_pg)"


def at(rank):
    return At(source=f"rank{rank}.log", line=1, text=f"of rank {rank}", rank=rank)


def timeout(rank, *, seq=120, op="ALLREDUCE", group=GROUP):
    return Timeout(at=at(rank), group=group, seq=seq, op=op, numel_in=1, numel_out=1, timeout_ms=600_000, ran_ms=600_010)


def status(rank, *, enqueued, completed, failed=120, group=GROUP):
    return Status(at=at(rank), group=group, failed=failed, enqueued=enqueued, completed=completed)


def test_a_rank_that_never_entered_by_its_own_counters():
    statuses = (status(0, enqueued=121, completed=119), status(2, enqueued=119, completed=119))
    found = absent(LogView(timeouts=(timeout(0), timeout(1)), statuses=statuses))
    assert (found.waiting, found.behind, found.missing) == ((0, 1), (2,), (2,))
    assert found.says == "ranks 0 and 1 waited 10 min in ALLREDUCE #120; rank 2 never entered it by its own counters"
    assert [e.source for e in found.evidence] == ["rank0.log", "rank1.log", "rank2.log"]


def test_a_rank_that_waits_in_something_older_is_not_behind():
    # Enqueued beyond completed: it waits itself, in an earlier one.
    found = absent(LogView(timeouts=(timeout(0),), statuses=(status(2, enqueued=118, completed=117),)))
    assert found.behind == () and found.says.endswith("who was missing is not in the logs")


def test_silence_is_named_as_far_as_the_size_of_the_job_is_known():
    view = LogView(timeouts=(timeout(0), timeout(1)), printed=frozenset({0, 1, 3}), world_size=4)
    found = absent(view)
    assert (found.silent, found.unheard, found.missing) == ((2,), (3,), (2,))
    assert "rank 2 printed nothing at all" in found.says
    assert absent(LogView(timeouts=(timeout(0),), printed=frozenset({0}))).missing == ()
    # Rank 3 is there: so is rank 1, or was.
    assert absent(LogView(timeouts=(timeout(0), timeout(2), timeout(3)), printed=frozenset({0, 2, 3}))).silent == (1,)


def test_members_of_other_groups_are_not_guessed():
    assert absent(LogView(timeouts=(timeout(0, group="7(mesh_tp)"),), world_size=8, printed=frozenset({0}))).missing == ()


def test_a_timeout_without_its_group_belongs_to_the_others():
    found = absent(LogView(timeouts=(timeout(0), timeout(1, group=None))))
    assert found.waiting == (0, 1)


def test_status_lines_alone():
    found = absent(LogView(statuses=(status(0, enqueued=120, completed=119), status(3, enqueued=119, completed=119))))
    assert (found.waiting, found.behind) == ((0,), (3,))
    assert absent(LogView(statuses=(status(0, enqueued=120, completed=119),))) is None
    assert absent(LogView()) is None


def test_everybody_came_and_the_data_did_not():
    found = absent(LogView(timeouts=(timeout(0), timeout(1)), printed=frozenset({0, 1}), world_size=2))
    assert found.everybody and found.missing == () and "nobody was missing" in found.says
    assert not absent(LogView(timeouts=(timeout(0), timeout(1)))).everybody
