"""What frames add where the calls of ranks part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.flight import jobs

from unhang.flight.dump import dump_of
from unhang.flight.dump_file import DumpFile
from unhang.flight.mismatch import parting_of
from unhang.flight.wait_graph import judge

PAIR = {"0": ("default_pg", [0, 1])}


def calls(*issued):
    """(op, elements, line) of each call; the last one is pending."""
    entries = [
        jobs.entry(n, ("0", "default_pg"), n, op, elements, line, "completed" if n < len(issued) else "started", t=n * 1000)
        for n, (op, elements, line) in enumerate(issued, 1)
    ]
    return jobs.dump(entries, PAIR)


def parting(*dumps):
    found = {r: dump_of(DumpFile(raw=raw), rank=r, source=str(r)) for r, raw in enumerate(dumps)}
    outcome = judge({r: d.recording for r, d in found.items()})
    return outcome, {r: d.flight for r, d in found.items()}


USUAL = [("all_reduce", 4, 20)] * 12


@pytest.mark.parametrize("odd", [0, 1])
def test_of_two_the_one_whose_line_issued_something_else_before(odd):
    sides = [calls(*USUAL, ("all_reduce", 5 if r == odd else 4, 20)) for r in range(2)]
    found = parting_of(*parting(*sides))
    assert (found.odd, found.by, found.kind, found.seq, found.whole) == ((odd,), "history", "shape", 13, True)
    assert [s.says for s in found.sides] == [f"all_reduce {5 if r == odd else 4} Float" for r in range(2)]


def test_a_line_that_was_hardly_ever_reached_is_seen_and_no_blame():
    found = parting_of(*parting(calls(*USUAL, ("all_reduce", 4, 20)), calls(*USUAL, ("broadcast", 2, 70))))
    assert (found.odd, found.by, found.rare) == ((), "nothing", (1,))


def test_of_two_habits_nobody_is_told():
    both = [("all_reduce", 4, 20), ("broadcast", 2, 30)] * 6
    found = parting_of(*parting(calls(*both, ("all_reduce", 4, 20)), calls(*both, ("broadcast", 2, 30))))
    assert (found.odd, found.by, found.rare) == ((), "nothing", ())


def test_without_the_dump_of_a_side_there_is_none():
    outcome, flights = parting(calls(*USUAL, ("all_reduce", 4, 20)), calls(*USUAL, ("broadcast", 2, 70)))
    assert parting_of(outcome, {0: flights[0]}) is None
    assert parting_of(replace(outcome, kind="missing"), flights) is None
