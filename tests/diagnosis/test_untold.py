"""What is said where recorders do not tell enough: whose dump would be needed, and how it is had."""

from __future__ import annotations

import pickle

import pytest
from tests.chinese import zh
from tests.flight import jobs
from tests.flight.test_outcome import ALL4, history, last

from unhang.diagnosis.quoted import Quoted
from unhang.diagnosis.untold import ONE_LOOK, STACKS, Untold
from unhang.flight.read_all import record_all
from unhang.flight.wait_graph import judge


@pytest.fixture
def told(tmp_path):
    def tell(dumps, **more):
        for rank, dump in dumps.items():
            (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        recorded = record_all(sorted(tmp_path.iterdir()), **more)
        outcome = judge(recorded.recordings, others=recorded.without)
        return Untold(recorded, recorded.recordings, outcome, Quoted(recorded.recordings, outcome))

    return tell


def waiting(ranks):
    return {r: jobs.dump([*history(3), last(4, "started", t=9_000_000)], ALL4) for r in ranks}


def test_a_rank_without_a_dump_is_asked_for(told):
    found = told(waiting((0, 1, 2))).finding()
    assert (found.cause, found.standing, found.ranks) == ("unknown", "not-established", (0, 1, 2))
    assert "whether anybody is missing cannot be told: of rank 3 there is no dump" in found.says
    assert "没有 rank 3 的转储" in zh(found.says) and [r.id for r in found.remedies] == ["all-dumps"]


def test_a_dump_that_may_not_be_read_is_to_be_made_readable(told, tmp_path):
    found = told(waiting((0, 1, 2)), closed=[tmp_path / "nccl_trace_rank_3"]).finding()
    assert "the dump of rank 3 could not be read: permission denied" in found.says
    assert [r.id for r in found.remedies] == ["readable-dumps"] and found.remedies[0].command.endswith("nccl_trace_rank_3")


def test_stacks_are_left_where_nobody_waits(told):
    left = told({r: jobs.dump(history(3), ALL4) for r in range(4)}).left()
    assert [n.what for n in left] == [STACKS] and "none of the 4 ranks with a dump waits in a recorded call" in left[0].why


def test_for_how_long_somebody_waits_is_not_known(told):
    assert [n.why for n in told(waiting((0, 1, 2))).left()] == [ONE_LOOK]
