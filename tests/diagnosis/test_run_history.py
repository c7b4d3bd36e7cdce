"""Runs without an incident that can be read: healthy only where their end says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.chinese import zh
from tests.tables import for_each

from unhang.diagnosis import verdict
from unhang.knowledge import catalogue
from unhang.records import incident_view

STARTED = '{"s":0.1,"event":"Started","attempt":0,"pid":7,"command":["x"]}\n'
OPENED = '{"s":3.5,"event":"Opened","incident":1,"kind":"failure"}\n'


def finished(code):
    return f'{{"s":12.0,"event":"Finished","exitcode":{code},"attempts":1,"incidents":0,"elapsed_s":12.0,"details":{{}}}}\n'


@pytest.fixture
def went(build, lab):
    def went(events):
        rundir = build().rundir
        if events is not None:
            rundir.events.write_text(events)
        return lab.judge(rundir)

    return went


def test_an_end_with_0_is_well(went):
    v = went(STARTED + finished(0))
    assert v.primary is None and not v.not_examined and {i.source for i in v.inputs} == {"run.json", "events.jsonl"}


def test_an_interruption_is_said(went):
    v = went(STARTED + finished(130))
    assert v.primary is None and any("interrupted after 12 s" in n.why for n in v.not_examined)


@pytest.mark.parametrize("code", [129, 130, 143])
def test_an_interruption_by_any_signal_is_one(went, code):
    v = went(STARTED + finished(code).replace('"details"', '"interrupted":true,"details"'))
    assert v.primary is None and any("interrupted after 12 s" in n.why for n in v.not_examined)


@pytest.mark.parametrize("told", ["", '"interrupted":false,'])
def test_a_training_that_ended_as_if_it_was_interrupted_was_not(went, told):
    v = went(STARTED + finished(143).replace('"details"', told + '"details"'))
    assert "ended with exit code 143" in v.primary.says and not any("interrupted" in n.why for n in v.not_examined)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (STARTED + finished(3), "ended with exit code 3; no incident of it was recorded"),
        (STARTED + OPENED + finished(3), "ended with exit code 3; the records of incident 1 are missing"),
        (STARTED + OPENED + finished(0), "the records of incident 1 are missing"),
        (STARTED, "no end of the run is recorded: unhang itself was killed, or the run still goes on"),
        (STARTED + '{"s":12.0,"event":"Fini', "no end of the run is recorded"),
        ("", "no end of the run is recorded"),
        (None, "no end of the run is recorded"),
    ],
)
def test_anything_else_is_not_well(went, events, words):
    v = went(events)
    assert (v.primary.cause, v.primary.standing) == ("unknown", "not-established") and words in v.primary.says


def test_a_damaged_incident_is_said_and_the_one_before_is_judged(build, lab):
    b = build().rank(0, enqueued=13, completed=12).rank(1, enqueued=12, activity=lab.STOPPED, answered=False)
    rundir = b.write()
    rundir.events.write_text(OPENED + OPENED.replace(":1,", ":2,") + OPENED.replace(":1,", ":3,") + finished(1))
    rundir.incident_dir(2).mkdir()
    rundir.incident(2).write_text("{")
    v = lab.judge(rundir)
    said = {n.what: n.why for n in v.not_examined}
    assert v.primary.cause == "process-stuck" and "damaged" in said["incident 2"] and "missing" in said["incident 3"]
    rundir.incident(1).write_text("{")
    v = lab.judge(rundir)
    assert (
        "incidents 1, 2 are damaged, the records of incident 3 are missing" in v.primary.says
        and "damaged" in {n.what: n.why for n in v.not_examined}["incident 1"]
    )


def test_a_verdict_that_was_drawn_stands_in_for_a_damaged_incident(build, lab):
    rundir = build().rank(0, enqueued=13, completed=12).rank(1, enqueued=12, activity=lab.STOPPED, answered=False).write()
    rundir.events.write_text(OPENED + finished(1))
    drawn = verdict.of_picture(incident_view.load(rundir, 1, signatures=catalogue.signatures()))
    rundir.write(rundir.incident_verdict(1), drawn)
    rundir.incident(1).write_text('{"x')
    v = lab.judge(rundir)
    # Which processes they were is lost with the incident.
    assert replace(v.primary, remedies=()) == replace(drawn.primary, remedies=())
    assert drawn.primary.remedies[0].command == "kill -CONT 4001" and v.primary.remedies == (catalogue.get("process-stuck").remedy("continue-it"),)
    assert "damaged" in v.not_examined[0].why and "drawn during the run (incidents/1/verdict.json)" in v.not_examined[0].why
    # Both are gone.
    rundir.incident_verdict(1).write_text('{"x')
    rundir.write_bytes(rundir.log(2, rank=0, stream="err"), b"x\n")
    v = lab.judge(rundir)
    assert v.primary.cause == "unknown" and v.primary.says.endswith("the records of incident 1 are damaged")
    assert [r.command for r in v.primary.remedies] == [f"unhang why {rundir.path}/logs/attempt-2"]


def test_no_logs_no_advice_to_read_them(went):
    assert went(STARTED).primary.remedies == ()


def test_what_turned_out_to_be_none_is_no_incident(went):
    abandoned = OPENED.replace("Opened", "Abandoned")
    v = went(STARTED + OPENED + abandoned + finished(0))
    assert v.primary is None and not v.not_examined
    # Its number is given again.
    assert "the records of incident 1 are missing" in went(STARTED + OPENED + abandoned + OPENED + finished(0)).primary.says


@pytest.mark.parametrize("number", [1, None])
def test_a_damaged_run_json_is_said(build, lab, number):
    rundir = build().rank(0, enqueued=13, completed=12).rank(1, enqueued=12, activity=lab.STOPPED, answered=False).write()
    rundir.events.write_text(OPENED + finished(1))
    assert not any(n.what == "run.json" for n in lab.judge(rundir, number=number).not_examined)
    rundir.run.write_text('{"schema": "unhang/run/1", "comm')
    v = lab.judge(rundir, number=number)
    said = {n.what: n.why for n in v.not_examined}
    assert v.primary.cause == "process-stuck" and said["run.json"].startswith("run.json is damaged")


def test_a_live_verdict_asks_for_no_end(build, lab):
    rundir = build().rank(0, enqueued=13, completed=12).rank(1, enqueued=12, activity=lab.STOPPED, answered=False).write()
    rundir.events.write_text(STARTED + OPENED)
    assert not any("end of the run" in n.what for n in lab.judge(rundir, number=1).not_examined)
    assert any("end of the run" in n.what for n in lab.judge(rundir).not_examined)


GOT_OVER = "the training was started again after that, and the run ended with exit code 0", "此后训练重新启动，运行以退出码 0 结束"
ALL_THE_SAME = "the command ended with exit code 0 all the same", "尽管如此，命令仍以退出码 0 结束"
MOVED_ON = "the training went on after that, and the run ended with exit code 0", "此后训练继续进行，运行以退出码 0 结束"
MOVES = '{"s":40.0,"event":"CaughtUp","after_s":9.0}\n'
ATTACHED = '{"s":3.0,"event":"Attached","rank":1,"pid":8,"host":"vm","restarts":0}\n'
RESTARTED = ATTACHED.replace('"restarts":0', '"restarts":1')
AGAIN = STARTED.replace('"attempt":0', '"attempt":1')


@for_each(
    ("end", "says"),
    [
        (AGAIN + finished(0), GOT_OVER),
        (MOVES + finished(0), MOVED_ON),
        (MOVES + finished(1), None),
        (MOVES + OPENED + finished(0), ALL_THE_SAME),
        # The launcher started its ranks again by itself: no other attempt, but the same rank once more, with a count.
        (RESTARTED + finished(0), GOT_OVER),
        (RESTARTED + OPENED + finished(0), ALL_THE_SAME),
        # A command that starts another program next, such as an evaluation, whatever becomes of that one.
        (ATTACHED + finished(0), ALL_THE_SAME),
        (ATTACHED + OPENED + RESTARTED + finished(0), ALL_THE_SAME),
        (ATTACHED + OPENED + AGAIN + ATTACHED + RESTARTED + finished(0), GOT_OVER),
        # `train | tee log` ends with 0 whatever became of the training.
        (finished(0), ALL_THE_SAME),
        (AGAIN + OPENED + finished(0), ALL_THE_SAME),
        (AGAIN + finished(1), None),
        (finished(1), None),
        ("", None),
    ],
)
def test_a_failure_is_told_with_the_end_of_its_run(build, lab, end, says):
    rundir = build().rank(0, frames=(lab.user(20, "step"),)).rank(1, ended=lab.Ended(at_s=20.0, exitcode=-9)).write("failure")
    rundir.events.write_text(STARTED + ATTACHED + OPENED + end)
    verdict = lab.judge(rundir)
    primary = verdict.primary
    # Who asks for the run is told that it is over and well; who asks for the incident, of that.
    assert verdict.recovered == (says in (GOT_OVER, MOVED_ON)) and not lab.judge(rundir, number=1).recovered
    for one in (GOT_OVER, MOVED_ON, ALL_THE_SAME):
        assert [text in told for text, told in zip(one, (primary.says, zh(primary.says)), strict=True)] == [one == says] * 2
