"""Signatures searched in logs: in bounded memory, with line numbers, ranks and groups."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.logs.scanned import scan

from unhang.errors import RecordError
from unhang.knowledge import catalogue
from unhang.logs import Needles, Signature, blocks, line_matcher, match, read
from unhang.logs.line import parse, wanted_lines

# The package has a function of the same name.
BOOM = Signature(needle="boom", pattern=r"boom (?P<n>\d+)")


def write(tmp_path, data):
    path = tmp_path / "log"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_hits_carry_line_rank_and_groups(tmp_path):
    path = write(tmp_path, b"one\r\n[rank2]: boom 7\nboom without a number\n\xff\xfe boom 8\n")
    hits = scan(path, [BOOM], source="logs/x")
    assert [(h.line, h.rank, h.groups["n"], h.source) for h in hits] == [(2, 2, "7", "logs/x"), (4, None, "8", "logs/x")]


def test_a_line_is_taken_apart_only_if_it_may_match(tmp_path, monkeypatch):
    """Behind its prefixes a pattern with an anchor begins where no word goes on."""
    parsed = []
    monkeypatch.setattr(line_matcher, "parse", lambda raw, **more: parsed.append(raw) or parse(raw, **more))
    noise = "".join(f"[rank1]: MainFault: boom {n}\n" for n in range(500))
    path = write(tmp_path, f"{noise}2026-11-03 02:16:07,507 [rank2]: Fault: boom 7\n{noise}Fault: boom 8\n{noise}")
    hits = scan(path, [Signature(needle="Fault: ", pattern=r"^[Ff]ault: boom (?P<n>\d+)")])
    assert [(h.rank, h.groups["n"]) for h in hits] == [(2, "7"), (None, "8")]
    assert sum(b"MainFault" in raw for raw in parsed) < 100


def test_a_line_is_taken_apart_once_for_all_causes_around_it(tmp_path, monkeypatch):
    parsed = []
    monkeypatch.setattr(line_matcher, "parse", lambda raw, **more: parsed.append(raw) or parse(raw, **more))
    text = "".join(f"{line.rstrip()}\n" for c in catalogue.load().values() for line in (*c.hits, *c.near_misses)) * 4
    read(write(tmp_path, text), Needles(catalogue.signatures()))
    assert len(parsed) < 1.5 * text.count("\n")


def test_an_error_behind_a_progress_bar_is_found_in_its_line(tmp_path):
    path = write(tmp_path, "start\n\r 1%|\r50%|#### | boom 1\n")
    assert [(h.line, h.text.split()[-1]) for h in scan(path, [BOOM])] == [(2, "1")]


HARMLESS = "2026-11-03 02:16:07,507 - INFO - trainer.py:412 - step 7 loss 0.1\n"
MOST_TIMES = 12
SYMBOL = "ImportError: /srv/lib/a_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs\n"


@pytest.mark.parametrize(
    "hostile",
    [
        SYMBOL,
        "".join(SYMBOL.replace("311", f"{n:03}") for n in range(1000)),
        "RuntimeError: x\nRuntimeError: y\nTraceback (most recent call last):\n" + "\r" * 6000,
    ],
    ids=["equal lines", "other numbers", "empty lines"],
)
def test_hostile_text_takes_little_more_time_than_ordinary_text(tmp_path, hostile):
    """CPU time against what it takes to take every line of a log of the same size apart."""
    needles, size = Needles(catalogue.signatures()), 600_000

    def seconds(search: Callable[[Path], object], text: str) -> float:
        path = write(tmp_path, (text * (size // len(text) + 1))[:size])
        began = time.process_time()
        search(path)
        return time.process_time() - began

    # Patterns are compiled when they are first used.
    read(write(tmp_path, hostile[:10_000]), needles)
    assert seconds(lambda path: read(path, needles), hostile) < MOST_TIMES * seconds(
        lambda path: [*wanted_lines(path, lambda number, raw: True)], HARMLESS
    )


def test_only_what_belongs_to_the_incident_is_read(tmp_path):
    path = write(tmp_path, "boom 1\nboom 2\nboom 3\n")
    assert [h.groups["n"] for h in scan(path, [BOOM], limit_bytes=len("boom 1\nboom 2\n"))] == ["1", "2"]


def test_lines_across_blocks_keep_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 32)
    path = write(tmp_path, "".join(f"line {i} {'boom 1' if i % 20 == 0 else ''}\n" for i in range(1, 200)))
    assert [h.line for h in scan(path, [BOOM])] == [i for i in range(1, 200) if i % 20 == 0]


def test_hits_of_one_signature_are_bounded(tmp_path):
    hits = scan(write(tmp_path, "boom 1\n" * 1000), [BOOM])
    assert [h.line for h in hits] == [*range(1, 9), *range(993, 1001)]


def test_a_log_of_hundreds_of_kinds_of_messages_is_only_sampled(tmp_path):
    """A line with all of them costs each signature as much as the line is long."""
    kinds = [Signature(needle=f"boom{n}", pattern=rf"boom{n} (?P<n>\d+)") for n in range(201)]
    line = " ".join(f"boom{n} {n}" for n in range(201)) + "\n"
    ordinary = read(write(tmp_path, line.replace("boom200", "bang") * 5), Needles(kinds))
    everything = read(write(tmp_path, line * 20), Needles(kinds))
    assert [r.sampled for r in (ordinary, everything)] == [False, True]
    assert len({h.signature for h in everything.hits}) == 201


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


def test_a_missing_log(tmp_path):
    with pytest.raises(RecordError, match="cannot read"):
        scan(tmp_path / "none", [BOOM])


def ranks_of(tmp_path, name, text, **options):
    path = tmp_path / name
    path.write_text(text)
    log = read(path, Needles([BOOM]), **options)
    return [h.rank for h in log.hits], set(log.ranks)


def test_a_files_name_tells_the_rank_where_its_lines_do_not_say_otherwise(tmp_path):
    assert ranks_of(tmp_path, "rank_3.log", "boom 1\n[rank3]: boom 2\n") == ([3, 3], {3})
    # Up to torch 2.2 the number in brackets counts within a group.
    assert ranks_of(tmp_path, "rank_3.log", "[Rank 1] boom 1\n") == ([3], {3})


@pytest.mark.parametrize("other", ["[rank1]: boom 2\n", "[rank1]: nothing\n[rank0]: nothing\n"])
def test_a_rank_in_the_name_of_a_merged_log_is_a_nodes(tmp_path, other):
    ranks, written = ranks_of(tmp_path, "node_rank0_rank0.log", f"boom 1\n{other}")
    assert ranks[0] is None and ranks[1:] in ([], [1]) and 1 in written
    assert ranks_of(tmp_path, "rank_0.log", "[Rank 0] boom 1\n[Rank 1] boom 2\n")[0] == [0, 1]


def test_what_is_known_of_a_log_stands_over_its_lines(tmp_path):
    assert ranks_of(tmp_path, "any.log", "[rank1]: boom 1\nboom 2\n", rank=5)[0] == [5, 5]


def test_roots_tell_the_first_steps_behind_them(tmp_path):
    context = Signature(needle="boom", role="context")
    path = write(tmp_path, "step 1\nboom 1\nstep 2\nother\nstep 2\nwandb: step 9\nstep 3\nstep 4\n")
    assert [h.steps for h in scan(path, [BOOM])] == [("step 2", "step 3")]
    assert [h.steps for h in scan(path, [context])] == [()]


def test_what_stands_beside_is_captured_as_well():
    beside = Signature(needle="boom", near=r"of (?P<who>\w+)")
    assert match("boom", [beside], source="s", around="of node7")[0].groups == {"who": "node7"}
