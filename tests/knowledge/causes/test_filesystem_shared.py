"""filesystem-shared: a whole host that misses a path, while the others find it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.tables import for_each

from unhang.frames import Frame
from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, Traceback, match
from unhang.model import Finding

CAUSE = catalogue.load()["filesystem-shared"]

MISSING = "[Errno 2] No such file or directory: '/srv/data/train.bin'"


def back(rank: int | None, text: str = MISSING, kind: str = "FileNotFoundError") -> Traceback:
    return Traceback(source="job.log", line=10 * (rank or 0) + 1, end=10 * (rank or 0) + 4, type=kind, text=text, frames=(), rank=rank)


def asked(*tracebacks: Traceback, printed: int = 4, hits: tuple[Hit, ...] = ()) -> Finding | None:
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: hits} if hits else {}, tracebacks=tracebacks, printed=frozenset(range(printed))))


def test_the_ranks_of_the_second_host_miss_a_path():
    finding = asked(back(2), back(3))
    assert finding is not None
    assert finding.ranks == (2, 3) and finding.standing == "likely"
    assert "/srv/data/train.bin" in finding.says and "ranks 0 and 1" in finding.says


@for_each(
    "tracebacks",
    [
        pytest.param((back(0), back(1), back(2), back(3)), id="all-miss-it"),
        pytest.param((back(0), back(1)), id="the-first-host-alone-is-a-wrong-path"),
        pytest.param((back(0),), id="rank-0-reads-for-all"),
        pytest.param((back(1, text="[Errno 2] No such file or directory: '/srv/data/part-1.bin'"),), id="a-name-with-the-rank-in-it"),
        pytest.param((back(3, text="[Errno 2] No such file or directory: '/srv/data/part-003.bin'"),), id="a-padded-name"),
        pytest.param((replace(back(1), frames=(Frame(file="/srv/job/data.py", line=7, name="__getitem__"),)),), id="a-sample"),
        pytest.param((back(1), back(2)), id="no-host-boundary"),
        pytest.param((back(2), back(3, text="[Errno 2] No such file or directory: '/srv/data/other.bin'")), id="different-paths"),
        pytest.param((back(2, kind="KeyError"), back(3, kind="KeyError")), id="no-path"),
        pytest.param((back(2), back(None)), id="a-rank-is-not-known"),
    ],
)
def test_what_is_no_missing_path_of_a_host(tracebacks):
    assert asked(*tracebacks) is None


def test_a_script_that_cannot_be_opened_counts_only_on_another_host():
    line = "/usr/bin/python3: can't open file '/srv/u/train.py': [Errno 2] No such file or directory"
    (hit,) = match(line, CAUSE.signatures, source="job.log", line=1)
    assert asked(hits=(hit,)) is None
    finding = asked(hits=(replace(hit, host="node8"),))
    assert finding is not None and finding.hosts == ("node8",) and "/srv/u/train.py" in finding.says


def test_one_rank_that_misses_what_the_others_passed(logs):
    alone = {"tracebacks": (back(1),), "printed": frozenset(range(4)), "world_size": 4}
    finding = CAUSE.in_logs(LogView(**alone))
    assert finding is not None and (finding.standing, finding.ranks) == ("possible", (1,))
    assert "rank 1 alone did not find /srv/data/train.bin, which ranks 0, 2 and 3 passed" in finding.says
    assert CAUSE.in_logs(LogView(**alone, timeouts=(logs.timeout(2, 5),))).standing == "likely"
    assert CAUSE.in_logs(LogView(**{**alone, "printed": frozenset((1,))})) is None
