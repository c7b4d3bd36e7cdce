"""Trainings that somebody ended: where they stood, and never a hang where its time had not come."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tests.chinese import both, zh

from unhang.diagnosis import interrupted
from unhang.model import Finding

INTERRUPTED = {"interrupted_by": "SIGINT", "stalled_for_s": 7.0, "threshold_s": 300.0}
FINISHED = '{"s":12.0,"event":"Finished","exitcode":%d,"attempts":1,"incidents":0,"elapsed_s":12.0}\n'


def stuck(build, lab):
    """Rank 0 waits for rank 1, which stands in user code."""
    frames = lab.in_collective("all_reduce", lab.user(20, "step"))
    b = build().rank(0, frames=frames, entries=[*lab.steps(12), lab.Entry(seq=13, op="all_reduce", done=False, frames=frames)])
    frames = (lab.user(40, "main"), lab.user(33, "wait_for_file"))
    return b.rank(1, frames=frames, entries=lab.steps(12), activity=lab.blocked(kind="mutex", ends=False))


def test_what_stood_still_is_said_and_no_hang_is_established(build, lab):
    v = stuck(build, lab).judge("interrupted", **INTERRUPTED)
    assert (v.primary.cause, v.primary.standing, v.primary.ranks, v.primary.where) == (
        "process-stuck",
        "likely",
        (1,),
        "train.py:33 in wait_for_file",
    )
    assert "interrupted then (SIGINT), after 7.0 s without progress, before the 5 min after which it is taken for a hang" in v.primary.says


def test_it_is_said_in_both_languages():
    picture = SimpleNamespace(incident=SimpleNamespace(kind="interrupted", **INTERRUPTED))
    finding = Finding(cause="collective-mismatch", standing="likely", says=both("they parted", "它们分开了"))
    told = interrupted.told(finding, picture)
    when = ", after 7.0 s without progress, before the 5 min after which it is taken for a hang"
    assert told.says == f"they parted; interrupted then (SIGINT){when}"
    assert zh(told.says) == "它们分开了；随后被中断（SIGINT），此前已有 7.0 s 没有进展，还没到判定为挂起的 5 min"
    picture.incident.stalled_for_s = 301.0
    assert zh(interrupted.told(finding, picture).says) == "它们分开了；随后被中断（SIGINT），此前已有 5 min 没有进展"
    english = interrupted.told(Finding(cause="process-stuck", standing="likely", says="it stands"), picture)
    assert zh(english.says).startswith("it stands；随后") and english.says.startswith("it stands; interrupted then (SIGINT)")


def test_behind_the_threshold_it_is_as_certain_as_a_hang(build, lab):
    v = stuck(build, lab).judge("interrupted", **{**INTERRUPTED, "stalled_for_s": 301.0})
    assert v.primary.standing == "established" and "interrupted then (SIGINT)" in v.primary.says and "before" not in v.primary.says


def test_a_hang_is_told_without_it(build, lab):
    v = stuck(build, lab).judge(stalled_for_s=7.0, threshold_s=300.0)
    assert v.primary.standing == "established" and "interrupted" not in v.primary.says


def test_a_stopped_process_needs_no_more_time(build, lab):
    v = build().rank(0, enqueued=13, completed=12).rank(1, enqueued=12, activity=lab.STOPPED, answered=False).judge("interrupted", **INTERRUPTED)
    assert (v.primary.cause, v.primary.standing) == ("process-stuck", "established")


def test_a_rank_that_executes_and_did_not_answer_in_time_is_not_said_to_hold_the_gil(build, lab):
    b = build().rank(0, enqueued=13, completed=12).rank(1, enqueued=12, activity=lab.BUSY, answered=False, last_beat_s=30.8)
    v = b.judge("interrupted", **INTERRUPTED)
    assert (v.primary.cause, v.primary.standing) == ("straggler-timeout", "likely")


def test_where_nothing_could_be_taken(build, lab):
    v = build().rank(0, answered=False).rank(1, answered=False).judge("interrupted", **INTERRUPTED)
    assert (v.primary.cause, v.primary.standing) != ("unknown", "established") and "interrupted then (SIGINT)" in v.primary.says


BACK = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/me/train.py", line 42, in <module>
[rank{rank}]:     main()
[rank{rank}]:   File "/home/me/train.py", line {line}, in main
[rank{rank}]:     work()
[rank{rank}]: {type}
"""


@pytest.fixture
def went(build, lab):
    """The verdict on a run without incidents: its exit code, and the logs of its attempts."""

    def went(code, logs):
        rundir = build().rundir
        rundir.events.write_text(FINISHED % code)
        for attempt, name, text in logs:
            rundir.write_bytes(rundir.logs(attempt) / name, text.encode())
        return lab.judge(rundir)

    return went


def test_tracebacks_tell_where_the_ranks_were(went):
    back = [(0, f"rank{rank}.err", BACK.format(rank=rank, line=32 if rank == 2 else 28, type="KeyboardInterrupt")) for rank in range(3)]
    v = went(130, [*back, (0, "launcher.err", "W1122 torch.distributed.run: Received 2 death signal\n")])
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("unknown", "not-established", (0, 1, 2))
    assert "(Ctrl-C): ranks 0 and 1 were at train.py:28 in main; rank 2 was at train.py:32 in main" in v.primary.says
    assert [(e.source, e.line) for e in v.primary.evidence] == [(f"logs/attempt-0/rank{n}.err", 1) for n in range(3)]


def test_the_last_attempt_counts_and_its_own_code(went):
    old = (9, "rank0.err", BACK.format(rank=0, line=28, type="KeyboardInterrupt"))
    assert went(130, [old, (10, "rank0.err", "")]).primary is None
    assert went(130, [(0, "rank0.err", BACK.format(rank=0, line=28, type="ValueError: no"))]).primary is None
    launcher = (
        BACK.format(rank=0, line=28, type="KeyboardInterrupt").replace("[rank0]: ", "").replace("/home/me/train", "/usr/lib/python3.11/threading")
    )
    assert went(130, [(0, "launcher.err", launcher)]).primary is None


def test_a_process_without_a_rank(went):
    v = went(130, [(0, "launcher.err", BACK.format(rank=0, line=28, type="KeyboardInterrupt").replace("[rank0]: ", ""))])
    assert "a process was at train.py:28 in main" in v.primary.says


def test_only_of_an_interrupted_run(went):
    back = [(0, "rank0.err", BACK.format(rank=0, line=28, type="KeyboardInterrupt"))]
    assert "interrupted" not in went(1, back).primary.says
    assert went(0, back).primary is None


def beats(signal="SIGTERM", still=0.2):
    places = [
        {"ranks": [0, 1], "place": {"file": "/p/train.py", "line": 16, "name": "step"}, "least_step": 3, "step": 4, "silent_s": 0.1},
        {"ranks": [2], "place": {"file": "/p/data.py", "line": 7, "name": "load"}, "silent_s": 9.0},
    ]
    return json.dumps({"s": 11.0, "event": "LastSeen", "signal": signal, "seen": places, "still_s": still}) + "\n"


FORCED = json.dumps({"s": 11.9, "event": "Forced", "seen": [{"ranks": [2], "silent_s": 9.0}], "after_s": 30.0, "by_us": True}) + "\n"


@pytest.fixture
def ended(build, lab):
    """The verdict on a run that a signal ended, by its events and by the errors of its ranks."""

    def ended(told, code=143, **errors):
        rundir = build().rundir
        rundir.events.write_text(told + (FINISHED % code).replace('"elapsed_s"', '"interrupted":true,"elapsed_s"'))
        for name, text in errors.items():
            rundir.write_bytes(rundir.logs(0) / f"{name}.err", text.encode())
        return lab.judge(rundir)

    return ended


def test_heartbeats_tell_where_the_ranks_were_when_no_evidence_was_taken(ended):
    v = ended(beats())
    assert (v.primary.cause, v.primary.standing) == ("unknown", "not-established")
    assert v.primary.says == (
        "the training was interrupted after 12 s (SIGTERM): as SIGTERM came, by the last heartbeats: ranks 0 and 1 at train.py:16 in step "
        "(steps 3-4); rank 2 at data.py:7 in load (no heartbeat for 9.0 s by then); the last step or collective was 0.2 s before"
    )
    assert "SIGTERM 到来时，据最后的心跳：rank 0、1 在 train.py:16 in step（第 3-4 步）" in zh(v.primary.says)
    assert [(e.source, e.text) for e in v.primary.evidence][1:] == [
        ("events.jsonl", "LastSeen: rank 2 at data.py:7 in load (no heartbeat for 9.0 s by then)")
    ]
    assert "whether it stood still is not in evidence" in ended(beats(still=None)).primary.says


def test_a_traceback_counts_for_more_than_a_heartbeat(ended):
    v = ended(beats("SIGINT"), 130, rank0=BACK.format(rank=0, line=28, type="KeyboardInterrupt"))
    assert "(Ctrl-C): rank 0 was at train.py:28 in main; as SIGINT came, by the last heartbeats: rank 1 at train.py:16 in step" in v.primary.says
    # The steps were those of both: which are whose is not known. The number of them all is everybody's.
    assert "rank 1 at train.py:16 in step; rank 2" in v.primary.says and "在 train.py:16 in step；" in zh(v.primary.says)
    same = ended(beats("SIGINT").replace('"least_step": 3', '"least_step": 4'), 130, rank0=BACK.format(rank=0, line=28, type="KeyboardInterrupt"))
    assert "rank 1 at train.py:16 in step (step 4); rank 2" in same.primary.says
    alone = {f"rank{n}": BACK.format(rank=n, line=28, type="KeyboardInterrupt") for n in range(3)}
    says = ended(beats("SIGINT"), 130, **alone).primary.says
    assert "heartbeats" not in says and says.endswith("ranks 0 to 2 were at train.py:28 in main; the last step or collective was 0.2 s before")


def test_who_had_to_be_killed_is_named(ended):
    says = ended(beats() + FORCED).primary.says
    assert "ended by force 30 s after the signal; last seen, by heartbeat: rank 2 at a place that is not known" in says
    launchers = ended(beats() + FORCED.replace("true", "false")).primary.says
    assert "still there 30 s after the signal, then gone without a word" in launchers and "ended by force" not in launchers


def test_who_had_to_be_killed_is_named_beside_a_verdict(build, lab):
    rundir = stuck(build, lab).write("interrupted", **INTERRUPTED)
    opened = '{"s":3.5,"event":"Opened","incident":1,"kind":"interrupted"}\n'
    rundir.events.write_text(opened + FORCED + FINISHED % 130)
    v = lab.judge(rundir)
    assert v.primary.cause == "process-stuck" and "ended by force 30 s after the signal" in v.primary.says


def test_who_was_asked_to_end_before_its_supervisor_was_killed(build, lab):
    rundir = build().rundir
    rundir.events.write_text(beats())
    says = lab.judge(rundir).primary.says
    assert says.startswith("no end of the run is recorded") and "as SIGTERM came, by the last heartbeats: ranks 0 and 1 at train.py:16" in says


def test_only_whoever_may_have_seen_it_stand_is_told_to_let_unhang_find_it(ended):
    """A training that the end of its time has ended, or that had just moved, has nothing that could be found."""
    for told, advised in (
        (beats(), False),
        (beats(still=None), False),
        (beats("SIGHUP", still=60.0), False),
        (beats("SIGINT"), False),
        (beats("SIGINT", still=60.0), True),
        (beats("SIGINT", still=None), True),
    ):
        assert [r.id for r in ended(told, 130 if "SIGINT" in told else 143).primary.remedies] == (["let-it-be-found"] if advised else []), told
