"""What calls and steps of an outcome are called, in both languages."""

from __future__ import annotations

import pytest

from unhang.diagnosis import quoted
from unhang.flight.outcome import Counted, Outcome, Step


@pytest.mark.parametrize(
    ("call", "en", "zh"),
    [
        ("all_reduce [8] Float", "all_reduce", "all_reduce"),
        ("all_gather+all_gather", "all_gather", "all_gather"),
        ("", "a call", "一次调用"),
        ("send to rank 3", "a send to rank 3", "发往 rank 3 的 send"),
        ("receive from any rank", "a receive from any rank", "来自 任意 rank 的 receive"),
    ],
)
def test_a_call_is_named_by_its_operation_and_a_message_by_its_partner(call, en, zh):
    assert (quoted.named(call), quoted.named(call).of("zh")) == (en, zh)


def test_a_step_names_who_waits_where_for_whom():
    first = Step(group="tp2", number=2, call="all_reduce [8]", waiting=(4,), lacking=(5,))
    assert quoted.step(first) == "rank 4 waits in all_reduce #2 of group tp2 for rank 5"
    message = Step(group="pp", number=1, call="send to rank 5", waiting=(4, 6), lacking=(5,))
    assert quoted.step(message) == "ranks 4 and 6 wait in a send to rank 5"
    # A chain of one place is told where it ends.
    assert not quoted.path(Outcome(kind="missing", path=(first,)))
    assert quoted.path(Outcome(kind="missing", path=(first, message))) == f" ({quoted.step(first)}; {quoted.step(message)})"


def test_where_ranks_part_there_is_no_one_operation():
    assert quoted.seq(Outcome(kind="missing", group="dp", number=7, call="all_reduce [8]")) == "all_reduce #7 of group dp"
    assert quoted.seq(Outcome(kind="op", group="dp", number=7, call="all_reduce [8]")) == "call #7 of group dp"


def test_counters_tell_what_is_over_and_who_has_issued_less():
    said = quoted.counters_say(Counted(group="1", number=2, completed=1, ranks=(0,), fewer=((3, 0), (4, 1))))
    assert "of rank 0 (#1 is)" in said
    assert said.endswith("; rank 3 has issued none of it; rank 4 has issued nothing after #1 of it")
