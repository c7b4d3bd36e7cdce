import pytest
from tests.report.test_solution import OUTCOME

from unhang.report import asking, solution


@pytest.mark.parametrize(("answer", "number"), [("\n", 1), ("1\n", 1), ("2\n", 2), ("0", 0), ("3", None), ("-1", None), ("x", None), ("²", None)])
def test_a_number_or_nothing_chooses(answer, number):
    assert asking.read(answer, 2) == number


@pytest.mark.parametrize(("lang", "says"), [("en", "none of them"), ("zh", "都不用")])
def test_every_way_stands_with_what_was_measured(lang, says):
    ways = [w for w in solution.ways(OUTCOME, lang) if w.passed]
    text = asking.menu(ways, lang=lang)
    assert "1) ★★★★★ ★★★★★  backend=gloo" in text and "4 GB/s, 0.25 s/step" in text
    assert "2) ★★☆☆☆ ★★★★★  interface=lo" in text and "2 GB/s" in text
    assert says in text
