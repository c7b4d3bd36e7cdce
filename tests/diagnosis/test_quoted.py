"""What is quoted of the few ranks that an outcome names: their calls, the lines of the user, and how a call stands."""

from __future__ import annotations

import pickle

import pytest
from tests.flight import jobs
from tests.flight.test_outcome import ALL4, gloo, history, last

from unhang.diagnosis import quoted
from unhang.diagnosis.quoted import Quoted
from unhang.flight.read_all import record_all
from unhang.flight.wait_graph import judge


@pytest.fixture
def read(tmp_path):
    """What is quoted of dumps, one for each rank."""

    def quote(dumps):
        for rank, dump in dumps.items():
            (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        recorded = record_all(sorted(tmp_path.iterdir()))
        return Quoted(recorded.recordings, judge(recorded.recordings, others=recorded.without))

    return quote


def waiting(*, ranks=3):
    return {r: jobs.dump([*history(3), *([last(4, "started", t=9_000_000)] if r < ranks else [])], ALL4) for r in range(4)}


def test_the_call_that_is_waited_in_and_the_last_one_are_found(read):
    found = read(waiting())
    assert (found.waited(0).seq, found.waited(0).done, found.last(3).seq, found.oldest(3)) == (4, False, 3, None)
    assert found.waited(3) is None and found.last(7) is None and found.place(3) is None
    assert "(waits)" in found.pending(0)[0].text
    assert found.pending(3) == [] and found.newest(3)[0].text.startswith("rank 3: last call #3 ")
    assert found.newest(3)[0].source.endswith("nccl_trace_rank_3")


def test_frames_are_read_once_and_of_a_few_ranks_only(read, monkeypatch):
    found, asked = read(waiting()), []
    monkeypatch.setattr(quoted, "flight", lambda recording: asked.append(recording.rank))
    monkeypatch.setattr(quoted, "QUOTED", 1)
    for rank in (0, 0, 1, 2, 3):
        found.flight(rank)
    assert asked == [0, 1, 2, 3]
    found._recordings[4] = found._recordings[0]
    assert found.flight(4) is None and len(asked) == 4


def test_gloo_calls_over_what_has_failed_too(read):
    assert read(waiting()).over() == "done"


def test_what_gloo_calls_over_is_quoted_so(read):
    found = read({r: gloo([1, 2, 3], members=[0, 1]) for r in range(2)})
    assert found.on_gloo() and found.over() == "over, well or not"
    assert quoted.at(None) == "" and quoted.at(found.last(0)).startswith(" at ")
