"""The menu says how far one way differs from itself, and ranks nothing by noise."""

from __future__ import annotations

from unhang.model import Trial
from unhang.report import ladder_report
from unhang.report.ladder_report import Way


def way(name, *speeds):
    trials = tuple(Trial(choice={"interface": name}, outcome="passed", world_size=2, backend="gloo", says="", busbw_gbps=s) for s in speeds)
    return Way(title=name, cost="", trials=trials)


def test_a_way_that_differs_from_itself_sixfold_gives_no_stars():
    said = ladder_report.menu([way("auto", 0.16, 1.04), way("lo", 0.174)], lang="en")
    assert "0.16 to 1.04 GB/s" in said and "1) ----- ★" in said and "2) ----- ★" in said and "no stars for speed" in said


def test_steady_ways_are_ranked_by_their_median():
    said = ladder_report.menu([way("auto", 1.0, 1.1, 1.2), way("lo", 0.22)], lang="en")
    assert "1) ★★★★★" in said and "2) ★☆☆☆☆" in said and "no stars" not in said
