"""Logs: cleaned, bounded, searched; tracebacks wherever and however they stand."""

from __future__ import annotations

import tracemalloc

import pytest

from unhang.errors import RecordError
from unhang.records import logs
from unhang.records.logs import Signature, clean, last_lines, lines, match, scan, tracebacks

BOOM = Signature(needle="boom", pattern=r"boom (?P<n>\d+)")
TRACE = (
    'Traceback (most recent call last):\n  File "/p/train.py", line 12, in main\n    work()\n    ~~~~^^\n  File "/p/data.py", line 3, in work\n    '
    'raise ValueError("x")\nValueError: x\n'
)


@pytest.mark.parametrize(
    ("raw", "text", "rank"),
    [
        ("plain  ", "plain", None),
        ("[rank1]: boom 1", "boom 1", 1),
        ("[rank3]:[E1103 x.cpp:1] y", "[E1103 x.cpp:1] y", 3),
        ("[rank1]:   File", "  File", 1),
        ("[default0]:[rank2]: a", "a", 2),
        ("(RayWorkerWrapper pid=77) [rank2]: a", "a", 2),
        ("\x1b[1;31mred\x1b[0m end", "red end", None),
        ("stderr: [rank0]: a", "a", 0),
        ("[ranking]: a", "[ranking]: a", None),
    ],
)
def test_cleaning(raw, text, rank):
    assert clean(raw) == (text, rank)


def write(tmp_path, data):
    path = tmp_path / "log"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_hits_carry_line_rank_and_groups(tmp_path):
    path = write(tmp_path, b"one\r\n[rank2]: boom 7\nboom without a number\n\xff\xfe boom 8\n")
    hits = scan(path, [BOOM], source="logs/x")
    assert [(h.line, h.rank, h.groups["n"], h.source) for h in hits] == [(2, 2, "7", "logs/x"), (4, None, "8", "logs/x")]


def test_an_error_behind_a_progress_bar_is_found_in_its_line(tmp_path):
    path = write(tmp_path, "start\n\r 1%|\r50%|#### | boom 1\n")
    assert [(h.line, h.text.split()[-1]) for h in scan(path, [BOOM])] == [(2, "1")]


def test_only_what_belongs_to_the_incident_is_read(tmp_path):
    path = write(tmp_path, "boom 1\nboom 2\nboom 3\n")
    assert [h.groups["n"] for h in scan(path, [BOOM], limit_bytes=len("boom 1\nboom 2\n"))] == ["1", "2"]
    assert [x.text for x in lines(path, limit_bytes=9)] == ["boom 1", "bo"]


def test_lines_across_chunks_keep_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "CHUNK_BYTES", 32)
    path = write(tmp_path, "".join(f"line {i} {'boom 1' if i % 10 == 0 else ''}\n" for i in range(1, 200)))
    assert [h.line for h in scan(path, [BOOM])] == [i for i in range(1, 200) if i % 10 == 0]


def test_hits_of_one_signature_are_bounded(tmp_path):
    assert len(scan(write(tmp_path, "boom 1\n" * 1000), [BOOM])) == logs.MAX_HITS


def test_memory_is_bounded_whatever_the_line(tmp_path):
    path = write(tmp_path, b"x" * 30_000_000 + b"\nboom 1\n" + b"\0" * 5_000_000)
    tracemalloc.start()
    try:
        assert [h.groups["n"] for h in scan(path, [BOOM])] == ["1"]
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


def test_match_of_a_text():
    assert match("all boom 3", [BOOM, Signature(needle="nothing")], source="s")[0].groups == {"n": "3"}


def test_a_traceback(tmp_path):
    (t,) = tracebacks(write(tmp_path, f"before\n{TRACE}after\n"), rank=1)
    assert (t.type, t.text, t.line, t.end, t.rank) == ("ValueError", "x", 2, 8, 1)
    assert [(f.file, f.line, f.name, f.code) for f in t.frames] == [
        ("/p/train.py", 12, "main", "work()"),
        ("/p/data.py", 3, "work", 'raise ValueError("x")'),
    ]


def test_a_traceback_behind_a_progress_bar(tmp_path):
    assert len(tracebacks(write(tmp_path, "\r50%|##  |" + TRACE))) == 1


def test_of_a_chain_the_last_exception_counts(tmp_path):
    chain = TRACE + "\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE.replace("ValueError: x", "KeyError: 'y'")
    (t,) = tracebacks(write(tmp_path, chain))
    assert t.says == "KeyError: 'y'"


def test_two_that_only_follow_each_other_are_two(tmp_path):
    assert len(tracebacks(write(tmp_path, TRACE + TRACE))) == 2


def test_interleaved_ranks_are_put_apart(tmp_path):
    a = [f"[rank0]: {x}" for x in TRACE.splitlines()]
    b = [f"[rank1]: {x}" for x in TRACE.replace("ValueError: x", "KeyError: 1").splitlines()]
    found = tracebacks(write(tmp_path, "\n".join(x for pair in zip(a, b, strict=True) for x in pair) + "\n"))
    assert {(t.rank, t.type, len(t.frames)) for t in found} == {(0, "ValueError", 2), (1, "KeyError", 2)}


def test_a_spawned_process_is_named_by_its_parent(tmp_path):
    text = "\n-- Process 3 terminated with the following error:\n" + TRACE
    assert tracebacks(write(tmp_path, text))[0].rank == 3


def test_a_cut_traceback_is_none(tmp_path):
    assert tracebacks(write(tmp_path, TRACE[:-14])) == []


def test_line_numbers_of_late_tracebacks(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "CHUNK_BYTES", 64)
    (t,) = tracebacks(write(tmp_path, "filler filler filler\n" * 50 + TRACE))
    assert t.line == 51


def test_the_last_lines(tmp_path):
    path = write(tmp_path, "".join(f"{i}\n" for i in range(1, 100_000)) + "\n\n")
    assert [(x.number, x.text) for x in last_lines(path)] == [(n, str(n)) for n in (99_997, 99_998, 99_999)]
    assert last_lines(write(tmp_path, "")) == ()


def test_what_torchrun_always_says_is_no_last_line(tmp_path):
    summary = (
        "KeyError: 3\n======\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_03:21:30\n  host      : localhost\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : 3 (pid: 7)\n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n======\n"
    )
    assert [x.text.strip() for x in last_lines(write(tmp_path, summary))] == ["KeyError: 3", "exitcode  : 3 (pid: 7)"]


def test_a_missing_log(tmp_path):
    for read in (lambda p: scan(p, [BOOM]), tracebacks, last_lines, lambda p: list(lines(p))):
        with pytest.raises(RecordError, match="cannot read"):
            read(tmp_path / "none")
