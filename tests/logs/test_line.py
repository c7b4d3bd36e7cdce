"""Lines: decoded, taken out of whatever was put around them, read from files in bounded memory."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.tables import for_each

from unhang.errors import RecordError
from unhang.logs import MAX_LINE_BYTES, clean, decode, last_lines, parse
from unhang.logs.line import wanted_lines


def every_line(path):
    return list(wanted_lines(path, lambda number, raw: True))


def write(tmp_path, data):
    path = tmp_path / "log"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@for_each(
    ("raw", "text", "rank"),
    [
        ("plain  ", "plain", None),
        ("[rank1]: boom 1", "boom 1", 1),
        ("[rank3]:[E1103 x.cpp:1] y", "[E1103 x.cpp:1] y", 3),
        ("[rank1]:   File", "  File", 1),
        ("[rank1]:  File", "  File", 1),
        ("[default0]:[rank2]: a", "a", 2),
        ("(RayWorkerWrapper pid=77) [rank2]: a", "a", 2),
        ("\x1b[1;31mred\x1b[0m end", "red end", None),
        ("\x1b]0;title\x07red\x1b(B\x1b[m end", "red end", None),
        ("\x1b[36m(Worker pid=7)\x1b[0m \x1b[1m[rank2]:\x1b[0m a", "a", 2),
        ("[36m(Worker pid=7)[0m [rank2]: a", "a", 2),
        (r"\u001b[36m(Worker pid=7)\u001b[0m [rank2]: a", "a", 2),
        ("#033[36m[rank2]: a#033[0m", "a", 2),
        # Of eight bits, and what shows a text in another order; a tab stays.
        ("\x9b1;31mred\x9b0m end", "red end", None),
        ("\x9d0;title\x9cred\x9d0;title\x07 end", "red end", None),
        ("\x9d0;never closed", "0;never closed", None),
        ("a\x07b\x7fc\x08d\x85e\u202ef\u2066g\u200fh", "abcdefgh", None),
        ("a\tb", "a\tb", None),
        ("\u202e[rank1]: boom", "boom", 1),
        ("[rank\x001]: boom", "boom", 1),
        ("\x01[31mred\x01[0m", "red", None),
        ("显存不足\u3000é \U0001f600", "显存不足\u3000é \U0001f600", None),
        ("rate(x[5m]) by [1m]", "rate(x[5m]) by [1m]", None),
        # What is left of colours at the end: patterns end in `$`.
        ("Killed\x1b[0m", "Killed", None),
        ("Killed\x1b[1;3", "Killed", None),
        ("Killed\x1b[", "Killed", None),
        ("Killed[m[K", "Killed", None),
        ("Killed ^[[m", "Killed", None),
        (r"Killed\033[K", "Killed", None),
        ("Killed(B[m", "Killed", None),
        ("[1;31mKilled[0;39m [31m", "[1;31mKilled", None),
        ("stderr: [rank0]: a", "a", 0),
        ("\ufeff[rank0]: a", "a", 0),
        ("[ranking]: a", "[ranking]: a", None),
        ("[rank1]:", "", 1),
        ("", "", None),
    ],
)
def test_cleaning(raw, text, rank):
    assert clean(raw) == (text, rank)


# Each with the rank that it names, in an order that tests change.
NESTED = [
    "[rank3]: ",
    "[default1]:",
    "stderr: ",
    "3: ",
    "[1,3]<stderr>:",
    "[pod/job-worker-1/pytorch] ",
    "(RayWorkerWrapper pid=812, ip=10.0.0.2) ",
    "(Worker_TP3 pid=77) ERROR 11-03 10:00:01 [executor.py:12] ",
    "node7: ",
    "2026-11-03T10:00:01.123456789Z stderr F ",
    "2026-11-03T10:00:01.123456789Z ",
    "[2026-11-03 10:00:01,123] ",
    "Nov  3 10:00:01 node7 python[4711]: ",
    "[88123.41] ",
    "\x1b[31m",
]


@given(st.lists(st.sampled_from(NESTED), max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_prefixes_makes_no_difference(prefixes, shuffle: random.Random):
    other = shuffle.sample(prefixes, len(prefixes))
    for text in ('  File "train.py", line 3', "boom 1", "RuntimeError: x"):
        one, two = parse("".join(prefixes) + text), parse("".join(other) + text)
        assert one.text == two.text == text
        assert (one.rank, one.label, one.local_rank) == (two.rank, two.label, two.local_rank)
        assert one.rank == (3 if {"[rank3]: ", NESTED[4], NESTED[7]} & {*prefixes} else None)


PIECES = st.sampled_from(
    [
        *NESTED,
        "[",
        "]",
        " ",
        ":",
        "0",
        "12",
        "rank 2: ",
        "Rank 1 | ",
        "[0] ",
        "[E321 02:07:08.1 a.cpp:1]",
        "node7:1:2 [0] NCCL",
        "\x1b[",
        "[0m",
        "[m",
        "[K",
        "m",
        "-",
        "a",
    ]
)


@given(st.text(st.characters(categories=["Cc", "Cf", "Nd"]) | st.sampled_from("[]m;ra nk:")))
def test_nothing_of_a_line_acts_on_a_terminal(text):
    assert not {*parse(text).text} & {*map(chr, (*range(9), *range(11, 32), *range(0x7F, 0xA0), 0x202E, 0x2066))}
    assert parse(parse(text).text).text == parse(text).text


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
@example("[rank1]:\t")
@example("[rank1]: 0: ")
@example("[0[0mm [rank1]: x")
@example("[rank1]: \ufeffx")
@example("٣: x")
def test_taking_off_is_idempotent(text):
    once = parse(text).text
    assert parse(once).text == once


@given(st.one_of(st.binary(), st.lists(PIECES.map(str.encode)).map(b"".join), st.text().map(lambda s: s.encode("gb18030", "replace"))))
def test_bytes_never_raise(raw):
    line = parse(raw, number=7)
    assert line.number == 7
    assert "\0" not in line.text
    assert parse(line.text).text == line.text


@for_each(
    "unit",
    [
        "[rank",
        "node",
        "a-",
        "1:",
        "[",
        "(a",
        "\x1b[",
        "\x1b]",
        "\x9b",
        "\x9d",
        "\u202e",
        "[0",
        " ",
        "[PG ",
        "9",
        "a.",
        "[1,",
        "\ufeff",
        "worker-1",
        "Jan 1 ",
    ],
)
def test_long_repetitions_take_no_time(unit):
    # A pattern that backtracks over a line of this length would run into the time limit of the test.
    for end in ("", "m", "]", ":", " |", "[0m", "[m"):
        parse(unit * (MAX_LINE_BYTES // len(unit)) + end)
        parse(unit * 20_000 + end * 20_000)


@for_each(
    ("raw", "text"),
    [
        ("显存不足：第3号卡".encode(), "显存不足：第3号卡"),
        ("显存不足".encode()[1:], "\ufffd\ufffd存不足"),
        ("显存不足".encode()[:-1], "显存不\ufffd"),
        (b"boom \xff\xfe 8", "boom \ufffd\ufffd 8"),
        (b"caf\xe9 ouvert", "caf\ufffd ouvert"),
        (b"a\0b\0", "ab"),
        ("boom 1".encode("utf-16-le"), "boom 1"),
        (b"\x80\x81\x82", "\ufffd\ufffd\ufffd"),
    ],
)
def test_decoding(raw, text):
    assert decode(raw) == text


def test_a_number_that_int_refuses_is_cut():
    text = parse(b"rank 3: line " + b"7" * 5000).text
    assert int(text.split()[-1].rstrip("…")) == int("7" * 300)
    assert parse("1" * 300).text == "1" * 300


def test_long_lines_are_cut():
    assert len(decode(b"x" * (MAX_LINE_BYTES + 5))) == MAX_LINE_BYTES
    assert len(parse("x" * (MAX_LINE_BYTES + 5)).text) == MAX_LINE_BYTES


def test_an_error_behind_a_progress_bar_is_a_line_of_its_own(tmp_path):
    path = write(tmp_path, b"start\r\n\r 1%|\r50%|####\r[rank1]: boom\n")
    assert [(x.number, x.text, x.rank) for x in every_line(path)] == [(1, "start", None), (2, " 1%|", None), (2, "50%|####", None), (2, "boom", 1)]


def test_lines_end_where_the_incident_ends(tmp_path):
    assert [x.text for x in last_lines(write(tmp_path, "boom 1\nboom 2\n"), limit_bytes=9)] == ["boom 1", "bo"]


def test_the_last_lines(tmp_path):
    path = write(tmp_path, "".join(f"{i}\n" for i in range(1, 100_000)) + "\n\n")
    assert [(x.number, x.text) for x in last_lines(path)] == [(n, str(n)) for n in (99_997, 99_998, 99_999)]
    assert last_lines(write(tmp_path, "")) == ()


def test_the_last_lines_are_one_progress_bar(tmp_path):
    path = write(tmp_path, "begun\n" + "".join(f"\rstep {n} of 20000" for n in range(20_000)))
    assert [x.text for x in last_lines(path)] == [f"step {n} of 20000" for n in (19_997, 19_998, 19_999)]


def test_the_last_lines_of_many_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("unhang.logs.line.CHUNK_BYTES", 32)
    monkeypatch.setattr("unhang.logs.line.MAX_LINE_BYTES", 40)
    path = write(tmp_path, "".join(f"line {i}\n" for i in range(1, 200)))
    assert [(x.number, x.text) for x in last_lines(path)] == [(n, f"line {n}") for n in (197, 198, 199)]


def test_what_torchrun_always_says_is_no_last_line(tmp_path):
    summary = (
        "KeyError: 3\n======\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_03:21:30\n  host      : localhost\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : 3 (pid: 7)\n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n======\n"
    )
    assert [x.text.strip() for x in last_lines(write(tmp_path, summary))] == ["KeyError: 3", "exitcode  : 3 (pid: 7)"]


@pytest.mark.parametrize("read", [last_lines, every_line])
def test_a_missing_log(tmp_path, read):
    with pytest.raises(RecordError, match="cannot read"):
        read(tmp_path / "none")
