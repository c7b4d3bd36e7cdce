"""Stacks of many ranks as one tree: what they share stands once, then where they part."""

from __future__ import annotations

from unhang.frames import Frame
from unhang.records.stack_tree import Trunk, ends, group


def at(*places):
    return tuple(Frame(file="/job/train.py", line=line, name=name) for line, name in places)


MAIN, STEP, LOAD, READ = (40, "main"), (20, "step"), (61, "load"), (70, "read")


def shape(trunk: Trunk):
    return (trunk.ranks, [f.name for f in trunk.frames], [shape(b) for b in trunk.branches])


def test_what_all_share_stands_once():
    trunk = group({2: at(MAIN, LOAD), 0: at(MAIN, STEP), 1: at(MAIN, STEP)})
    assert shape(trunk) == ((0, 1, 2), ["main"], [((2,), ["load"], []), ((0, 1), ["step"], [])])


def test_branches_part_again():
    trunk = group({0: at(MAIN, LOAD, READ), 1: at(MAIN, LOAD, (71, "read")), 2: at(MAIN, STEP), 3: at(MAIN, STEP), 4: at(MAIN, STEP)})
    assert shape(trunk) == ((0, 1, 2, 3, 4), ["main"], [((0, 1), ["load"], [((0,), ["read"], []), ((1,), ["read"], [])]), ((2, 3, 4), ["step"], [])])
    assert [(ranks, [f.name for f in frames]) for ranks, frames in ends(trunk)] == [
        ((0,), ["main", "load", "read"]),
        ((1,), ["main", "load", "read"]),
        ((2, 3, 4), ["main", "step"]),
    ]


def test_a_stack_that_ends_where_the_others_go_on_is_a_branch_of_its_own():
    trunk = group({0: at(MAIN), 1: at(MAIN, STEP)})
    assert shape(trunk) == ((0, 1), ["main"], [((0,), [], []), ((1,), ["step"], [])])


def test_equal_stacks_and_different_ones_and_none():
    assert shape(group({0: at(MAIN, STEP), 1: at(MAIN, STEP)})) == ((0, 1), ["main", "step"], [])
    assert shape(group({0: at(MAIN), 1: at(LOAD)})) == ((0, 1), [], [((0,), ["main"], []), ((1,), ["load"], [])])
    assert group({}) is None and group({0: ()}) is None
