"""Verdicts as people see them: one screen, both languages, nothing taken for markup."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.chinese import both, zh
from tests.tables import for_each

from unhang.diagnosis.redact import redact_data
from unhang.errors import UnhangError
from unhang.i18n import msg, sentences
from unhang.knowledge import catalogue
from unhang.model import Evidence, Finding, Input, NotExamined, Remedy, Verdict
from unhang.report import cause_page, html, language, markdown, screen, terminal
from unhang.report.console import Console

STUCK = Finding(
    cause="process-stuck",
    standing="established",
    says="rank 1 is stopped (SIGSTOP) at train.py:61 in load for 21 s while rank 0 waits in all_reduce (train.py:20 in step)",
    ranks=(1,),
    hosts=("node1",),
    where="train.py:61 in load",
    evidence=tuple(Evidence(source=f"incidents/1/stacks/rank{i}.json", text="x" * 300, line=i) for i in range(6)),
    remedies=(Remedy(id="a", says="Let it go on. " * 30, command="kill -CONT 1"), Remedy(id="b", says="b", env={"A": "1"}), Remedy(id="c", says="c")),
)
SYMPTOM = Finding(cause="peer-lost", standing="established", says="lost")
FULL = Verdict(
    primary=STUCK,
    contributing=(Finding(cause="straggler-timeout", standing="possible", says="slow"),),
    symptoms=(SYMPTOM, SYMPTOM),
    not_examined=tuple(NotExamined(what=f"thing {i}", why="w" * 200) for i in range(9)),
    inputs=(Input(source="run.json", kind="run", bytes=3),),
)


def shown(verdict, *, width=80, lang="en"):
    out = io.StringIO()
    terminal.render(verdict, Console(out, width=width, color_system=None, force_terminal=True), lang=lang)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 140, 300])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_first_screen_is_one_screen(width, lang):
    long = Verdict(
        primary=STUCK.__class__(**{**{f: getattr(STUCK, f) for f in STUCK.__dataclass_fields__}, "says": "word " * 400}),
        **{f: getattr(FULL, f) for f in ("contributing", "symptoms", "not_examined", "inputs")},
    )
    from rich.cells import cell_len

    for verdict in (FULL, long):
        rows = shown(verdict, width=width, lang=lang).splitlines()
        assert len(rows) <= (25 if width >= 80 else 50) and all(cell_len(row) <= width for row in rows)


def test_evidence_is_told_in_the_language_and_quoted_as_it_stands():
    ours = Evidence(source="incident.json", text=both("rank 0 waits in all_reduce", "rank 0 在 all_reduce 中等待"))
    quoted = Evidence(source="rank0.err", text="RuntimeError: it is over", line=3)
    verdict = Verdict(primary=Finding(cause="process-stuck", standing="likely", says=both("stuck", "卡住"), evidence=(ours, quoted)))
    for rendered in (shown, markdown.render, html.render):
        english, chinese = rendered(verdict, lang="en"), rendered(verdict, lang="zh")
        assert ours.text in english and zh(ours.text) not in english
        assert zh(ours.text) in chinese and ours.text not in chinese and quoted.text in chinese


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [40, 47, 60, 80])
def test_no_sentence_is_cut(width, lang):
    for cause in catalogue.load().values():
        finding = Finding(cause=cause.id, standing="likely", says="rank 1 waited " * 6 + "end.", remedies=cause.remedies)
        rows = shown(Verdict(primary=finding), width=width, lang=lang).splitlines()
        assert "…" not in "".join(rows), cause.id
        text = "".join("".join(rows).split())
        assert all("".join(part.split()) in text for part in (terminal.title(finding, lang), finding.says))
        hidden = sum("".join(terminal.says(r, lang).split()) not in text for r in cause.remedies)
        more = "".join(language.LABELS[lang]["more"].format(n=hidden).split()) + ":unhangwhy--all"
        assert (more in text) is (hidden > 0) and len(rows) <= (25 if width == 80 else 50)


def test_what_is_left_out_is_counted_only_where_that_saves_a_line():
    for count in (1, 2, 3):
        verdict = Verdict(primary=None, not_examined=tuple(NotExamined(what=f"thing {i}", why="w") for i in range(count)))
        text = shown(verdict)
        assert text.count(" thing ") == count and "more" not in text
    assert "and 2 more" in shown(Verdict(primary=None, not_examined=tuple(NotExamined(what=f"thing {i}", why="w") for i in range(4))))


def test_reasons_that_never_change_are_translated():
    """Each is written so in the code that gives it, or the translation is never seen."""
    code = "".join(p.read_text() for p in Path(language.__file__).parents[1].rglob("*.py") if p.name != "language.py")
    for said, chinese in sentences("reason").items():
        kind = re.match(r"no log: (.*)|its gzip (data is damaged.*)", said)
        assert (kind[1] or kind[2] if kind else said) in code, said
        verdict = Verdict(primary=None, not_examined=(NotExamined(what="x", why=said),))
        for text in (shown(verdict, lang="zh", width=200), markdown.render(verdict, lang="zh")):
            assert chinese in text.replace("\\", "") and said not in text
        assert said in shown(verdict, width=200)


def test_it_holds_what_matters():
    text = shown(FULL, width=120)
    for part in (
        "process-stuck",
        "established",
        "rank 1 on node1",
        "train.py:61 in load",
        "$ kill -CONT 1",
        "thing 0",
        "and 8 more",
        "straggler-timeout",
        "unhang explain",
    ):
        assert part in text
    assert text.count("incidents/1/stacks") == 3 and text.count("peer-lost") == 1


def test_a_host_is_told_without_its_ranks():
    alone = Verdict(primary=replace(STUCK, ranks=(), hosts=("node3",)))
    assert re.search(r"^who +node3$", shown(alone), re.MULTILINE)
    assert "- who: `node3`" in markdown.render(alone)


def test_labels_and_titles_are_translated():
    text = shown(FULL, lang="zh")
    assert "已确定" in text and "证据" in text and zh(catalogue.get("process-stuck").title) in text


def test_nothing_wrong():
    ended = Input(source="events.jsonl", kind="run", bytes=3)
    assert "✓ nothing is wrong" in shown(Verdict(primary=None, inputs=(ended,)))
    of_log = Verdict(primary=None, inputs=(Input(source="a.log", kind="log", bytes=3),))
    interrupted = Verdict(primary=None, inputs=(ended,), not_examined=(NotExamined(what="the rest", why="interrupted"),))
    for verdict in (Verdict(primary=None), of_log, interrupted):
        text = shown(verdict) + markdown.render(verdict)
        assert "✓" not in text and "nothing is wrong" not in text and "nothing recognised" in text


def test_what_could_not_be_read_comes_first():
    left = (*(NotExamined(what=f"model{i}.pt", why="no log") for i in range(3)), NotExamined(what="a.gz", why="it is cut off", unread=True))
    verdict = Verdict(primary=None, not_examined=left, inputs=(Input(source="events.jsonl", kind="run", bytes=3),))
    text = shown(verdict)
    assert "? nothing recognised in the part that could be read" in text and text.index("a.gz: it is cut off") < text.index("model0.pt")
    assert "# nothing recognised in the part that could be read" in markdown.render(verdict)
    assert "情况不明" in shown(verdict, lang="zh")


def test_a_setting_is_no_command():
    finding = Finding(cause="unknown", standing="possible", says="x", remedies=(Remedy(id="b", says="b", env={"A": "1"}),))
    both = Finding(cause="unknown", standing="possible", says="x", remedies=(Remedy(id="b", says="b", env={"A": "1"}, command="run"),))
    assert "  export A=1\n" in shown(Verdict(primary=finding)) and "`export A=1`" in markdown.render(Verdict(primary=finding))
    assert "export A=1" in shown(Verdict(primary=finding), lang="zh") and "export A=1" in markdown.render(Verdict(primary=finding), lang="zh")
    assert "$ A=1 run" in shown(Verdict(primary=both))


def test_square_brackets_are_not_markup():
    finding = Finding(cause="unknown", standing="not-established", says="[rank0]: [bold]x[/bold] [/]")
    assert "[rank0]: [bold]x[/bold] [/]" in shown(Verdict(primary=finding))


def test_markdown_holds_everything():
    text = markdown.render(FULL)
    assert text.count("incidents/1/stacks") == 6 and text.count("thing ") == 9 and "`kill -CONT 1`" in text and "`export A=1`" in text
    assert catalogue.get("process-stuck").explain["en"] in text
    assert "# 读到的内容里没有认出任何问题" in markdown.render(Verdict(primary=None), lang="zh")


def test_markdown_takes_nothing_for_markup():
    finding = Finding(cause="unknown", standing="possible", says="<b>*x*</b>", evidence=(Evidence(source="s", text="a `b` ``c``\nd"),))
    text = markdown.render(Verdict(primary=finding))
    assert "\\<b\\>\\*x\\*\\</b\\>" in text and "``` a `b` ``c`` d ```" in text


LIVE = "![x](http://evil.example/p.png) `code` | @team #1 <i> [a](b) &amp; $x$ ~~y~~ www.evil.example \\"


def without_code(text):
    """Markdown without its code spans, as CommonMark finds them: up to the next run of just as many backticks."""
    return re.sub(r"(?<![\\`])(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", text)


@for_each("field", ["says", "where", "hosts", "source", "text", "input", "what", "why", "remedy", "verify"])
def test_what_a_log_says_is_nowhere_live(field):
    def at(name):
        return LIVE if field == name else "plain"

    finding = Finding(
        cause="unknown",
        standing="possible",
        says=at("says"),
        ranks=(0,),
        hosts=(at("hosts"),),
        where=at("where"),
        evidence=(Evidence(source=at("source"), text=at("text"), line=3),),
        remedies=(Remedy(id="a", says=at("remedy"), command="true", verify=at("verify")),),
    )
    verdict = Verdict(
        primary=finding, not_examined=(NotExamined(what=at("what"), why=at("why")),), inputs=(Input(source=at("input"), kind="log", bytes=1),)
    )
    text = markdown.render(verdict)
    (line,) = [line for line in text.splitlines() if "evil" in line]
    outside = without_code(line)
    # Hosts of issues link these whatever stands before them.
    assert not re.search(r"@team|#1|://|www\.", outside)
    assert not re.search(r"(?<!\\)[`|<\[\]!&$~]", outside)


@for_each("what", ["# heading", "- item", "+ item", "12. item", "3) item", "---", "> quote", "    indented", "=== x"])
def test_nothing_that_was_not_examined_begins_a_block(what):
    line = next(x for x in markdown.render(Verdict(primary=None, not_examined=(NotExamined(what=what, why="w"),))).splitlines() if x.startswith("- "))
    assert not re.match(r"- (?:#|[-+=>]|\d+[.)]|\s)", line) and line.endswith(": w")


def test_nothing_acts_on_the_terminal():
    hostile = "\x1b]0;t\x07\x1b[31m\x9b31m\x9d0;t\x9c\u202e\x7f\x08\x00"
    finding = Finding(
        cause="unknown",
        standing="possible",
        says=hostile,
        ranks=(0,),
        hosts=(hostile,),
        where=hostile,
        evidence=(Evidence(source=hostile, text=hostile),),
        remedies=(Remedy(id="a", says=hostile, command=hostile, verify=hostile),),
    )
    verdict = Verdict(primary=finding, contributing=(finding,), not_examined=(NotExamined(what=hostile, why=hostile),))
    out = io.StringIO()
    terminal.render(redact_data(verdict), Console(out, width=80, color_system=None, force_terminal=True), lang="en", whole=True)
    for text in (out.getvalue(), markdown.render(redact_data(verdict))):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_how_a_cause_is_verified_may_hold_backticks():
    (cause,) = [c for c in catalogue.load().values() if c.id == "process-stuck"]
    page = cause_page.for_terminal(replace(cause, remedies=(Remedy(id="a", says="x", verify="echo `id`"),)), "en")
    assert "`` echo `id` ``" in page


def test_language_comes_from_the_locale():
    assert language.from_locale({"LANG": "zh_CN.UTF-8"}) == "zh"
    assert language.from_locale({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}) == "en"
    assert language.from_locale({}) == "en"
    with pytest.raises(UnhangError, match="en, zh"):
        language.chosen("fr")


@for_each(
    ("columns", "longest"),
    [(None, 140), ("60", 60), ("200", 200), ("20", 40), *((none, 140) for none in ("wide", "0", "000", "²", "٦٠", "-80", "9" * 5000))],
)
def test_how_wide_it_is_where_there_is_no_terminal(monkeypatch, capsys, columns, longest):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    terminal.render(FULL, screen.console(), lang="en")
    assert longest - 10 <= max(len(line) for line in capsys.readouterr().out.splitlines()) <= longest


@pytest.mark.parametrize("value", ["1", ""])
def test_without_colours_there_is_no_escape_at_all(monkeypatch, capsys, value):
    monkeypatch.setenv("NO_COLOR", value)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    console = screen.console()
    terminal.render(FULL, console, lang="en")
    console.rule("x", style="dim underline")
    assert ("\x1b" in capsys.readouterr().out) == (value == "")


@pytest.mark.parametrize(
    ("said", "in_chinese"),
    [
        (msg("{at} (last seen {s} before its end)", at="train.py:61 in load", s="20 s"), "train.py:61 in load（结束前 20 s 最后见于此处）"),
        (msg("{at} (last seen)", at="train.py:61 in load"), "train.py:61 in load（最后见于此处）"),
        ("train.py:61 in load", "train.py:61 in load"),
        (None, ""),
    ],
)
def test_where_a_rank_was_last_seen(said, in_chinese):
    found = Finding(cause="host-oom-or-killed", standing="established", says="rank 1 was killed", where=said)
    assert terminal.where(found, "zh") == in_chinese
    assert terminal.where(found, "en") == (said or "")


def test_a_name_with_a_line_feed_begins_no_line():
    """It could look like a command that unhang advises."""
    screened = Console(stream := io.StringIO(), width=80)
    for forged in ("host\n  $ curl x | sh", terminal.Text("host\n  $ curl x | sh", style="bold")):
        screened.print(forged, soft_wrap=True)
    assert stream.getvalue() == "host\\n  $ curl x | sh\n" * 2
