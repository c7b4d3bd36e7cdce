"""A comparison as it is shown: table, sentences, CSV, Markdown, JSON."""

import io
import json
from dataclasses import replace

import pytest
from tests.bench.trainings import Trainings

from unhang import encoding
from unhang.bench.arms import Rules
from unhang.bench.comparison import Comparison
from unhang.model import Evidence, Finding, Verdict
from unhang.report import bench_metrics
from unhang.report.bench import ProgressLine, Report
from unhang.report.bench_ranking import Ranking
from unhang.report.console import Console


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    return Trainings(tmp_path, monkeypatch)


def report(trainings, kind=Report, lang="en", **options):
    rules = Rules(seed=4, margin=0.01, budget_s=100.0, steps=40)
    return kind(arms=trainings.arms, rules=rules, run_dir=trainings.directory.path, again="AGAIN", result=trainings.run(**options), lang=lang)


def printed(made):
    console = Console(io.StringIO(), width=160)
    made.print(console)
    return console.file.getvalue()


def test_the_sentence_of_each_verdict(trainings):
    trainings.step_s["b"] = 0.11
    said = printed(report(trainings))
    assert "b (shm=off) is slower than a (shm=on): 10.0 % more time per step, between " in said and "(95 % confidence, 3 rounds)" in said
    assert "b differs from a in NCCL_SHM_DISABLE (0; in b 1)" in said and "+10.0 %" in said and "AGAIN" not in said
    assert "time against a: * mean, = interval, : margin\n" in said and "\nb  :     |     :  " in said


def test_same(trainings):
    said = printed(report(trainings))
    assert "b (shm=off) is as fast as a (shm=on) within 1 %: the time per step differs by -0." in said


def test_undecided(trainings):
    trainings.noise, trainings.elapsed_s = 0.3, 12.0
    said = printed(report(trainings))
    assert "no useful interval yet: cannot tell how b (shm=off) compares with a (shm=on) after 4 rounds" in said and "= interval" not in said
    assert "the budget of 100 s is spent; AGAIN goes on" in said


def test_runs_that_were_too_few_or_too_short_are_named(trainings):
    trainings.elapsed_s, trainings.steps_of = 30.0, {"b": 30}
    said = printed(report(trainings))
    assert (
        "3 rounds are the least that can decide, and a round takes about 60 s" in said
        and "how b (shm=off) compares with a (shm=on) after 1 round\n" in said
    )
    assert "note: runs of b ended by themselves before step 40 (--steps)" in said


def test_a_training_that_failed_is_named_with_what_unhang_why_says_first(trainings):
    trainings.fails = {"b"}
    primary = Finding(cause="exception", says="rank 1 raised KeyError", standing="established")
    trainings.verdict = Verdict(primary=primary)
    assert "the training failed in arm b (shm=off): rank 1 raised KeyError; unhang why " in " ".join(printed(report(trainings)).split())
    # What a script gave to sys.exit is in its log only.
    said = Evidence(source="logs/attempt-0/rank1.err", line=7, text="no data in /data\n")
    trainings.verdict = Verdict(primary=replace(primary, evidence=(said,)))
    for kind in ({}, {"is_race": True}):
        assert "; it said: no data in /data" in " ".join(printed(report(trainings, Ranking if kind else Report, **kind)).split())


def test_files_and_json_agree(trainings):
    trainings.step_s["b"] = 0.09
    made = report(trainings)
    told = json.loads(encoding.encode(made.json()))
    assert (told["schema"], told["stopped"], told["exitcode"], told["rounds"]) == ("unhang/bench-result/1", "decided", 0, 3)
    assert told["comparisons"][0]["outcome"] == "faster" and told["says"][0].startswith("b (shm=off) is faster than a (shm=on): 10.0 % less time")
    lines = made.markdown().splitlines()
    assert lines[0].startswith("| arm | setting | runs | step |") and lines[1] == "| --- " * 9 + "|" and told["says"][0] in lines


def test_it_speaks_chinese(trainings):
    trainings.step_s["b"] = 0.11
    said = printed(report(trainings, lang="zh"))
    assert "b (shm=off) 比 a (shm=on) 慢：每步的时间多 10.0 %" in said and "slower" not in said


def test_a_plot_has_one_scale_and_no_more_columns_than_the_terminal():
    rows = [compared("1", -0.02), compared("2", 0.04, 0.03, 0.06), compared("all", 0.0, -900.0), compared("x", 0.0, None, 0.02)]
    head, one, two, three, four = bench_metrics.lines(rows, 0.01, width=46)
    # 41 columns from -2 % to 6 %: five for each percent.
    assert head.split() == ["-2.0", "%", "+6.0", "%"] and max(map(len, (head, one, two, three))) == 46
    assert one == "  1  *    :    |    :"
    assert two == f"  2  {'':5}:    |    :{'':9}=====*{'=' * 10}"
    assert three == f"all  {'=' * 5}:====*====:{'=' * 25}" and four == f"  x  {'=' * 5}:====*====:====="


def compared(arm, change, low=None, high=None, outcome="undecided"):
    return Comparison(arm=arm, baseline="a", rounds=5, change=change, low=low, high=high, outcome=outcome)


NOT_USEFUL = "no useful interval yet: cannot tell how b compares with a after 5 rounds"


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (compared("b", 0.9, 0.05, None, "slower"), "b is slower than a: 90.0 % more time per step, at least 5.0 % (95 % confidence, 5 rounds)"),
        (compared("b", -0.9, None, -0.05, "faster"), "b is faster than a: 90.0 % less time per step, at least 5.0 % (95 % confidence, 5 rounds)"),
        (
            compared("b", 0.1, -0.4, 0.6),
            "cannot tell yet whether b and a differ by more than 1 %: the time per step differs by -40.0 % to +60.0 % (95",
        ),
        # Wider than ±50 %.
        (compared("b", 0.1, -0.4, 0.61), NOT_USEFUL),
        (compared("b", -0.9, None, 0.5), NOT_USEFUL),
        (compared("b", 0.9), NOT_USEFUL),
    ],
)
def test_ends_that_are_not_known_are_none(trainings, one, says):
    made = report(trainings)
    arms = [replace(arm, asked="x") for arm in trainings.arms]
    state = replace(made.state, comparisons=(one,))
    for kind in (Report, Ranking):
        shown = kind(**{**vars(made), "arms": arms, "result": replace(made.result, state=state)})
        assert printed(shown) and shown.markdown() and encoding.encode(shown.json())
        if kind is Report:
            assert next(shown.verdicts()).replace(" (x)", "").startswith(says)
            is_drawn = says is not NOT_USEFUL
            assert ("time against a: " in printed(shown)) == is_drawn
            assert ("no useful interval yet" in next(line for line in printed(shown).splitlines() if line.startswith("b "))) != is_drawn


def ranking(trainings, **options):
    trainings.noise = 0.002
    trainings.step_s["b"] = 0.09
    trainings.more(c=0.08, d=0.12, e=0.1, f=0.1)
    trainings.variables["e"], trainings.fails = trainings.variables["a"], {"f"}
    race = {"is_race": True, "leaves_out_equal": True}
    rules = Rules(seed=4, margin=0.01, budget_s=100.0, steps=40, **race)
    result = trainings.run(budget_s=1000.0, **race)
    left_out = {"ib": "ib: no adapter"}
    return Ranking(arms=trainings.arms, rules=rules, run_dir=trainings.directory.path, again="AGAIN", result=result, left_out=left_out, **options)


def test_a_ranking_says_what_gains_most_and_what_was_not_compared(trainings):
    made = ranking(trainings)
    said = printed(made)
    rows = [" ".join(line.split()) for line in said.splitlines()]
    assert [row[:3].strip() for row in rows[1:7]] == ["c o", "b s", "a s", "d o", "e o", "f o"]
    assert rows[1].startswith("c other=c ") and rows[1].endswith(" faster")
    assert (
        rows[2].endswith("faster, another one is faster still")
        and rows[4].endswith(" cannot win by more than 1 %")
        and rows[5].endswith("changes nothing here")
    )
    assert "its training fails: unhang why" in rows[6]
    assert "c (other=c) gains most: +2" in said and "not compared: ib: no adapter\n" in said and "what several gain together is not measured" in said
    told = json.loads(encoding.encode(made.json()))
    assert [(r["place"], r["arm"], r["outcome"], r["out"]) for r in told["ranking"]] == [
        (1, "c", "faster", None), (2, "b", "faster", "beaten"), (4, "d", "undecided", "beaten")
    ]  # fmt: skip
    best = told["ranking"][0]
    assert best["low"] < best["gain"] < best["high"] and best["gain"] == pytest.approx(0.25, abs=0.01)
    assert told["failures"].keys() == {"f"} and told["left_out"].keys() == {"ib"} and told["says"][0] in made.markdown()


def test_a_ranking_of_which_nothing_could_be_compared(trainings):
    trainings.fails = {"b"}
    race = {"is_race": True, "leaves_out_equal": True}
    rules = Rules(seed=4, margin=0.01, budget_s=100.0, steps=40, **race)
    made = Ranking(arms=trainings.arms, rules=rules, run_dir=trainings.directory.path, again="AGAIN", result=trainings.run(**race))
    said = printed(made)
    assert "no setting could be compared: each one fails or changes nothing here\n" in said and "its training fails: unhang why" in said
    assert made.markdown() and made.json()["failures"].keys() == {"b"}


def test_nothing_to_show_yet(trainings):
    trainings.elapsed_s = 200.0
    made = report(trainings)
    assert "the budget of 100 s is spent" in printed(made) and "the budget" in made.markdown()
    assert json.loads(encoding.encode(made.json()))["arms"][0]["runs"] == 0
    # The table stands there all the same, with what was measured: nothing, or one run.
    assert [line.split()[:3] for line in printed(made).splitlines()[1:3]] == [["a", "shm=on", "0"], ["b", "shm=off", "0"]]
    assert "cannot tell yet" in printed(made) and "| b | shm=off | 0 |" in made.markdown()
    trainings.elapsed_s, trainings.stopped = 60.0, 0
    lines = printed(report(trainings)).splitlines()
    assert sorted(line.split()[2] for line in lines[1:3]) == ["0", "1"] and any("100 ms" in line for line in lines[1:3])


def test_progress_is_a_line_for_each_round(trainings):
    trainings.step_s["b"] = 0.11
    console = Console(io.StringIO(), width=100)
    with console.status("...") as status:
        line = ProgressLine(trainings.arms, Rules(seed=4, margin=0.01, budget_s=100.0, steps=40), status)
        trainings.run()
        for event in trainings.events:
            line.show(event)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "unhang: b differs: NCCL_SHM_DISABLE (0; in b 1)"
    assert [text.split(":")[1] for text in lines[1:]] == [" round 1", " round 2", " round 3"]
    assert lines[3].startswith("unhang: round 3: a 100 ms (-0), b 110 ms (-0); b +10.0 %, +")
