"""foreign-traffic in plain logs: a length that is the greeting of another protocol."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import match

CAUSE = catalogue.load()["foreign-traffic"]


def judge(size: int):
    text = f"node7:482:6900 [4] bootstrap.cc:77 NCCL WARN Message truncated : received {size} bytes instead of 88"
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: tuple(match(text, CAUSE.signatures, source="a.log", line=1))}))


@pytest.mark.parametrize(("start", "protocol"), [(b"GET ", "HTTP"), (b"SSH-", "SSH"), (b"POST", "HTTP")])
def test_the_protocol_is_named(start, protocol):
    found = judge(int.from_bytes(start, "little"))
    assert found.standing == "established" and f"an {protocol} client" in found.says


def test_a_huge_size_that_spells_nothing_is_not_established():
    assert judge(1_000_000_001).standing == "likely"


def test_a_plausible_size_is_no_matter_of_this_cause():
    assert judge(65_536) is None
