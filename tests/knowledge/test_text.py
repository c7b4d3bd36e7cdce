"""Texts that are made of texts, and told in a language where they are shown."""

from __future__ import annotations

import copy
import json
import pickle
import re

import pytest
from tests.chinese import both, zh

from unhang import encoding
from unhang.i18n import AND, NOTHING, Text, joined, listed, msg, same
from unhang.knowledge.words import continued, possible, ranks
from unhang.model import Finding


def test_pieces_are_filled_each_in_its_language():
    inner = both("no rank of tp{0}", "tp{0} 中没有 rank")
    whole = msg("{who} at {where}{said}", who=inner, where="a.py", said="") + same(" #3")
    assert whole == whole.of("en") == "no rank of tp{0} at a.py #3"
    assert whole.of("zh") == "tp{0} 中没有 rank 在 a.py #3"
    assert joined((whole, whole), AND) == f"{whole} and {whole}" and joined(()) == NOTHING and not NOTHING
    assert (msg("of {n}").edited("of", "with") + msg(" in {what}")).fill(what="b{", n=3) == "with 3 in b{"


@pytest.mark.parametrize(
    ("numbers", "english", "chinese"),
    [
        ((), "no rank", "没有任何 rank"),
        ((3,), "rank 3", "rank 3"),
        ((2, 0), "ranks 0 and 2", "rank 0、2"),
        (range(7), "ranks 0 to 6", "rank 0 到 6"),
        # Nobody counts from the first to the last.
        ((0, 1, 10**15), "ranks 0, 1 and 1000000000000000", "rank 0、1、1000000000000000"),
        (range(0, 20, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2 more", "rank 0、2、4、6、8、10、12、14 等 10 个 rank"),
    ],
)
def test_ranks(numbers, english, chinese):
    assert (ranks(numbers), zh(ranks(numbers))) == (english, chinese)


def test_causes_keep_their_names():
    assert zh(possible(("network-mtu",))) == "（可能是：network-mtu）"


def test_what_has_no_chinese_stays_as_it_is():
    finding = Finding(cause="unknown", standing="likely", says="it fell")
    assert zh(continued(finding, possible(("a",))).says) == "it fell（可能是：a）"


def test_a_document_tells_in_any_language_what_it_was_made_of():
    said = possible(("a", "b")) + msg(" (rank {rank}, from {hook})", rank=1, hook=listed(("x", "y", "z"))).edited(re.escape("rank 1"), "rank 01")
    document = encoding.encode({"says": said, "all": [said, "from elsewhere"]})
    assert json.loads(document)["says"] == said
    (again, other) = encoding.decode(document, dict)["all"]
    assert again == said and other == "from elsewhere" and not isinstance(other, Text)
    for one in (again, pickle.loads(pickle.dumps(said)), copy.deepcopy(said)):
        assert zh(one) == zh(said) != said
    # A translation of another release may name other values.
    other = encoding.decode(
        json.dumps(
            {
                "says": "ranks 1 and 2 more",
                "messages": {"ranks 1 and 2 more": {"template": "ranks {some} and {more} more", "values": {"some": "1", "more": 2}}},
            }
        ).encode(),
        dict,
    )["says"]
    assert zh(other) == "ranks 1 and 2 more"
    # Whoever has edited it may have made anything of it.
    bomb = {"template": "b"}
    for _ in range(60):
        bomb = {"template": "{x}{x}", "values": {"x": bomb}}
    wide = {"template": "{x:>9999999999}", "values": {"x": "b"}}
    for broken in (
        {"template": 3},
        {"values": 7, "template": "a"},
        [],
        {"template": "{x}", "values": {}},
        bomb,
        wide,
        {"template": "a", "edits": [["(a+)+$", "b"]]},
    ):
        assert encoding.decode(json.dumps({"a": "b", "messages": {"b": broken}}).encode(), dict)["a"] == "b"
