"""Sentences that are put together in two languages at once."""

from __future__ import annotations

import pytest

from unhang.knowledge.text import AND, NOTHING, Text, continued, joined, possible, ranks, same
from unhang.model import Finding


def test_pieces_are_filled_each_in_its_language():
    inner = Text("no rank of {group}", "{group} 中没有 rank").fill(group="tp{0}")
    whole = Text("{who} waits", "{who}等待").fill(who=inner) + same(" #3")
    assert (whole.of("en"), whole.of("zh")) == ("no rank of tp{0} waits #3", "tp{0} 中没有 rank等待 #3")
    assert joined((whole, whole), AND).en == f"{whole.en} and {whole.en}" and joined(()) == NOTHING and not NOTHING


@pytest.mark.parametrize(
    ("numbers", "en", "zh"),
    [
        ((), "no rank", "没有任何 rank"),
        ((3,), "rank 3", "rank 3"),
        ((2, 0), "ranks 0 and 2", "rank 0、2"),
        (range(7), "ranks 0 to 6", "rank 0 到 6"),
        # Nobody counts from the first to the last.
        ((0, 1, 10**15), "ranks 0, 1 and 1000000000000000", "rank 0、1、1000000000000000"),
        (range(0, 20, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2 more", "rank 0、2、4、6、8、10、12、14 等 10 个"),
    ],
)
def test_ranks(numbers, en, zh):
    assert ranks(numbers) == Text(en, zh)


def test_causes_keep_their_names():
    assert possible(("network-mtu",)) == Text(" (possible: network-mtu)", "（可能是：network-mtu）")


def test_what_has_no_chinese_gets_none_behind_it():
    more = Text("; steps follow", "；之后还有训练步")
    finding = Finding(cause="unknown", standing="likely", says="it fell")
    assert continued(finding, more).says == "it fell; steps follow" and continued(finding, more).says_zh == ""
    both = Finding(cause="unknown", standing="likely", says="it fell", says_zh="出错了")
    assert continued(both, more).says_zh == "出错了；之后还有训练步"
