"""Messages whose end is told in another way: batches of torch before 2.5, and XCCL."""

from __future__ import annotations

import pickle

import pytest
from tests.flight import jobs
from tests.flight.jobs import parse

from unhang.flight.coalesced import ENDLESS, SHIFTED, marks_batches, told_as_usual
from unhang.flight.dump_file import DumpFile
from unhang.flight.recording import recording_of

DEFAULT = ("0", "default_pg")


class Recorder:
    """One rank's ring. Before torch 2.5 a batch takes a number of the collectives; a message alone has its own."""

    def __init__(self, *, version="2.1", backend="nccl"):
        self.version, self.backend = version, backend
        self.entries, self.collectives, self.messages = [], 0, 0

    def add(self, op, state, *, message=False):
        n = len(self.entries)
        made = jobs.entry(n, DEFAULT, self.collectives, op, 4, 20, state, t=1000 * n, backend=self.backend) | {
            "p2p_seq_id": self.messages,
            "pg_id": 0,
        }
        if self.version != "2.1":
            made["is_p2p"] = message
        else:
            del made["is_p2p"]
        self.entries.append(made)

    def collective(self, state="completed"):
        self.collectives += 1
        self.add("all_reduce", state)

    def alone(self, state="completed"):
        self.messages += 1
        self.add("send 0->1", state, message=True)

    def batch(self, state="completed"):
        self.collectives += 1
        self.add("send 0->1", "scheduled", message=True)
        self.add("recv 0<-1", "scheduled", message=True)
        self.add("coalesced", state)

    def dump(self, lost=0):
        status = {"0": {"last_enqueued_collective": self.collectives, "last_completed_collective": -1}}
        return jobs.dump(self.entries[lost:], {"0": ("default_pg", [0, 1])}, version=self.version, pg_status=status)


def of(recorder, **more):
    return recording_of(DumpFile(raw=recorder.dump(**more)), rank=0, source="x")


def made(*steps, **more):
    recorder = Recorder(**more)
    for step, state in steps:
        getattr(recorder, step)(state)
    return recorder


def test_a_batch_that_is_over_is_not_pending():
    recorder = made(("collective", "completed"), ("batch", "completed"), ("batch", "completed"), ("collective", "completed"))
    found = of(recorder)
    (track,) = found.tracks
    assert not found.messages
    assert (track.first, track.last, [found.calls[i] for i in track.ids]) == (1, 2, ["all_reduce 4 Float"] * 2)
    assert found.counters == {"0": 2} and found.cut is None


def test_a_batch_that_is_not_over_is():
    recorder = made(("batch", "completed"), ("collective", "completed"), ("batch", "started"))
    found = of(recorder)
    assert [(m.kind, m.number) for m in found.messages] == [("send", 2), ("recv", 2)]
    assert found.tracks[0].first == 1


def test_ranks_with_more_batches_have_the_same_numbers():
    ends, middle = made(("collective", "completed"), ("batch", "completed"), ("collective", "started")), Recorder()
    for step in ("collective", "batch", "batch", "batch"):
        getattr(middle, step)()
    middle.collective("started")
    assert [of(r).tracks[0].last for r in (ends, middle)] == [2, 2]


def test_a_message_alone_ends_by_itself():
    found = of(made(("alone", "completed"), ("alone", "started"), ("collective", "completed"), ("batch", "completed")))
    assert [(m.kind, m.number) for m in found.messages] == [("send", 2)]


def test_a_lost_beginning_makes_the_numbers_worthless():
    recorder = made(("batch", "completed"), ("collective", "completed"), ("batch", "completed"), ("collective", "completed"))
    assert of(recorder, lost=3).cut == SHIFTED


def test_one_of_its_two_numbers_may_be_missing():
    recorder = made(("collective", "completed"), ("batch", "completed"), ("collective", "completed"))
    recorder.entries[-1] |= {"seq_id": None}
    assert of(recorder).tracks[0].last == parse(pickle.dumps(recorder.dump())).calls["0"][-1].seq == 2


def test_objects_say_the_same():
    recorder = made(("collective", "completed"), ("batch", "completed"), ("collective", "completed"), ("batch", "started"))
    calls = parse(pickle.dumps(recorder.dump())).calls["0"]
    assert [(c.op, c.seq, c.done) for c in calls if not c.is_p2p] == [("all_reduce", 1, True), ("all_reduce", 2, True)]
    assert [(c.seq, c.done) for c in calls if c.op.startswith("send")] == [(1, True), (2, False)]


def test_xccl_never_says_that_a_message_is_over():
    recorder = Recorder(version="2.10", backend="xccl")
    recorder.collective()
    recorder.add("send 0->1", "scheduled", message=True)
    recorder.collective("started")
    found = of(recorder)
    assert not found.messages and found.untold == ENDLESS and found.tracks[0].last == 2
    assert parse(pickle.dumps(recorder.dump())).untold == ENDLESS


@pytest.mark.parametrize(
    ("version", "marks"), [("1.4", False), ("2.1", False), ("2.4", True), ("2.9", True), ("2.10", True), ("", False), ("x", False)]
)
def test_versions(version, marks):
    assert marks_batches(version) is marks


def test_other_dumps_stay_as_they_are():
    raw = made(("collective", "completed"), ("alone", "completed")).dump()
    assert told_as_usual(raw).raw is raw
    raw["entries"].insert(0, 7)
    assert told_as_usual(raw).raw is raw
