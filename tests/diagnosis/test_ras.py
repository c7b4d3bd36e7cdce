"""What is said of a job that still runs: every kind of trouble that RAS can tell of, as JSON and as text, and what it cannot tell."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.records.nccl_ras import V24, V26, V28, V32, Comm, Job, in_json, in_text, job, ranks_of

from unhang.diagnosis.ras import Told, judge
from unhang.records.ras import parse

WAITS = (1, 0, 20, 20, 65)


def told(of_job, version=V28, *, form="json"):
    data = (json.dumps(in_json(version, of_job)) if form == "json" else "".join(in_text(version, of_job, True))).encode()
    return Told(report=parse(data, source="node1:28028"), bytes=len(data))


def twice(before, now, **how):
    return judge([told(before, **how), told(now, **how)], apart_s=10.0)


def later(of_job, by=1):
    """The same job, in which all ranks of all communicators have gone on."""
    comms = tuple(replace(c, ranks=tuple(replace(r, counts=tuple(n + by for n in r.counts)) for r in c.ranks)) for c in of_job.comms)
    return replace(of_job, comms=comms)


def all_but(one, of_job=None, counts=WAITS, back=(1, 0, 20, 20, 64)):
    """A job of one communicator in which one rank did not come."""
    ranks = tuple(replace(r, counts=back if r.number == one else counts) for r in ranks_of(2, 4))
    return Job(comms=(Comm(0xABC, ranks),))


def test_a_job_that_goes_on_has_nothing():
    verdict = twice(job(), later(job()))
    assert verdict.primary is None and not any(n.unread for n in verdict.not_examined)
    assert any("have ended" in n.what for n in verdict.not_examined)
    assert [i.kind for i in verdict.inputs] == ["ras", "ras"]


def test_the_rank_that_did_not_come():
    verdict = twice(all_but(5), all_but(5))
    found = verdict.primary
    assert (found.cause, found.standing, found.ranks, found.hosts) == ("unknown", "not-established", (5,), ("10.0.0.2",))
    assert "rank 5 of communicator 0000000000000abc (8 ranks) has launched 64 AllReduce, 65 by 7 others" in found.says
    assert "nobody launched anything for 10 s: the others wait for them" in found.says
    assert any("rank 5 (pid 2001 on 10.0.0.2)" in e.text for e in found.evidence)


def test_the_rank_that_waits_alone():
    verdict = twice(all_but(0, counts=(1, 0, 20, 20, 64), back=WAITS), all_but(0, counts=(1, 0, 20, 20, 64), back=WAITS))
    assert verdict.primary.ranks == (0,)
    assert "rank 0 of communicator 0000000000000abc (8 ranks) has launched 65 AllReduce, 64 by 7 others" in verdict.primary.says
    assert "they wait for the others there" in verdict.primary.says


def test_counts_that_differ_while_they_move_are_nothing():
    assert twice(all_but(5), later(all_but(5))).primary is None


def test_asked_once_nobody_is_named():
    verdict = judge([told(all_but(5))])
    assert verdict.primary.ranks == () and "asked once, that may be the moment" in verdict.primary.says
    assert verdict.primary.remedies[0].id == "ask-twice"
    healthy = judge([told(job())])
    assert healthy.primary is None and any(n.unread and n.what == "whether launches go on" for n in healthy.not_examined)


def test_another_collective_in_the_place_of_one():
    comms = tuple(replace(r, counts=(2, 0, 20, 20, 64) if r.number == 3 else WAITS) for r in ranks_of(2, 4))
    verdict = twice(Job(comms=(Comm(1, comms),)), Job(comms=(Comm(1, comms),)))
    found = verdict.primary
    assert (found.cause, found.standing, found.ranks) == ("collective-mismatch", "likely", (3,))
    assert "launched 106 operations" in found.says and "rank 3 called something else than the others" in found.says
    assert [r.id for r in found.remedies] == ["same-order", "check-each-call"]
    assert "2 Broadcast" in found.evidence[1].text and "1 Broadcast" in found.evidence[0].text


def test_half_and_half_nobody_is_blamed():
    ranks = tuple(replace(r, counts=(2, 0, 20, 20, 64) if r.number % 2 else WAITS) for r in ranks_of(1, 4))
    found = twice(Job(comms=(Comm(1, ranks),)), Job(comms=(Comm(1, ranks),))).primary
    assert (found.cause, found.standing, found.ranks) == ("collective-mismatch", "possible", ())


def test_everybody_came_and_nothing_moves():
    found = twice(job(), job()).primary
    assert (found.cause, found.standing, found.ranks) == ("unknown", "not-established", ())
    assert "all have launched equally many" in found.says and "RAS does not count what has ended" in found.says


@pytest.mark.parametrize("how", ["silent", "dead"])
def test_a_process_that_does_not_answer(how):
    lost = job().changed(9, missing=how)
    found = twice(lost, lost).primary
    assert "1 process of the job does not answer" in found.says and "pid 2001 on 10.0.0.2" in found.says
    assert ("given up as dead" in found.says) is (how == "dead")
    assert found.ranks == (9,) and found.hosts == ("10.0.0.2",)


def test_an_error_of_nccl_comes_first():
    broken = job().changed(2, error=6).changed(9, missing="dead")
    verdict = twice(broken, broken)
    assert "NCCL reports 'Remote process error' on rank 2" in verdict.primary.says and verdict.primary.ranks == (2,)
    assert any("does not answer" in c.says for c in verdict.contributing)


def test_ranks_of_a_smaller_communicator_are_no_ranks_of_the_job():
    across = tuple(replace(r, number=n, counts=(0, 0, 0, 0, 7 - n)) for n, r in enumerate(ranks_of(2, 8)[3::8]))
    jobs = Job(comms=(Comm(7, ranks_of(2, 8, counts=(0, 0, 0, 0, 9))), Comm(8, across)))
    found = twice(jobs, jobs).primary
    assert "of communicator 0000000000000008 (2 ranks)" in found.says and found.ranks == ()
    assert "10.0.0" in found.evidence[0].text or "10.0.0" in found.evidence[1].text


@pytest.mark.parametrize("version", [V24, V26, V28, V32])
def test_text_answers_say_the_same(version):
    found = twice(all_but(5), all_but(5), version=version, form="text").primary
    assert "has launched 64" in found.says or "has launched 105" in found.says
    assert (found.ranks, found.hosts) == ((5,), ("10.0.0.2",))


def test_text_of_a_healthy_job_has_no_counts_and_is_not_called_healthy():
    verdict = twice(job(), job(), version=V26, form="text")
    assert verdict.primary is None
    assert any(n.unread and "no counts" in n.why for n in verdict.not_examined)


def test_a_cut_answer_is_not_whole():
    data = "".join(in_text(V26, job(), True)).encode()
    cut = Told(report=parse(data[: len(data) * 2 // 3], source="x", cut="the connection broke"), bytes=len(data))
    assert any(n.unread and "connection broke" in n.why for n in judge([cut, cut]).not_examined)


def test_without_an_answer_there_is_nothing_to_judge():
    with pytest.raises(ValueError, match="no answer"):
        judge([])
