import pytest
from tests.report.test_ladder_report import OUTCOME

from unhang.report import ladder_report


@pytest.mark.parametrize(("answer", "number"), [("\n", 1), ("1\n", 1), ("2\n", 2), ("0", 0), ("3", None), ("-1", None), ("x", None), ("²", None)])
def test_a_number_or_nothing_chooses(answer, number):
    assert ladder_report.read_choice(answer, 2) == number


@pytest.mark.parametrize(("lang", "says", "step"), [("en", "none of them", ", 0.25 s/step"), ("zh", "都不用", "，每步 0.25 秒")])
def test_every_way_stands_with_what_was_measured(lang, says, step):
    ways = [w for w in ladder_report.ways(OUTCOME, lang) if w.passed]
    text = ladder_report.menu(ways, lang=lang)
    assert "1) ★★★★★ ★★★★★  backend=gloo" in text and f"4 GB/s{step}" in text
    assert "2) ★★☆☆☆ ★★★★★  interface=lo" in text and "2 GB/s" in text
    assert says in text
