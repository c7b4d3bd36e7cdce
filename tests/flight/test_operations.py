"""What has to be equal on all ranks, and how names are spelt."""

from __future__ import annotations

import pytest

from unhang.flight.operations import key, needs_all, peers, spelling, split


def of(op, sent, got, dtype="Float"):
    return key(op, sent, got, [dtype] * len(sent), [dtype] * len(got))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("nccl:all_reduce", ("nccl", "all_reduce")),
        ("nccl:send 0->1", ("nccl", "send 0->1")),
        ("c10d::allreduce_", ("", "allreduce_")),
        ("nccl2:_allgather_base", ("nccl2", "_allgather_base")),
        ("all_reduce", ("", "all_reduce")),
    ],
)
def test_a_recorded_name(name, parts):
    assert split(name) == parts


def test_one_name_for_one_operation():
    assert {spelling(n) for n in ("all_reduce", "allreduce_", "allreduce", "all_reduce_")} == {"all_reduce"}
    into_tensor = ("_all_gather_base", "_allgather_base", "_allgather_base_", "all_gather_into_tensor", "all_gather_single")
    assert {spelling(n) for n in into_tensor} == {"all_gather_into_tensor"}
    assert spelling("something_new") == "something_new"


def test_shapes_may_differ_and_elements_may_not():
    assert of("all_reduce", [[2, 4]], [[2, 4]]) == of("allreduce_", [[8]], [[8]])
    assert of("all_reduce", [[8]], [[8]]) != of("all_reduce", [[9]], [[9]])
    assert of("all_reduce", [[8]], [[8]]) != of("all_reduce", [[8]], [[8]], "Half")
    assert of("all_reduce", [[8]], [[8]]) != of("broadcast", [[8]], [[8]])


def test_versions_that_list_outputs_and_versions_that_do_not():
    assert of("all_reduce", [[8]], [[8]]) == key("all_reduce", [[8]], [], ["Float"], [])


def test_gathered_sizes():
    assert of("all_gather", [[4]], [[4], [4]]) == of("all_gather", [[4]], [[8]])
    assert of("_allgather_base", [[4]], [[16]]) != of("_allgather_base", [[4]], [[8]])
    assert of("_reduce_scatter_base", [[16]], [[4]]) != of("_reduce_scatter_base", [[8]], [[4]])


def test_what_may_be_uneven():
    assert of("gather", [[4]], []) == of("gather", [[5]], [[4], [5]]) != of("gather", [[4]], [], "Half")
    assert of("scatter", [], [[4]]) == of("scatter", [[4], [5]], [[4]])
    for op in ("all_to_all", "all_gather_v", "reduce_scatter_v", "coalesced", "barrier"):
        assert of(op, [[1]], [[2]]) == of(op, [[3]], [[4]])
    assert of("all_to_all", [[1]], [[2]]) != of("all_to_all", [[1]], [[2]], "Half")


@pytest.mark.parametrize(
    ("op", "ends"),
    [("send 0->1", (0, 1)), ("recv 1<-0", (0, 1)), ("recv 0<-?", (None, 0)), ("recvAnySource 0<-?", (None, 0)), ("all_reduce", None), ("send", None)],
)
def test_the_ends_of_a_message(op, ends):
    assert peers(op) == ends


def test_who_cannot_finish_alone():
    assert needs_all("_allgather_base") and needs_all("allreduce_") and not needs_all("broadcast") and not needs_all("gather")
