"""Who never came, from the watchdogs' words."""

from __future__ import annotations

from unhang.diagnosis.logs import judge_logs
from unhang.diagnosis.missing_ranks import absent
from unhang.knowledge.cause import LogView
from unhang.logs.log_facts import At, Call, NcclSaid, Status, Timeout

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


def test_a_rank_that_says_it_twice_is_quoted_once():
    found = absent(LogView(timeouts=(timeout(0), timeout(0), timeout(1))))
    assert [e.source for e in found.evidence] == ["rank0.log", "rank1.log"]


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


def test_who_gave_up_a_later_one_had_come():
    printed = frozenset({0, 1, 2})
    assert absent(LogView(timeouts=(timeout(0), timeout(1, seq=121), timeout(2)), printed=printed, world_size=3)).missing == ()
    assert absent(LogView(timeouts=(timeout(0), timeout(1, seq=121, group="7(mesh_tp)"), timeout(2)), printed=printed, world_size=3)).missing == (1,)


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


def call(rank, count, *, comm_id="0x77", nranks=4):
    return Call(at=at(rank), op="AllReduce", count=count, comm_id=comm_id, nranks=nranks)


def lagging(*calls, timeouts=(0, 1), **view):
    return absent(LogView(timeouts=tuple(map(timeout, timeouts)), nccl=NcclSaid(calls=calls), world_size=4, **view)).lagging


def test_a_rank_that_is_behind_in_nccls_log_of_calls():
    calls = (call(0, 31), call(1, 33), call(2, 30), call(3, 31))
    assert lagging(*calls) == (2,)
    found = absent(LogView(timeouts=(timeout(0), timeout(1)), nccl=NcclSaid(calls=calls), printed=frozenset(range(4)), world_size=4))
    assert (found.missing, found.unheard) == ((2,), (3,))
    assert found.says.endswith("rank 2 had issued fewer collectives by its own log of NCCL's calls")
    assert found.evidence[-1].source == "rank2.log"
    # Counters of the group itself say more.
    assert lagging(*calls, statuses=(status(3, enqueued=119, completed=119),)) == ()


def test_logs_in_which_all_calls_stand(tmp_path):
    gave_up = (
        "[rank{r}]:[E ProcessGroupNCCL.cpp:523] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=301, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
    )
    for rank, count in enumerate((300, 301, 299, 300)):
        said = f"node7:47{rank}:47{rank} [{rank}] NCCL INFO"
        lines = [f"{said} ncclCommInitRank comm 0x5{rank} rank {rank} nranks 4 cudaDev {rank} commId 0x77 - Init START"]
        lines += [
            f"{said} AllReduce: opCount {n:x} sendbuff 0x7f recvbuff 0x7f count 1 datatype 7 op 0 root 0 comm 0x5{rank} [nranks=4] stream 0x9"
            for n in range(count + 1)
        ]
        if rank < 2:
            lines.append(gave_up.format(r=rank))
        (tmp_path / f"{rank}.log").write_text("\n".join(lines) + "\n")
    verdict = judge_logs([str(tmp_path)]).verdict
    assert (verdict.primary.standing, verdict.primary.ranks) == ("not-established", (2,))


def test_communicators_without_a_name_are_those_of_the_whole_job():
    assert lagging(*(call(r, c, comm_id=None) for r, c in enumerate((31, 31, 31, 7)))) == (3,)
    assert lagging(*(call(r, c, comm_id=None, nranks=2) for r, c in enumerate((31, 31, 31, 7)))) == ()
    # Two of them: which is which is not told.
    assert lagging(*(call(r, c, comm_id=None) for r, c in enumerate((31, 31, 31, 7))), call(3, 31, comm_id=None)) == ()


def test_who_is_not_behind_in_nccls_log_of_calls():
    # All have come as far; a rank that gave up waiting itself; another communicator, without those who waited.
    assert lagging(*(call(r, 31) for r in range(4))) == ()
    assert lagging(call(0, 31), call(1, 30), timeouts=(0, 1)) == ()
    assert lagging(call(0, 31), call(2, 30)) == ()
    # Two communicators tell differently.
    named = [call(r, c) for r, c in enumerate((9, 9, 8, 9))] + [call(r, c, comm_id="0x88") for r, c in enumerate((9, 9, 9, 8))]
    assert lagging(*named) == ()


def test_a_rank_without_a_call_may_be_further_behind_than_all():
    assert lagging(call(0, 31), call(1, 31), call(3, 30)) == ()
