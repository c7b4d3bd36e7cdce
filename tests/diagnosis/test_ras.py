"""What is said of a job that still runs: every kind of trouble that RAS can tell of, as JSON and as text, and what it cannot tell."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import pytest
from tests.chinese import zh
from tests.ras.nccl_ras import V24, V26, V28, V32, Comm, Job, in_json, in_text, job, ranks_of
from tests.tables import for_each

from unhang.diagnosis.ras import Told, judge
from unhang.ras import parse

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
    assert zh(found.says).startswith("10 s 之内没有任何 rank 发起新的操作") and "RAS 不统计已经结束的操作" in zh(found.says)


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


# What two answers cannot be compared in ------------------------------------------------------------------------------------------------------------


@for_each("of_job", [job(), later(job()), all_but(1)])
@for_each("answers", [1, 2])
@for_each("form", ["json", "text"])
def test_what_stays_open_is_told_in_chinese_too(of_job, answers, form):
    verdict = judge([told(of_job, form=form)] * answers, apart_s=10.0 if answers == 2 else None)
    assert verdict.not_examined
    for left in verdict.not_examined:
        for says, says_zh in ((left.what, zh(left.what)), (left.why, zh(left.why))):
            assert re.search("[一-鿿]", says_zh) and "{" not in says_zh
            assert set(re.findall(r"\d+", says)) == set(re.findall(r"\d+", says_zh))


def unread(verdict):
    return [f"{n.what}: {n.why}" for n in verdict.not_examined if n.unread]


def named(of_job, *hashes):
    """The same communicators under other names."""
    return replace(of_job, comms=tuple(replace(c, hash=h) for c, h in zip(of_job.comms, hashes, strict=True)))


def allreduce(*counts, hash=1, **changes):
    ranks = tuple(replace(r, counts=(0, 0, 0, 0, n), **changes) for r, n in zip(ranks_of(1, len(counts)), counts, strict=True))
    return Job(comms=(Comm(hash, ranks),))


def together(*jobs):
    return Job(comms=tuple(c for j in jobs for c in j.comms))


def test_communicators_that_are_not_the_same_are_judged_as_if_asked_once():
    verdict = twice(allreduce(5, 5, 5, 5), allreduce(9, 9, 3, 9, hash=2))
    assert verdict.primary.ranks == () and "rank 2" in verdict.primary.says
    assert "the answer before does not have this communicator, and that may be the moment" in verdict.primary.says
    assert verdict.primary.remedies[0].id == "ask-twice"
    assert any("launches go on in communicator 0000000000000002" in u for u in unread(verdict))
    assert any("become of communicator 0000000000000001" in u for u in unread(verdict))


def test_a_new_communicator_beside_one_that_moves():
    verdict = twice(allreduce(5, 5, 5, 5), together(allreduce(6, 6, 6, 6), allreduce(9, 9, 3, 9, hash=2)))
    assert "of communicator 0000000000000002 (4 ranks) has launched 3 AllReduce" in verdict.primary.says and verdict.primary.ranks == ()


@pytest.mark.parametrize("gone", [True, False])
def test_a_communicator_in_one_answer_only_is_unknown(gone):
    both, one = together(allreduce(5, 5), allreduce(3, 3, hash=2)), allreduce(6, 6)
    verdict = twice(both, one) if gone else twice(one, later(both, by=2))
    assert verdict.primary is None and len(unread(verdict)) == 1
    assert "communicator 0000000000000002" in unread(verdict)[0]


def test_counts_that_fell_are_of_another_communicator():
    verdict = twice(allreduce(9, 9), allreduce(3, 3))
    assert verdict.primary is None and any("made anew" in u for u in unread(verdict))


def test_two_communicators_of_one_name_are_not_compared():
    pair = together(allreduce(5, 5), allreduce(5, 5))
    verdict = twice(pair, later(pair))
    assert verdict.primary is None and unread(verdict)[0].count("communicator 0000000000000001") == 2


@pytest.mark.parametrize(("form", "version"), [("json", V28), ("text", V26)])
def test_a_rank_that_stays_behind_while_the_others_go_on(form, version):
    verdict = twice(allreduce(5, 5, 4, 5), allreduce(6, 6, 4, 6), form=form, version=version)
    assert verdict.primary.ranks == (2,) and verdict.primary.hosts == ("10.0.0.1",)
    assert "has launched 4 AllReduce, 6 by 3 others; rank 2 launched nothing for 10 s, while ranks 0, 1 and 3 went on" in verdict.primary.says


def test_a_rank_that_comes_late_and_is_waited_for():
    found = twice(allreduce(9, 9, 3, 9), allreduce(9, 9, 4, 9)).primary
    assert found.ranks == (2,) and "ranks 0, 1 and 3 launched nothing for 10 s, while rank 2 went on" in found.says


def test_a_rank_that_was_not_behind_before_may_be_so_for_a_moment():
    found = twice(allreduce(5, 5, 5, 5), allreduce(6, 5, 6, 6)).primary
    assert found.ranks == () and "some of its ranks go on, and that may be the moment" in found.says


def test_a_rank_that_has_caught_up_is_nothing():
    verdict = twice(allreduce(5, 5, 4, 5), allreduce(5, 5, 5, 5))
    assert verdict.primary is None and not unread(verdict)


def test_a_communicator_that_rests_while_others_move_is_not_called_healthy():
    verdict = twice(together(allreduce(5, 5), allreduce(7, 7, hash=2)), together(allreduce(5, 5), allreduce(8, 8, hash=2)))
    assert verdict.primary is None
    (left,) = unread(verdict)
    assert "communicator 0000000000000001" in left and "nobody has launched anything in it for 10 s, while others go on" in left


def test_a_communicator_that_was_never_used_may_rest():
    verdict = twice(together(allreduce(0, 0), allreduce(7, 7, hash=2)), together(allreduce(0, 0), allreduce(8, 8, hash=2)))
    assert verdict.primary is None and not unread(verdict)


def test_a_kind_that_is_used_for_the_first_time_is_a_move():
    before, now = allreduce(5, 5), Job(comms=(Comm(1, tuple(replace(r, counts=(1, 0, 0, 0, 5)) for r in ranks_of(1, 2))),))
    verdict = twice(before, now)
    assert verdict.primary is None and not unread(verdict)


@pytest.mark.parametrize("after", [16, 20])
def test_ranks_that_are_only_counted(after):
    def halves(low, high):
        return allreduce(*([low] * 8), *([high] * 8))

    moved = twice(halves(5, 6), halves(after, after + 1), form="text", version=V26)
    assert moved.primary is None and not unread(moved)
    rests = twice(halves(5, 6), halves(5, 6), form="text", version=V26).primary
    assert "nobody launched anything for 10 s" in rests.says
    some = twice(halves(5, 6), halves(5, after), form="text", version=V26).primary
    assert "that may be the moment" in some.says and some.ranks == ()


@pytest.mark.parametrize(("form", "version"), [("json", V28), ("text", V24), ("text", V26)])
def test_a_communicator_that_is_being_set_up_in_both_answers(form, version):
    def starting(at):
        return together(allreduce(0, 0, 0, 0, hash=7, init=7), allreduce(at, at))

    found = twice(starting(5), starting(6), form=form, version=version).primary
    assert "being set up in both answers, 10 s apart" in found.says and found.ranks == ()
    done = twice(starting(5), together(allreduce(1, 1, 1, 1, hash=7), allreduce(6, 6)), form=form, version=version)
    assert done.primary is None
    assert judge([told(starting(5), form=form, version=version)]).primary is None


def test_communicators_without_counts_beside_one_that_moves():
    verdict = twice(all_but(5), later(all_but(5)), form="text", version=V26)
    assert verdict.primary is None and not unread(verdict)
    beside = together(all_but(5), allreduce(3, 3))
    verdict = twice(beside, later(beside), form="text", version=V26)
    assert verdict.primary is None and any("no counts" in u and "2 ranks" in u for u in unread(verdict))


def test_an_answer_without_communicators():
    nothing = Told(report=parse(json.dumps({"communicators": []}).encode(), source="x"), bytes=1)
    assert any("tells of no communicator" in u for u in unread(judge([nothing, nothing])))


# States of ranks -----------------------------------------------------------------------------------------------------------------------------------

both_forms = pytest.mark.parametrize(("form", "version"), [("json", V28), ("text", V24), ("text", V26)])


@both_forms
@pytest.mark.parametrize("moves", [True, False])
def test_a_rank_that_aborts(form, version, moves):
    before = allreduce(5, 5, 5, 5).changed(2, abort=True)
    found = twice(before, later(before, by=int(moves)), form=form, version=version).primary
    assert found.ranks == (2,) and found.standing == "not-established"
    assert "in communicator 0000000000000001 (4 ranks) rank 2 has status ABORT" in found.says and "ranks 0, 1 and 3 have status RUNNING" in found.says
    assert any("rank 2 (pid 1002 on 10.0.0.1)" in e.text for e in found.evidence)


def test_a_rank_that_aborts_is_named_at_once():
    now = allreduce(6, 6, 6, 6).changed(2, abort=True)
    assert twice(allreduce(5, 5, 5, 5), now).primary.ranks == judge([told(now)]).primary.ranks == (2,)


def test_all_abort():
    found = judge([told(allreduce(5, 5, 5, 5, abort=True))]).primary
    assert "ranks 0 to 3 have status ABORT" in found.says and found.ranks == ()


@both_forms
def test_a_rank_that_answers_and_is_no_member(form, version):
    left = allreduce(5, 5, 5, 5).changed(3, missing="left")
    found = twice(left, later(left), form=form, version=version).primary
    assert found.ranks == (3,) and "has not joined yet, or has left already" in found.says
    assert "it was the same 10 s before" in found.says
    assert not any("launched by all" in e.text for f in (found, *twice(left, left).contributing) for e in f.evidence)


def test_a_member_that_differs_since_a_moment_is_not_named():
    now = allreduce(6, 6, 6, 6).changed(1, finalize=True)
    found = twice(allreduce(5, 5, 5, 5), now).primary
    assert found.ranks == () and "it was not so in the answer before, and that may be the moment" in found.says
    assert judge([told(now)]).primary.ranks == ()
    assert twice(now, later(now)).primary.ranks == (1,)


def test_half_and_half_no_state_is_blamed():
    now = allreduce(6, 6, 6, 6).changed(1, finalize=True).changed(3, finalize=True)
    assert twice(now, now).primary.ranks == ()


def test_a_rank_that_is_not_told_of_is_missing():
    def short(n):
        raw = in_json(V28, allreduce(n, n, n, n))
        raw["communicators"][0]["ranks"].pop()
        raw["communicators"][0]["ranks_count"] = 3
        return Told(report=parse(json.dumps(raw).encode(), source="x"), bytes=1)

    verdict = judge([short(5), short(5)], apart_s=10.0)
    assert "of 1 rank of communicator 0000000000000001 (4 ranks) nothing is told" in verdict.primary.says
    still = verdict.contributing[0]
    assert "no rank that is told of" in still.says and "launched by 3 of 4 ranks; of the others nothing is told" in still.evidence[0].text
    assert judge([short(5), short(6)], apart_s=10.0).primary is not None


# What is claimed -----------------------------------------------------------------------------------------------------------------------------------


def test_asked_once_another_collective_is_only_possible():
    ranks = tuple(replace(r, counts=(2, 0, 20, 20, 64) if r.number == 3 else WAITS) for r in ranks_of(2, 4))
    found = judge([told(Job(comms=(Comm(1, ranks),)))]).primary
    assert (found.cause, found.standing, found.ranks, found.hosts) == ("collective-mismatch", "possible", (), ())
    assert "asked once, that may be the moment" in found.says and "none since" not in found.says
    assert [r.id for r in found.remedies] == ["ask-twice", "same-order", "check-each-call"]


def test_where_somebody_is_behind_nobody_says_that_all_are_equal():
    verdict = twice(all_but(5), all_but(5))
    assert not any("launched equally many" in f.says for f in (verdict.primary, *verdict.contributing))


@pytest.mark.parametrize("apart_s", [0.0, -3590.0])
def test_answers_that_are_not_in_order_are_refused(apart_s):
    with pytest.raises(ValueError, match="not newer"):
        judge([told(job()), told(job())], apart_s=apart_s)


@pytest.mark.parametrize("counts", [lambda i: {f"K{i}": 1}, lambda i: {"AllReduce": i + 1}], ids=["kinds", "counts"])
def test_work_grows_with_the_answer_and_not_with_its_square(counts):
    """Every rank with a kind, or a count, of its own. Steps of the interpreter are counted, not seconds."""

    def steps(n):
        def answer(more):
            ranks = [{"rank": i, "host": "h", "pid": i, "collective_counts": counts(i + more)} for i in range(n)]
            data = json.dumps({"communicators": [{"hash": "0x1", "size": n, "ranks": ranks}]}).encode()
            return Told(report=parse(data, source="x"), bytes=1)

        seen = 0

        def trace(frame, event, arg):
            nonlocal seen
            frame.f_trace_opcodes = True
            seen += 1
            return trace

        sys.settrace(trace)
        try:
            judge([answer(0), answer(0)], apart_s=1.0)
            judge([answer(0), answer(1)], apart_s=1.0)
        finally:
            sys.settrace(None)
        return seen

    steps(8)  # what is imported on the way
    assert steps(240) < 5 * steps(80)
