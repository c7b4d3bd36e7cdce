"""Calls as torch's own check prints them, and who issued what by the lines of several ranks."""

from __future__ import annotations

import pytest

from unhang.knowledge import fingerprints
from unhang.logs import Hit, Signature

WHOLE = (
    "CollectiveFingerPrint(SequenceNumber=3, OpType={op}, TensorShape=[{shape}], TensorDtypes={dtype}, TensorDeviceTypes=TensorOptions(dtype=float "
    "(default), device={device}, layout=Strided (default)))"
)


def print_(op="ALLREDUCE", shape="64", dtype="Float", device="cuda"):
    return WHOLE.format(op=op, shape=shape, dtype=dtype, device=device)


def hit(one, mine, other, theirs, *, rank=None):
    groups = {"one": str(one), "mine": mine, "other": str(other), "theirs": theirs}
    return Hit(signature=Signature(needle="x"), source="train.log", line=one + 1, text="x", groups=groups, rank=rank)


def told(*hits):
    return [(s.ranks, s.fingerprint.says) for s in fingerprints.sides(hits)]


@pytest.mark.parametrize(
    ("text", "says", "seq"),
    [
        (print_(), "ALLREDUCE of [64] Float", 3),
        (print_(shape="2, 3", dtype="Float, Long"), "ALLREDUCE of [2, 3] Float, Long", 3),
        ("CollectiveFingerPrint(OpType=BROADCAST, TensorShape=[128], TensorDtypes=Float", "BROADCAST of [128] Float", None),
        ("CollectiveFingerPrint(SequenceNumber=5, OpType=ALLGATHER, TensorShape=[4]", "ALLGATHER of [4]", 5),
        ("CollectiveFingerPrint(OpType=_ALLGATHER_BASE", "_ALLGATHER_BASE", None),
    ],
)
def test_a_fingerprint_whole_or_cut(text, says, seq):
    found = fingerprints.read(text)
    assert (found.says, found.seq) == (says, seq)


def test_what_is_no_fingerprint():
    assert fingerprints.read("CollectiveFingerPrint(SequenceNumber=5") is None


def test_three_ranks_and_the_odd_one():
    odd, usual = print_("BROADCAST"), print_()
    found = fingerprints.sides([hit(1, odd, 0, usual, rank=1), hit(0, usual, 1, odd, rank=0), hit(2, usual, 1, odd, rank=2)])
    assert [s.ranks for s in found] == [(0, 2), (1,)]
    assert [h.line for h in found[1].hits] == [2]
    assert [s.ranks for s in fingerprints.odd(found, 3)] == [(1,)]
    # Of the rest of a larger job nothing is known.
    assert fingerprints.odd(found, 8) == ()


@pytest.mark.parametrize("change", [{"shape": "65"}, {"dtype": "Half"}, {"device": "cpu"}])
def test_what_has_to_be_equal(change):
    assert len(told(hit(0, print_(), 1, print_(**change)))) == 2


def test_counts_alone_part_nobody():
    assert told(hit(0, print_(), 1, print_().replace("=3", "=4"))) == []
    assert told(hit(0, print_(), 1, print_("BROADCAST").replace("=3", "=4"))) == []


def test_a_fingerprint_that_is_cut_off_is_not_another_call():
    cut = "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE"
    other = cut.replace("ALLREDUCE", "BROADCAST")
    assert told(hit(0, print_(), 1, cut)) == []
    assert told(hit(0, print_(), 1, other)) == [((0,), "ALLREDUCE of [64] Float"), ((1,), "BROADCAST")]
    assert told(hit(0, print_(), 1, cut.replace("ALLREDUCE", "BROADCAST")), hit(1, print_("BROADCAST"), 0, cut))[1] == (
        (1,),
        "BROADCAST of [64] Float",
    )


def test_numbers_of_a_group_become_ranks_where_both_are_printed():
    """Ranks 4 and 6 of the job are 0 and 1 of their group."""
    odd, usual = print_("BROADCAST"), print_()
    assert [r for r, _ in told(hit(0, usual, 1, odd, rank=4), hit(1, odd, 0, usual, rank=6))] == [(4,), (6,)]
    # Of the second one nothing tells who it is.
    assert told(hit(0, usual, 1, odd, rank=4)) == []


def test_lines_of_two_groups_are_not_mixed():
    odd, usual = print_("BROADCAST"), print_()
    assert told(hit(0, usual, 1, odd, rank=0), hit(0, usual, 1, odd, rank=4)) == []
    assert told(hit(0, usual, 1, odd, rank=0), hit(0, odd, 1, usual, rank=0)) == []
    assert told(hit(0, usual, 1, odd, rank=0), hit(1, usual, 0, odd, rank=1)) == []
