"""What is shown fits every width, in both languages, leaves nothing unsaid that is not known, and steers no terminal."""

from __future__ import annotations

import io
import string
from dataclasses import replace
from typing import get_args

import pytest
from rich.cells import cell_len
from tests.chinese import zh
from tests.report.top.pictures import MONITORED, TOLD, TROUBLE, picture, rank, thousand
from tests.tables import for_each

from unhang.launch import events
from unhang.records.run_snapshot import STATES, Memory, Phase
from unhang.records.run_so_far import Calls, Happened
from unhang.report.console import Console
from unhang.report.top import lines, words
from unhang.report.top.choosing import choose
from unhang.report.top.lines import render

STUCK = picture(
    rank(0, "waiting", waits_s=12.4, call="all_reduce", group="0", number=77),
    rank(1, "silent", process="T", age_s=12.0),
    rank(2, "failed", raised="ValueError: no \x1b[31msuch batch", exitcode=1),
    rank(3, "stopped", blamed=True, exitcode=-9),
    rank(4, "unknown", step=None, steps_per_s=None, age_s=None, place=None, local_rank=None),
    rank(5, memory=Memory(used_bytes=3 << 30, total_bytes=80 << 30)),
    phase="wrong",
    monitored=True,
    verdict=TOLD,
    trouble=TROUBLE,
    gave_up="the same failure again",
    settings={"shm": "off", "timeout": 1800},
    preset="conservative",
)


def shown(of, width, lang) -> list[str]:
    chosen = choose(of.ranks)
    columns = lines.columns(chosen.shown, width)
    made = [*lines.head(of, width, lang), lines.heading(columns, lang), *(lines.row(r, columns, lang) for r in chosen.shown)]
    made += [*lines.folded(chosen, width, lang), *lines.events(of, width, 9, lang), *lines.collectives(of, width, 20, lang)]
    made += [line for r in of.ranks[:6] for line in lines.detail(r, width, lang)]
    return [line.plain for line in made]


@for_each("lang", ["en", "zh"])
@for_each("width", [40, 80, 100, 120, 160, 300])
@for_each("of", [STUCK, thousand(), picture()], ids=["stuck", "thousand", "empty"])
def test_every_line_fits(of, width, lang):
    for line in shown(of, width, lang):
        assert cell_len(line) <= max(width, 80 if width < 80 and "state" in line else width) or width < 80
        assert line.isprintable(), line


def test_what_a_monitor_does_not_hear_is_shown():
    shown = lines.collectives(STUCK, 160, 20, "en")
    text = "\n".join(line.plain for line in shown)
    for said in (
        "! the store is lost, and nothing comes from other ranks: it no longer answers",
        "! nothing comes from: rank 5 for 31 s, rank 6 for 45 s",
        "  all_reduce timeout: rank 5 did not come",
        "the last failed evaluation: rank 1: KeyError: a label",
        "torch's own collectives: counted  15 of them missed",
    ):
        assert said in text, said
    assert [str(line.style) for line in shown if "nothing comes from: rank" in line.plain] == ["yellow"]
    # All calls, and how long they took of late.
    (row,) = [line.plain.split() for line in shown if line.plain.startswith("world")]
    assert row[:5] == ["world", "all_reduce", "4200", "250", "ms"]


def test_what_nobody_knows_to_end_has_no_time():
    of = rank(0, "unknown", call="all_reduce", waits_s=None)
    columns = lines.columns([of], 160)
    assert "all_reduce ?" in lines.row(of, columns, "en").plain and "all_reduce ?" in lines.detail(of, 160, "en")[1].plain


def test_what_is_said_of_ranks():
    text = "\n".join(shown(STUCK, 160, "en"))
    for said in (
        "all_reduce 12 s", "stopped (SIGSTOP)", "ValueError: no \\x1b[31msuch batch", "ended by signal 9", "3.0/80.0", "train.py:42 main",
        "a hang (incident 1), 12 s ago, evidence is being taken", "verdict process-stuck (established): rank 3", "preset conservative shm=off",
        "not started again: the same failure again", "1 failed, 1 silent, 1 waiting, 1 unknown, 1 running, 1 stopped", "restarts 0 of 3",
        "of 7 of 8 ranks, 4.0 s ago", "rank 5 80% (12 s, world)", "all_reduce 30 s", "failed calls: world all_reduce timeout 2",
        "evaluations 4, failed 1",
        "[0#77]", "named by the verdict",
    ):  # fmt: skip
        assert said in text, said


def test_what_is_not_known_is_said():
    (row,) = [line for line in shown(STUCK, 100, "en") if line.strip().startswith("4 ?")]
    assert row.split()[:6] == ["4", "?", "unknown", "?", "?", "?"] and row.endswith("?")
    assert "not known yet: no unhang.Monitor has told anything here" in "\n".join(shown(picture(rank(0)), 100, "en"))
    assert "no rank seen yet" in "\n".join(shown(picture(), 100, "en"))


@for_each("width", [50, 59, 66, 67, 80, 160])
@for_each(("gbps", "said"), [(1.2345e-5, "1.2e-05"), (0.00123456, "0.00123"), (12.5, "12.5"), (1234.5, "1234"), (0.0, "0"), (None, "?")])
def test_no_number_of_a_call_is_cut(width, gbps, said):
    calls = Calls(group="ranks 0,1,2,3", collective="reduce_scatter_tensor", count=12_345_678, latency_p50_s=0.0001, busbw_p50_gbps=gbps)
    of = replace(STUCK, monitor=replace(MONITORED, calls=(calls,), interval_calls=()))
    row = next(line.plain for line in lines.collectives(of, width, 30, "en") if "12345678" in line.plain)
    assert row.split()[-1] == said and " 100 µs" in row and len(row) <= width


@pytest.mark.parametrize("state", ["failed", "stopped", "done", "unknown", "silent"])
def test_a_place_that_only_a_heartbeat_tells_is_called_so(state):
    of = rank(0, state)
    columns = lines.columns([of], 120)
    assert lines.row(of, columns, "en").plain.endswith("train.py:42 main (last seen)")
    assert lines.row(of, columns, "zh").plain.endswith("train.py:42 main （最后所见）")
    assert "last seen at /home/u/project/train.py:42 main" in lines.detail(of, 160, "en")[1].plain
    nowhere = rank(0, state, place=None)
    assert lines.row(nowhere, columns, "en").plain.endswith("?") and "last seen at ?" in lines.detail(nowhere, 160, "en")[1].plain
    running = rank(0)
    assert "seen" not in lines.row(running, columns, "en").plain + lines.detail(running, 160, "en")[1].plain


def test_states_are_told_without_colours():
    rows = [lines.row(rank(0, state), lines.columns([rank(0)], 80), "en").plain for state in STATES]
    assert len(set(rows)) == len(STATES)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_once(lang):
    out = io.StringIO()
    render(STUCK, Console(out, width=80, color_system=None), lang=lang)
    text = out.getvalue()
    assert "\x1b" not in text and "\x07" not in text and "Teleported" in text
    assert (" ".join(TOLD.says.split()) if lang == "en" else zh(TOLD.says)[:20]) in " ".join(text.split())
    assert "torchrun --nproc-per-node 8 train.py --note 'two words'" in " ".join(text.split())


def test_both_languages_say_the_same_things():
    fields = lambda text: {name for _, name, _, _ in string.Formatter().parse(text) if name}  # noqa: E731
    assert words.LABELS["en"].keys() == words.LABELS["zh"].keys()
    for name, text in words.LABELS["en"].items():
        assert fields(text) == fields(words.LABELS["zh"][name]), name
    for lang in ("en", "zh"):
        assert set(words.STATES[lang]) == set(words.STYLES) == set(STATES) and set(words.PHASES[lang]) == set(get_args(Phase))
        # It fits a small screen, frame included.
        assert len(words.HELP.of(lang).splitlines()) <= 22 and all(cell_len(line) <= 76 for line in words.HELP.of(lang).splitlines())
    for name, told in words._EVENTS["en"].items():
        assert fields(told) == fields(words._EVENTS["zh"][name]), name


def test_where_ranks_were_last_is_among_the_events():
    seen = [{"ranks": [0, 1], "place": {"file": "/p/train.py", "line": 16, "name": "step"}, "least_step": 3, "step": 3, "silent_s": 0.1}]
    told = words.happened(Happened(s=1.0, event="LastSeen", fields={"signal": "SIGTERM", "seen": seen}), "en")
    assert told == "SIGTERM; last seen, by heartbeat: ranks 0 and 1 at train.py:16 in step (step 3)"
    forced = Happened(s=1.0, event="Forced", fields={"after_s": 30.0, "seen": seen})
    assert words.happened(forced, "zh") == "信号 30 s 后被强制结束；最后的心跳所在位置：rank 0、1 在 train.py:16 in step（第 3 步）"
    assert words.happened(Happened(s=1.0, event="LastSeen", fields={"signal": "SIGTERM", "seen": 7}), "en").endswith("?")


def test_who_ended_ranks_is_told_as_a_guess_where_it_is_one():
    seen = [{"ranks": [2], "place": {"file": "/p/data.py", "line": 7, "name": "load"}, "silent_s": 0.1}]

    def told(lang="en", **fields):
        return words.happened(Happened(s=1.0, event="Forced", fields={"after_s": 30.0, "seen": seen} | fields), lang)

    assert told(by_us=True) == "ended by force 30 s after the signal; last seen, by heartbeat: rank 2 at data.py:7 in load"
    assert told(by_us=False).startswith("still there 30 s after the signal, then gone without a word (as if killed by its launcher); last seen")
    assert told("zh", by_us=False).startswith("信号 30 s 后仍在，随后不声不响地消失（像是被启动器杀死）")
    for damaged in ({"seen": 7}, {"after_s": "long"}, {"by_us": "me"}):
        assert told(**damaged) == "ended by force, by whom or where is not known"
        assert told("zh", **damaged) == "被强制结束，不知道由谁或在何处"


def test_every_event_has_its_words():
    written = {kind.__name__ for kind in events.Event.__args__} - {"Pace", "Attached", "Joined", "Revised"}
    assert written <= set(words._EVENTS["en"])
    for name in written:
        # Of one whose fields are another version's nothing is lost but these.
        assert words.happened(Happened(s=1.0, event=name, fields={}), "en")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "?"), (-1, "0.0 s"), (0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (99.6, "1:40"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_durations(seconds, said):
    assert words.duration(seconds) == said


@pytest.mark.parametrize(("seconds", "said"), [(None, "?"), (0.0000004, "0.4 µs"), (0.00085, "850 µs"), (0.0123, "12.3 ms"), (1.25, "1.2 s")])
def test_small_durations(seconds, said):
    assert words.small(seconds) == said


@pytest.mark.parametrize(("phase", "says"), [("starting", "so far"), ("running", "so far"), ("ended", "told anything here (docs")])
def test_a_monitor_that_was_not_made_yet_is_not_denied(phase, says):
    (line,) = lines.collectives(picture(rank(0), phase=phase), 120, 5, "en")
    assert "no unhang.Monitor has told anything here" in line.plain and says in line.plain


@pytest.mark.parametrize(("lang", "says"), [("en", "how long it took is not known"), ("zh", "用时未知")])
def test_of_a_run_that_is_gone_and_left_nothing_it_is_said_that_its_time_is_not_known(lang, says):
    of = picture(rank(0, "unknown"), phase="gone")
    assert says in lines.head(replace(of, job=replace(of.job, elapsed_s=None)), 200, lang)[0].plain
    assert says not in lines.head(of, 200, lang)[0].plain


@pytest.mark.parametrize(
    ("lang", "says", "cells"),
    [
        ("en", "still running, unwatched: rank 0 (pid 1000 on node1)", ["its process still runs; ", "its process lives no longer; "]),
        ("zh", "仍在运行，但无人监视：rank 0（pid 1000，node1）", ["其进程仍在运行; ", "其进程已不存在; "]),
    ],
)
def test_ranks_that_a_killed_supervisor_has_left_are_named(lang, says, cells):
    of = picture(rank(0, "unknown", alive=True), rank(1, "unknown", alive=False), rank(2, "unknown"), phase="gone")
    assert says in [line.plain for line in lines.head(of, 120, lang)]
    rows = [lines.row(r, lines.columns(of.ranks, 160), lang).plain for r in of.ranks]
    assert [cell in row for cell, row in zip(cells, rows, strict=False)] == [True, True] and "process" not in rows[2]
    assert "unwatched" not in str(lines.head(picture(rank(0), phase="gone"), 120, "en"))
