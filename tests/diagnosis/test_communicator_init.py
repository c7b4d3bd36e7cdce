"""Communicators that nobody completed."""

from __future__ import annotations

from unhang.diagnosis.logs import judge_logs
from unhang.diagnosis.unknown_in_logs import unfinished
from unhang.knowledge.cause import LogView
from unhang.logs.log_facts import At, Init, NcclSaid


def init(rank, *, completed=False, comm_id="0x77", nranks=4):
    return Init(at=At(source="log", line=rank, text=f"rank {rank}"), comm="0x1", comm_id=comm_id, rank=rank, nranks=nranks, completed=completed)


def view(*inits):
    return LogView(nccl=NcclSaid(inits=inits))


def test_the_rank_that_never_began():
    found = unfinished(view(init(0), init(1), init(3)))
    assert (found.begun, found.missing) == ((0, 1, 3), (2,))
    assert found.says == "ranks 0, 1 and 3 began a communicator of 4 and none completed it; rank 2 never began"


def test_ranks_whose_logs_are_not_here_are_not_accused():
    found = unfinished(view(init(0, nranks=8), init(1, nranks=8)))
    assert found.absent == () and found.says.endswith("; of the others nothing is in the logs")


def test_all_came_and_could_not_connect():
    assert "all of them came" in unfinished(view(*map(init, range(4)))).says


def test_one_that_somebody_completed_is_over():
    assert unfinished(view(init(0), init(1, completed=True))) is None
    assert unfinished(view()) is None
    # A second one that nobody completed.
    assert unfinished(view(init(0, completed=True), init(0, comm_id="0x88"))).begun == (0,)


def test_a_log_that_ends_there(tmp_path):
    line = "node7:47{r}:48 [{r}] NCCL INFO comm 0x5{r} rank {r} nranks 3 cudaDev {r} nvmlDev {r} busId 1 commId 0x77 - Init START\n"
    path = tmp_path / "log"
    path.write_text("".join(line.format(r=r) for r in (0, 2)))
    v = judge_logs([str(path)]).verdict
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("unknown", "not-established", (1,)) and "rank 1 never began" in v.primary.says
    path.write_text("".join(line.format(r=r) for r in (0, 2)) + line.format(r=0).replace("START", "COMPLETE"))
    assert judge_logs([str(path)]).verdict.primary is None
    path.write_text("".join(line.format(r=r) for r in (0, 2)) + "step\n" * 1000)
    assert judge_logs([str(path)]).verdict.primary is None
