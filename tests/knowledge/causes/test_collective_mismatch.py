"""Mismatches in plain logs: what the program says, what two ranks' lines prove, and what neither does."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue

CHECK = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank {one} is running collective: CollectiveFingerPrint(SequenceNumber={s1}, "
    "OpType={op1}, TensorShape=[{n1}]), but Rank {two} is running collective: CollectiveFingerPrint(SequenceNumber={s2}, OpType={op2}, "
    "TensorShape=[{n2}])).Collectives differ in the following aspects: \t Tensor Tensor shapes: {n1}vs {n2}"
)


def judge(view):
    return catalogue.get("collective-mismatch").in_logs(view)


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
    found = judge(logs.view(timeouts=(logs.timeout(0, 5, group=None), logs.timeout(1, 5, "BROADCAST", group=None))))
    assert found.standing == "likely"


@pytest.mark.parametrize("groups", [("3", "4"), ("1", None)])
def test_numbers_of_different_groups_are_not_compared(logs, groups):
    assert judge(logs.view(timeouts=(logs.timeout(0, 5, group=groups[0]), logs.timeout(1, 5, "BROADCAST", group=groups[1])))) is None


def test_uneven_calls_may_differ_in_size(logs):
    assert judge(logs.view(timeouts=(logs.timeout(0, 5, "ALLTOALL_BASE", 64), logs.timeout(1, 5, "ALLTOALL_BASE", 96)))) is None


def test_a_rank_that_went_ahead_is_likely(logs):
    found = judge(logs.view(timeouts=(logs.timeout(0, 122, "_REDUCE_SCATTER_BASE", 106), logs.timeout(1, 126, "_ALLGATHER_BASE", 378))))
    assert (found.standing, found.ranks) == ("likely", (0, 1)) and "4 more collectives" in found.says


@pytest.mark.parametrize(("op", "ahead"), [("_REDUCE_SCATTER_BASE", 1), ("BROADCAST", 4), ("SEND", 9)])
def test_one_step_and_rooted_calls_prove_nothing(logs, op, ahead):
    assert judge(logs.view(timeouts=(logs.timeout(0, 122, op), logs.timeout(1, 122 + ahead)))) is None


def test_equal_timeouts_are_no_mismatch(logs):
    assert judge(logs.view(timeouts=tuple(logs.timeout(r, 12) for r in range(8)))) is None
    assert judge(logs.view(timeouts=(logs.timeout(3, 12),))) is None


def test_torchs_check_names_both_ranks_and_the_difference(logs):
    hits = logs.lines(CHECK.format(one=1, two=0, s1=31, s2=31, op1="ALLREDUCE", op2="ALLREDUCE", n1=96, n2=64), rank=1)
    found = judge(logs.view(hits=hits))
    assert (found.standing, found.ranks) == ("established", (0, 1)) and "shapes: 96vs 64" in found.says


def test_numbers_that_alone_differ_are_only_likely(logs):
    hits = logs.lines(CHECK.format(one=7, two=0, s1=18, s2=30, op1="BROADCAST", op2="BROADCAST", n1=8, n2=8), rank=7)
    found = judge(logs.view(hits=hits))
    assert found.standing == "likely" and "has made more calls before" in found.says


def test_left_out_parameters_are_named(logs):
    text = (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
        "Parameter indices which did not receive grad for rank 1: 12 13"
    )
    found = judge(logs.view(hits=logs.lines(text)))
    assert (found.standing, found.remedies[0].id) == ("established", "use-all-parameters") and "rank 1: 12 13" in found.says


def test_zero_parameters_may_be_a_broken_exchange(logs):
    text = "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 338 params, while rank 0 has inconsistent {} params."
    assert judge(logs.view(hits=logs.lines(text.format(0)))).standing == "possible"
    assert judge(logs.view(hits=logs.lines(text.format(336)))).standing == "established"
