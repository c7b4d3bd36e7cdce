"""Mismatches in plain logs: what the program says, what two ranks' lines prove, and what neither does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unhang.diagnosis.logs import judge_logs
from unhang.knowledge import catalogue

CHECK = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank {one} is running collective: CollectiveFingerPrint(SequenceNumber={s1}, "
    "OpType={op1}, TensorShape=[{n1}]), but Rank {two} is running collective: CollectiveFingerPrint(SequenceNumber={s2}, OpType={op2}, "
    "TensorShape=[{n2}])).Collectives differ in the following aspects: \t Tensor Tensor shapes: {n1}vs {n2}"
)


def judge(view, cause="collective-mismatch"):
    return catalogue.get(cause).in_logs(view)


def test_two_operations_under_one_number_of_one_group_prove_it(logs):
    found = judge(logs.view(timeouts=(*(logs.timeout(r, 12) for r in range(7)), logs.timeout(7, 12, "_ALLGATHER_BASE", 512))))
    assert (found.standing, found.ranks) == ("established", (7,))
    assert "number 12" in found.says and "ranks 0 to 6 gave up ALLREDUCE #12" in found.says and "rank 7 gave up _ALLGATHER_BASE #12" in found.says
    assert len(found.evidence) == 2 and found.remedies[0].id == "same-order"


def test_two_sizes_of_two_ranks_name_both(logs):
    found = judge(logs.view(timeouts=(logs.timeout(0, 2109, "_ALLGATHER_BASE", 40960), logs.timeout(1, 2109, "_ALLGATHER_BASE", 262711296))))
    assert (found.standing, found.ranks) == ("established", (0, 1)) and "cannot be told" in found.says
    assert found.remedies[0].id == "same-size"


def test_without_a_group_the_numbers_may_be_of_two_groups(logs):
    for number, standing in ((4178, "likely"), (5, "possible")):
        found = judge(logs.view(timeouts=(logs.timeout(0, number, group=None), logs.timeout(1, number, "BROADCAST", group=None))))
        assert found.standing == standing


@pytest.mark.parametrize("groups", [("3", "4"), ("1", None)])
def test_numbers_of_different_groups_are_not_compared(logs, groups):
    assert judge(logs.view(timeouts=(logs.timeout(0, 5, group=groups[0]), logs.timeout(1, 5, "BROADCAST", group=groups[1])))) is None


def test_uneven_calls_may_differ_in_size(logs):
    assert judge(logs.view(timeouts=(logs.timeout(0, 5, "ALLTOALL_BASE", 64), logs.timeout(1, 5, "ALLTOALL_BASE", 96)))) is None


@pytest.mark.parametrize(("op", "ahead"), [("_REDUCE_SCATTER_BASE", 1), ("BROADCAST", 4), ("SEND", 9)])
def test_one_step_and_rooted_calls_prove_nothing(logs, op, ahead):
    assert judge(logs.view(timeouts=(logs.timeout(0, 122, op), logs.timeout(1, 122 + ahead)))) is None


def test_equal_timeouts_are_no_mismatch(logs):
    assert judge(logs.view(timeouts=tuple(logs.timeout(r, 12) for r in range(8)))) is None
    assert judge(logs.view(timeouts=(logs.timeout(3, 12),))) is None


def test_torchs_check_names_both_ranks_and_the_difference(logs):
    hits = logs.lines(CHECK.format(one=1, two=0, s1=31, s2=31, op1="ALLREDUCE", op2="ALLREDUCE", n1=96, n2=64), rank=1)
    found = judge(logs.view(hits=hits))
    assert (found.standing, found.ranks) == ("established", (0, 1))
    assert found.says == (
        "rank 0 issued ALLREDUCE of [64] as call #31, where rank 1 issued ALLREDUCE of [96] (torch's own check; which of them went astray is not in "
        "evidence)"
    )


def test_numbers_that_alone_differ_are_only_likely(logs):
    hits = logs.lines(CHECK.format(one=7, two=0, s1=18, s2=30, op1="BROADCAST", op2="BROADCAST", n1=8, n2=8), rank=7)
    found = judge(logs.view(hits=hits))
    assert found.standing == "likely" and "has made more calls before" in found.says


def test_left_out_parameters_are_named(logs):
    text = (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
        "Parameter indices which did not receive grad for rank 1: 12 13"
    )
    found = judge(logs.view(hits=logs.lines(text)), "unused-parameters")
    assert (found.standing, found.remedies[0].id) == ("established", "use-all-parameters") and "rank 1: 12 13" in found.says


def test_zero_parameters_may_be_a_broken_exchange(logs):
    text = "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 338 params, while rank 0 has inconsistent {} params."
    assert judge(logs.view(hits=logs.lines(text.format(0))), "out-of-sync").standing == "possible"
    assert judge(logs.view(hits=logs.lines(text.format(336))), "out-of-sync").standing == "established"


@pytest.mark.parametrize(("op", "found"), [("_ALLGATHER_BASE", True), ("ALLREDUCE", False), (None, False)])
def test_another_order_of_modules_counts_beside_a_gathering_that_timed_out(logs, op, found):
    hits = logs.lines("Invalidate trace cache @ step 1: expected module 15, but got module 313")
    timeouts = (logs.timeout(6, 202558, op),) if op else ()
    judged = judge(logs.view(hits=hits, timeouts=timeouts))
    assert (judged.standing if judged else None) == ("possible" if found else None)


def test_gloos_message_blames_no_line_of_a_survivor(tmp_path):
    """The only traceback is that of a rank that called what it should; the launcher tells whom Gloo ended, who need not have strayed."""
    lost = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/home/user/hang.py", line 22, in loss_sync\n'
        "[rank0]:     dist.all_reduce(x)\n"
        '[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce\n'
        "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:20200: Connection reset by peer.\n"
    )
    ended = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 64 vs 44. "
        "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n"
    )
    summary = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "=======================================================\nhang.py FAILED\n-------------------------------------------------------\n"
        "Failures:\n  <NO_OTHER_FAILURES>\n-------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2026-11-22_15:35:55\n  host      : localhost\n  rank      : 2 (local_rank: 2)\n  exitcode  : -6 (pid: 25882)\n"
        "  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) received by PID 25882\n"
    )
    (tmp_path / "train.log").write_text(ended + lost + summary)
    p = judge_logs([str(tmp_path / "train.log")]).verdict.primary
    assert (p.cause, p.where, p.ranks) == ("collective-mismatch", None, ())
    assert "rank 2 ended with SIGABRT, which need not be the one that strayed" in p.says and "of one of the pieces in which Gloo sends" in p.says


def gave_up(logs, rank, call, *, line, at):
    """A traceback that ends in a timeout of Gloo, inside a collective that the user's line `at` called."""
    text = "[/srv/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60000ms for recv operation to complete"
    back = logs.raised("RuntimeError", text, rank=rank, line=line, at=at, names=("main",))
    inner = replace(back.frames[0], file="/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", name=call)
    return replace(back, frames=(*back.frames, inner)), logs.lines(f"RuntimeError: {text}", rank=rank, start=back.end)["collective-timeout"]


@pytest.mark.parametrize(
    ("other", "world", "standing"), [("barrier", 2, "likely"), ("barrier", None, "possible"), ("all_reduce", 2, None), ("broadcast", 2, None)]
)
def test_ranks_that_gave_up_in_different_calls(logs, other, world, standing):
    back0, hits0 = gave_up(logs, 0, other, line=10, at=70)
    back1, hits1 = gave_up(logs, 1, "all_reduce", line=40, at=88)
    judged = judge(logs.view(tracebacks=(back0, back1), hits={"collective-timeout": (*hits0, *hits1)}, world_size=world))
    assert (judged.standing if judged else None) == standing
    if judged is not None:
        assert "rank 0 in barrier at /srv/job/train.py:70" in judged.says and "rank 1 in all_reduce" in judged.says
