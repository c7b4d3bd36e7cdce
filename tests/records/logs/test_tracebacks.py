"""Tracebacks wherever and however they stand."""

from __future__ import annotations

from unhang.records.logs import Needles, blocks, read

# The package has a function of the same name.
TRACE = (
    'Traceback (most recent call last):\n  File "/p/train.py", line 12, in main\n    work()\n    ~~~~^^\n  File "/p/data.py", line 3, in work\n    '
    'raise ValueError("x")\nValueError: x\n'
)


def tracebacks(tmp_path, text, **options):
    path = tmp_path / "log"
    path.write_bytes(text.encode())
    return read(path, Needles([]), **options).tracebacks


def test_a_traceback(tmp_path):
    (t,) = tracebacks(tmp_path, f"before\n{TRACE}after\n", rank=1)
    assert (t.type, t.text, t.line, t.end, t.rank) == ("ValueError", "x", 2, 8, 1)
    assert [(f.file, f.line, f.name, f.code) for f in t.frames] == [
        ("/p/train.py", 12, "main", "work()"),
        ("/p/data.py", 3, "work", 'raise ValueError("x")'),
    ]


def test_a_traceback_behind_a_progress_bar(tmp_path):
    assert len(tracebacks(tmp_path, "\r50%|##  |" + TRACE)) == 1


def test_of_a_chain_the_last_exception_counts(tmp_path):
    chain = TRACE + "\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE.replace("ValueError: x", "KeyError: 'y'")
    (t,) = tracebacks(tmp_path, chain)
    assert t.says == "KeyError: 'y'"


def test_two_that_only_follow_each_other_are_two(tmp_path):
    assert len(tracebacks(tmp_path, TRACE + TRACE)) == 2


def test_interleaved_ranks_are_put_apart(tmp_path):
    a = [f"[rank0]: {x}" for x in TRACE.splitlines()]
    b = [f"[rank1]: {x}" for x in TRACE.replace("ValueError: x", "KeyError: 1").splitlines()]
    found = tracebacks(tmp_path, "\n".join(x for pair in zip(a, b, strict=True) for x in pair) + "\n")
    assert {(t.rank, t.type, len(t.frames)) for t in found} == {(0, "ValueError", 2), (1, "KeyError", 2)}


def test_a_spawned_process_is_named_by_its_parent(tmp_path):
    assert tracebacks(tmp_path, "\n-- Process 3 terminated with the following error:\n" + TRACE)[0].rank == 3


def test_a_cut_traceback_is_none(tmp_path):
    assert tracebacks(tmp_path, TRACE[:-14]) == ()


def test_line_numbers_of_late_tracebacks(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    (t,) = tracebacks(tmp_path, "filler filler filler\n" * 50 + TRACE)
    assert t.line == 51
