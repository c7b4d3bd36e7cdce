"""Whatever is searched, however it is cut, by whichever engine: the same hits, and those that reading every line would give."""

from __future__ import annotations

import io
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unhang.logs import NEAR_LINES, Needles, Signature, Stopped, blocks, line_matcher, parse, read, search
from unhang.logs.needles import Finder, Hyperscan
from unhang.logs.search import Part, read_part
from unhang.logs.signature import groups_of

PLAIN = Signature(needle="needle", keep=10_000)
NUMBERED = Signature(needle="needle", pattern=r"needle (?P<n>\d+)", keep=10_000)
NEAR = Signature(needle="haystack", near=r"needle 7", keep=10_000)
UNLESS = Signature(needle="haystack", unless=r"needle", keep=10_000)
FEW = Signature(needle="needle", pattern=r"needle \d", keep=4)
OVER = Signature(needle="haystack", over=r"needle 7", keep=10_000)
SIGNATURES = (PLAIN, NUMBERED, NEAR, UNLESS, OVER)

PIECES = st.sampled_from(
    [
        "needle",
        "needle 7",
        "needle 1 needle 2",
        "needle 42 ",
        "haystack",
        "[rank3]: needle 1",
        "\x1b[31mneedle 5\x1b[0m",
        "x",
        " 5%|# |",
        "é",
        "\udcff",
    ]
)
ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\r"])
LOGS = st.lists(st.tuples(PIECES, ENDS), max_size=60).map(lambda parts: "".join(a + b for a, b in parts).encode("utf-8", "surrogateescape"))


def naive(data: bytes) -> list[tuple[Signature, int, str]]:
    """Every state of every line, one by one; the neighbourhood counts those that are not empty."""
    states = [(number, state) for number, line in enumerate(data.split(b"\n"), 1) for state in line.split(b"\r") if state]
    texts = [parse(state).text for _, state in states]
    found = []
    for i, (number, _) in enumerate(states):
        around = "\n".join(texts[max(0, i - NEAR_LINES) : i + NEAR_LINES + 1])
        behind = "\n".join(texts[i + 1 : i + NEAR_LINES + 1])
        found += [(s, number, texts[i]) for s in SIGNATURES if groups_of(s, texts[i], around, behind) is not None]
    return found


def seen(found) -> list[tuple[Signature, int, str]]:
    return [(h.signature, h.line, h.text) for h in found.hits]


def key(hit):
    return (hit[1], SIGNATURES.index(hit[0]), hit[2])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=LOGS, block=st.integers(1, 200), waiting=st.integers(1, 4))
def test_blocks_of_any_size_and_both_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, block: int, waiting: int):
    path = tmp_path / "log"
    path.write_bytes(data)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    monkeypatch.setattr(search, "_WAITING", waiting)
    monkeypatch.setattr(search, "_HELD", waiting)
    expected = sorted(naive(data), key=key)
    for engine in (Hyperscan, Finder):
        needles = Needles(SIGNATURES, make_engine=engine)
        whole = read(path, needles)
        assert sorted(seen(whole), key=key) == expected
        assert whole.bytes == len(data)
        with ThreadPoolExecutor(3) as pool:
            assert seen(read(path, needles, pool=pool)) == seen(whole)
        assert seen(read(io.BytesIO(data), needles, source="log")) == seen(whole)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=LOGS, block=st.integers(1, 200), span=st.integers(1, 6), keep=st.integers(1, 6), newest=st.booleans())
def test_parts_that_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, block: int, span: int, keep: int, newest: bool):
    """Read in parts side by side: what reading it whole gives, of signatures that are kept in part as well."""
    path = tmp_path / "log"
    path.write_bytes(data)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    monkeypatch.setattr(search, "_WAITING", 2)
    few = (PLAIN._replace(keep=keep, newest=newest), NUMBERED._replace(keep=keep), NEAR)
    needles, size = Needles(few), span * block
    joined = Part(source=str(path))
    for part in (read_part(path, needles, span=range(at, at + size)) for at in range(0, len(data), size)):
        joined.append(pickle.loads(pickle.dumps(part)))
    whole = read(path, needles)
    assert joined.as_log() == whole
    all_hits = seen(read(path, Needles([PLAIN])))
    kept = [h[1:] for h in seen(whole) if h[0] == few[0]]
    first = 0 if newest else (keep + 1) // 2
    assert kept == [h[1:] for i, h in enumerate(all_hits) if i < first or i >= max(first, len(all_hits) - (keep - first))]


def test_the_first_and_the_last_are_kept(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_text("".join(f"needle {n % 10} of line {n}\n" for n in range(1, 1001)))
    for block in (100, 1000, 10**6):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
        assert [h.line for h in read(path, Needles([FEW])).hits] == [1, 2, 999, 1000]


def test_what_does_not_match_does_not_crowd_out_what_does(tmp_path):
    """One line of a kind among thousands that share its needle: a flood in a kernel log."""
    path = tmp_path / "log"
    path.write_text("needle x\n" * 10_000 + "needle 7\n" + "needle x\n" * 10_000)
    assert [h.line for h in read(path, Needles([FEW])).hits] == [10_001]


def test_a_progress_bar_is_no_neighbourhood(tmp_path):
    """Its states are lines: what stood far before is not near."""
    path = tmp_path / "log"
    path.write_text("needle 7\r" + "50%\r" * 50_000 + "haystack\r" + "60%\r" * 1000)
    assert not read(path, Needles([NEAR])).hits
    path.write_text("needle 7\r" + "50%\r" * 5 + "haystack\r")
    assert len(read(path, Needles([NEAR])).hits) == 1


def test_a_log_of_carriage_returns_takes_no_time(tmp_path):
    path = tmp_path / "log"
    path.write_text("haystack\r" * 100_000 + "Traceback (most recent call last):\r" * 20_000)
    assert len(read(path, Needles([NEAR, UNLESS])).hits) <= UNLESS.keep


def test_hits_are_bounded_in_all(tmp_path):
    path = tmp_path / "log"
    path.write_text("needle 7 haystack\n" * 1000)
    found = read(path, Needles(SIGNATURES), at_most=20)
    assert len(found.hits) <= 20 and {found.hits[0].line, found.hits[-1].line} == {1, 1000}
    newest = read(path, Needles([PLAIN._replace(newest=True)]), at_most=4)
    assert [h.line for h in newest.hits] == [997, 998, 999, 1000]


def test_it_stops_when_told(tmp_path):
    path = tmp_path / "log"
    path.write_text("needle 7\n")
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        read(path, Needles([PLAIN]), stop=stop.is_set)


def test_a_line_without_an_end(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as f:
        f.truncate(100_000_000)
        f.seek(50_000_000)
        f.write(b" needle 7 ")
        f.seek(0, io.SEEK_END)
        f.write(b"\nneedle 8\n")
    hits = read(path, Needles([NUMBERED])).hits
    assert [(h.line, h.groups["n"]) for h in hits] == [(1, "7"), (2, "8")] and all(len(h.text) < 3 * line_matcher.MAX_TEXT for h in hits)


def test_ranks_that_printed(tmp_path):
    path = tmp_path / "log"
    path.write_text("[rank0]: a\n[rank12]: b\n[rank1023]: c\n[rank]: d\n")
    assert read(path, Needles([PLAIN])).ranks == {0, 12, 1023}
    for alone in (9, 10, 99, 100, 999):
        path.write_text(f"[rank{alone}]: a\n")
        assert read(path, Needles([PLAIN])).ranks == {alone}
    named = tmp_path / "rank5.log"
    named.write_text("a\n")
    assert read(named, Needles([PLAIN])).ranks == {5}


def test_a_log_that_is_cut_short_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_text("needle 7\n" * 100)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    real = blocks.os.fstat

    def longer(fd):
        path.write_text("needle 7\n")
        return type("Stat", (), {"st_size": 900})

    monkeypatch.setattr(blocks.os, "fstat", longer)
    hits = read(path, Needles([NUMBERED])).hits
    monkeypatch.setattr(blocks.os, "fstat", real)
    assert [h.line for h in hits] == [1]


def test_times_come_from_the_line_or_from_the_one_before(tmp_path):
    path = tmp_path / "log"
    path.write_text("2026-11-03 10:00:01,500 - INFO - start\nneedle 7\n[2026-11-03 10:00:09] needle 8\n")
    first, second = read(path, Needles([NUMBERED])).hits
    assert second.at_s - first.at_s == 7.5


def test_long_lines_are_shown_around_the_needle(tmp_path):
    path = tmp_path / "log"
    path.write_text("a" * 10_000 + " needle 7 " + "b" * 10_000 + "\n")
    (hit,) = read(path, Needles([NUMBERED])).hits
    assert re.fullmatch(r"…(?:a+ )?needle 7 b+…", hit.text) and len(hit.text) < line_matcher.MAX_TEXT + 10
