"""Hangs and stragglers: one rank keeps the others waiting, on Gloo and on NCCL alike."""

from __future__ import annotations

import pytest
from tests.chinese import zh

from unhang.records import incident_view

BACKENDS = ("gloo", "nccl")


def waiter(b, lab, number=0, *, seq=13, backend="gloo", world=2, op="all_reduce"):
    """A rank that waits in collective `seq`, after a history of equal ones."""
    frames = lab.in_collective(op, lab.user(40, "main"), lab.user(20, "step", code="dist.all_reduce(t)"))
    return b.rank(
        number, frames=frames, entries=[*lab.steps(seq - 1), lab.Entry(seq=seq, op=op, done=False, frames=frames)], backend=backend, world=world
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stopped_rank_is_named_with_its_line(build, lab, backend):
    b = waiter(build(), lab, backend=backend)
    b.rank(1, frames=(lab.user(40, "main"), lab.user(61, "load")), activity=lab.STOPPED, answered=False, enqueued=12, backend=backend)
    v = b.judge()
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("process-stuck", "established", (1,))
    assert v.primary.where == "train.py:61 in load"
    assert "rank 1 is stopped (SIGSTOP)" in v.primary.says and "21 s" in v.primary.says
    assert "rank 0 waits in all_reduce (train.py:20 in step)" in v.primary.says
    assert v.primary.remedies[0].command == "kill -CONT 4001"
    assert {e.source for e in v.primary.evidence} >= {"incidents/1/incident.json", "incidents/1/stacks/rank1.json"}


def test_a_rank_that_was_stopped_inside_the_collective_is_still_the_one(build, lab):
    b = waiter(build(), lab)
    waiter(b, lab, 1)
    b.ranks[1] = lab.dataclasses.replace(b.ranks[1], activity=lab.STOPPED, answered=False)
    v = b.judge()
    assert (v.primary.cause, v.primary.ranks) == ("process-stuck", (1,))


@pytest.mark.parametrize("group", ["0", "cpu:0"])
def test_gloo_on_a_torch_that_is_built_for_gpus(build, lab, group):
    """Heartbeats say in which of two recorders a group stands; of a rank that was never asked they are all there is."""
    b = waiter(build(), lab, world=3)
    waiter(b, lab, 1, world=3)
    b.rank(2, frames=(lab.user(40, "main"), lab.user(61, "load")), answered=False, enqueued=12, world=3)
    b.ranks = [lab.dataclasses.replace(r, groups={group: r.groups["0"]}) for r in b.ranks]
    rundir = b.write()
    found = incident_view.load(rundir, 1, signatures={})
    assert (found.front.group, found.front.seq, found.front.waiting, found.front.absent) == ("0", 13, (0, 1), (2,))
    assert not found.front.unseen and [r.record.groups["0"].enqueued for r in found.ranks] == [13, 13, 12]


def test_a_debugger_is_told_from_a_stop(build, lab):
    b = waiter(build(), lab).rank(1, activity=lab.dataclasses.replace(lab.STOPPED, state="t"), answered=False, enqueued=12)
    assert "debugger" in b.judge().primary.says


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_data_set_that_blocks_is_named_with_its_own_line(build, lab, backend):
    b = waiter(build(), lab, backend=backend)
    inner = lab.user(12, "__getitem__", file="data.py", code="self.lock.acquire()")
    b.rank(1, frames=lab.in_loader(lab.user(40, "main"), lab.user(70, "evaluate"), inner=inner), entries=lab.steps(12), backend=backend)
    v = b.judge()
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("dataloader-deadlock", "likely", (1,))
    assert v.primary.where == "data.py:12 in __getitem__"
    assert [r.id for r in v.primary.remedies] == ["bound-the-read"]


def test_a_loader_that_waits_for_its_worker_names_the_loop(build, lab):
    b = waiter(build(), lab).rank(1, frames=lab.in_loader(lab.user(40, "main"), lab.user(70, "evaluate")), entries=lab.steps(12))
    v = b.judge()
    assert v.primary.cause == "dataloader-deadlock" and v.primary.where == "train.py:70 in evaluate"
    assert "waiting for a worker" in v.primary.says and "loader-timeout" in [r.id for r in v.primary.remedies]


def test_a_busy_loader_is_a_straggler(build, lab):
    b = waiter(build(), lab).rank(1, frames=lab.in_loader(lab.user(70, "evaluate")), entries=lab.steps(12), activity=lab.BUSY)
    v = b.judge()
    assert v.primary.cause == "straggler-timeout" and v.primary.remedies[0].id == "feed-the-loader"


@pytest.mark.parametrize("kind", ["hang", "straggler"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_slow_rank_is_a_straggler_with_its_function(build, lab, backend, kind):
    b = waiter(build(), lab, backend=backend)
    b.rank(1, frames=(lab.user(40, "main"), lab.user(33, "tokenise")), entries=lab.steps(12), activity=lab.BUSY, backend=backend)
    v = b.judge(kind)
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("straggler-timeout", "established", (1,))
    assert "alive and executing tokenise() (train.py:33 in tokenise) for 21 s while rank 0 waits in all_reduce" in v.primary.says


@pytest.mark.parametrize("kind", ["straggler", "hang", "interrupted"])
@pytest.mark.parametrize(("endless", "cause"), [(True, "process-stuck"), (False, "straggler-timeout")])
def test_a_loop_has_one_cause_from_the_first_look_to_the_last(build, lab, kind, endless, cause):
    """What is seen is the same: the source tells whether anything leaves the loop."""
    line = lab.dataclasses.replace(lab.user(33, "body"), endless=endless)
    b = waiter(build(), lab).rank(1, frames=(line,), entries=lab.steps(12), activity=lab.dataclasses.replace(lab.BUSY, places=1, tree_cpu_share=0.97))
    p = b.judge(kind, stalled_for_s=21.0, bound_s=300.0).primary
    assert (p.cause, p.standing, p.ranks) == (cause, "likely", (1,))
    assert ("`while True`" in p.says) == endless and {"end-the-loop", "meant-to-sleep"} <= {r.id for r in p.remedies}
    assert [r.command for r in p.remedies if r.id == "meant-to-sleep"] == ["unhang run --hang-after 600 -- COMMAND"]


def test_an_idle_rank_in_user_code_is_stuck(build, lab):
    b = waiter(build(), lab).rank(1, frames=(lab.user(40, "main"), lab.user(33, "wait_for_file")), entries=lab.steps(12))
    v = b.judge()
    assert (v.primary.cause, v.primary.standing, v.primary.where) == ("process-stuck", "likely", "train.py:33 in wait_for_file")


def test_a_thread_that_keeps_a_finished_process_alive_is_named(build, lab):
    main = (lab.Frame(file="/usr/lib/python3.11/threading.py", line=1590, name="_shutdown"),)
    b = build().rank(0, frames=main, enqueued=12).rank(1, frames=main, enqueued=12)
    uploads = lab.user(60, "upload")
    threads = [
        lab.ThreadStack(name="MainThread", main=True, frames=main),
        lab.ThreadStack(name="heartbeat", main=False, frames=(lab.user(50, "beat"),), started=lab.user(8, "main")),
        lab.ThreadStack(name="uploader", main=False, frames=(uploads,), keeps=True, started=lab.user(9, "main")),
    ]
    b.ranks = b.ranks[1:]
    b.rundir.write(b.rundir.stacks(1, 1), lab.Stacks(source="process", threads=tuple(threads)))
    p = b.judge().primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("process-stuck", "established", (1,), "train.py:9 in main")
    assert "uploader" in p.says and "heartbeat" not in p.says and [r.id for r in p.remedies] == ["end-the-thread"]
    assert any("thread uploader" in e.text and e.source.endswith("rank1.json") for e in p.evidence)


def test_uninterruptible_io_is_said(build, lab):
    b = waiter(build(), lab).rank(1, frames=(lab.user(33, "save"),), entries=lab.steps(12), activity=lab.IN_IO)
    v = b.judge()
    assert v.primary.cause == "process-stuck" and "uninterruptible I/O (state D, in nfs_wait_bit_killable)" in v.primary.says


def test_a_held_gil_is_said(build, lab):
    b = waiter(build(), lab).rank(1, frames=(lab.user(33, "compress"),), enqueued=12, activity=lab.BUSY, answered=False)
    v = b.judge()
    assert v.primary.cause == "process-stuck" and "holds the GIL" in v.primary.says
    ids = [r.id for r in v.primary.remedies]
    assert ids.index("end-the-loop") < ids.index("release-the-gil")
    first = b.judge("straggler").primary
    assert (first.cause, first.standing) == ("process-stuck", "likely")


def test_one_of_eight(build, lab):
    b = build()
    for r in range(8):
        if r == 5:
            b.rank(5, frames=(lab.user(33, "wait"),), entries=lab.steps(12), backend="nccl", world=8)
        else:
            waiter(b, lab, r, backend="nccl", world=8)
    v = b.judge()
    assert (v.primary.cause, v.primary.ranks) == ("process-stuck", (5,))
    assert "7 more" not in v.primary.says and "ranks 0, 1, 2, 3, 4, 6 and 7 wait in all_reduce" in v.primary.says


def test_without_stacks_and_dumps_counters_and_activity_still_tell(build, lab):
    b = build().rank(0, enqueued=13, completed=12, answered=False).rank(1, enqueued=12, activity=lab.STOPPED, answered=False)
    v = b.judge()
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("process-stuck", "established", (1,))
    missed = {n.what for n in v.not_examined}
    assert {"the stacks of rank 0", "the flight recorder of rank 1", "kernel log"} <= missed


def test_without_anything_it_is_not_established(build, lab):
    b = build().rank(0, enqueued=13, completed=12, activity=None).rank(1, enqueued=13, completed=12, activity=None)
    v = b.judge()
    assert (v.primary.cause, v.primary.standing) == ("unknown", "not-established")


def test_everybody_joined_and_nothing_arrives(build, lab):
    b = waiter(waiter(build(), lab, 0, backend="nccl"), lab, 1, backend="nccl")
    v = b.judge()
    assert (v.primary.cause, v.primary.standing) == ("unknown", "not-established")
    assert "nobody is missing" in v.primary.says and "network-blocked" in v.primary.says


def test_nobody_is_missing_is_said_only_of_a_group_that_is_all_here(build, lab):
    b = waiter(waiter(build(), lab, 0, world=3), lab, 1, world=3)
    p = b.judge().primary
    assert (p.cause, p.standing) == ("unknown", "not-established")
    assert "nobody is missing" not in p.says and "whether anybody is missing is not in evidence (possible: straggler-timeout" in p.says


def test_a_timeout_of_a_waiting_rank_is_a_symptom_of_the_stuck_one(build, lab):
    b = build()
    b.rank(0, entries=lab.steps(13), raised=lab.lost(lab.GLOO_TIMEOUT))
    b.rank(1, frames=(lab.user(33, "wait"),), entries=lab.steps(12))
    v = b.judge("failure")
    assert (v.primary.cause, v.primary.ranks) == ("process-stuck", (1,))
    assert [s.cause for s in v.symptoms] == ["collective-timeout"]


def test_a_wait_elsewhere_is_followed_to_its_end(build, lab):
    # Rank 1 is missing from the all_reduce because it waits in a recv (in no Gloo dump) for rank 2, which is stuck.
    b = waiter(build(), lab, 0, world=3)
    b.rank(1, frames=lab.in_collective("recv", lab.user(40, "main"), lab.user(25, "pipeline")), entries=lab.steps(12), world=3)
    b.rank(2, frames=(lab.user(33, "wait"),), entries=lab.steps(12), world=3)
    v = b.judge()
    assert (v.primary.cause, v.primary.ranks) == ("process-stuck", (2,))


def test_damaged_files_are_named_and_the_rest_is_used(build, lab):
    b = waiter(build(), lab)
    b.rank(1, frames=(lab.user(33, "wait"),), entries=lab.steps(12), activity=lab.STOPPED)
    rundir = b.write()
    flight = rundir.flight(1, 0)
    flight.write_bytes(flight.read_bytes()[:200])
    rundir.stacks(1, 1).write_text("{")
    v = lab.judge(rundir)
    assert (v.primary.cause, v.primary.ranks) == ("process-stuck", (1,))
    reasons = {n.what: n.why for n in v.not_examined}
    assert "damaged" in reasons["a part of the flight recorder of rank 0"] and "damaged" in reasons["the stacks of rank 1"]
    assert str(rundir.path) not in reasons["a part of the flight recorder of rank 0"]


@pytest.mark.parametrize(
    ("code", "wchan", "bound_s", "timeout_s", "longer_s"),
    [
        ("time.sleep(3600)", None, 900.0, None, 3660),
        ("sleep(0.5)", None, 900.0, None, 1800),
        ("time.sleep(pause)", None, 900.0, None, 1800),
        ("", "hrtimer_nanosleep", 900.0, None, 1800),
        # At the first look, long before it is ended.
        ("time.sleep(pause)", None, 1200.0, None, 2400),
        # Never beyond what the collective itself allows: then only that helps.
        ("sleep(0.5)", None, 1200.0, 1800.0, 1740),
        ("sleep(0.5)", None, 1790.0, 1800.0, None),
        ("time.sleep(3600)", None, 300.0, 1800.0, None),
    ],
)
def test_a_sleep_may_end(build, lab, code, wchan, bound_s, timeout_s, longer_s):
    activity = lab.dataclasses.replace(lab.IDLE, wchan=wchan)
    b = waiter(build(), lab).rank(1, frames=(lab.user(33, "throttle", code=code),), entries=lab.steps(12), activity=activity)
    b.ranks = [lab.dataclasses.replace(r, timeout_s=timeout_s) for r in b.ranks]
    p = b.judge(stalled_for_s=min(bound_s, 900.0), bound_s=bound_s, threshold_s=15.0).primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("process-stuck", "likely", (1,), "train.py:33 in throttle")
    assert "alive, outside any collective, asleep (time.sleep)" in p.says
    told = [r.command for r in p.remedies if r.command and "--hang-after" in r.command]
    assert told == ([f"unhang run --hang-after {longer_s} -- COMMAND"] if longer_s else [])
    assert longer_s or p.remedies[0].id == "raise-the-timeout"


def test_several_that_stand_alike_are_told_in_one_sentence(build, lab):
    for code, doing in (("time.sleep(600)", "asleep (time.sleep)"), ("", "without using any CPU")):
        frames = (lab.user(33, "wait", code=code),)
        p = build().rank(0, frames=frames, entries=lab.steps(12)).rank(1, frames=frames, entries=lab.steps(12)).judge().primary
        assert p.says.startswith(f"ranks 0 and 1 are alive, outside any collective, {doing} at train.py:33 in wait")


def test_what_only_sounds_like_a_sleep_is_none(build, lab):
    b = waiter(build(), lab).rank(1, frames=(lab.user(33, "wait", code="lock.acquire_after_sleep(5)"),), entries=lab.steps(12))
    assert "asleep" not in b.judge().primary.says


def test_a_stuck_rank_of_which_only_a_heartbeat_tells(build, lab):
    b = waiter(build(), lab).rank(1, activity=lab.STOPPED, answered=False, enqueued=12, last_place=lab.user(61, "load"))
    p = b.judge().primary
    assert "stopped (SIGSTOP), last seen at train.py:61 in load" in p.says and p.where == "train.py:61 in load"
    assert zh(p.says).startswith("rank 1 被暂停（SIGSTOP），最后见于 train.py:61 in load，已有 ") and "，而 rank 0 在 all_reduce（" in zh(p.says)


@pytest.mark.parametrize("activity", ["STOPPED", "IN_IO", "IDLE"])
def test_what_asks_for_a_living_process_says_how_to_keep_it(build, lab, activity):
    b = waiter(build(), lab).rank(1, frames=(lab.user(33, "wait"),), entries=lab.steps(12), activity=getattr(lab, activity))
    for remedy in b.judge().primary.remedies:
        if "4001" in (remedy.command or ""):
            assert "--on-failure report" in remedy.says


@pytest.mark.parametrize("backend", BACKENDS)
def test_nccls_messages_are_asked_for_only_of_nccl(build, lab, backend):
    v = waiter(waiter(build(), lab, 0, backend=backend), lab, 1, backend=backend).judge()
    assert any("NCCL_DEBUG" in r.env for r in v.primary.remedies) == (backend == "nccl")
    v = build().rank(0, backend=backend, raised=lab.lost()).rank(1, backend=backend, frames=(lab.user(33, "x"),)).judge("failure")
    assert any("NCCL_DEBUG" in r.env for r in v.primary.remedies) == (backend == "nccl")


def test_a_frame_of_unhang_itself_is_no_evidence(build, lab):
    fault = lab.Frame(file=f"{lab.SITE}/unhang/testing/faults.py", line=9, name="hang")
    lock = lab.Frame(file="/usr/lib/python3.11/threading.py", line=331, name="wait")
    b = waiter(build(), lab).rank(1, frames=(lab.user(33, "load"), fault, lock), entries=lab.steps(12))
    p = b.judge().primary
    assert p.where == "train.py:33 in load" and not any("unhang/testing" in e.text or "threading" in e.text for e in p.evidence)


def test_a_stack_that_contradicts_the_recorder_is_shown(build, lab):
    """ncclAllReduce may block the CPU, and torch records it only afterwards: rank 1 may well be in it."""
    b = waiter(waiter(build(), lab, 0, backend="nccl", world=3), lab, 2, backend="nccl", world=3)
    b.rank(1, frames=lab.in_collective("all_reduce", lab.user(20, "step")), entries=lab.steps(12), backend="nccl", world=3)
    p = b.judge().primary
    assert (p.cause, p.standing, p.ranks) == ("unknown", "not-established", (0, 2))
    assert "what rank 1 did is told differently by its recorder and by a heartbeat or stack" in p.says and "nobody is missing" not in p.says


def test_a_rank_of_which_nothing_is_known_is_not_the_one_that_never_came(build, lab):
    b = waiter(waiter(build(), lab, 0, world=3), lab, 1, world=3)
    b.rank(2, world=3, last_beat_s=None, activity=None, answered=False)
    p = b.judge().primary
    assert (p.cause, p.ranks) == ("unknown", (0, 1))
    assert "whether anybody is missing is not in evidence: of rank 2 there is no record of it" in p.says


@pytest.mark.parametrize(("elsewhere", "standing"), [({0: "10.0.0.1:29500", 1: "10.0.0.1:29501"}, "established"), ({}, None)])
def test_ranks_of_one_training_that_meet_at_different_places(build, lab, elsewhere, standing):
    """Two launchers were given different ports: only rank 1 is watched, and waits for rank 0 in vain."""
    b = build().rank(1, frames=lab.in_collective("init_process_group", lab.user(2, "main")), backend=None)
    p = b.judge(elsewhere=elsewhere).primary
    assert "nobody is missing" not in p.says
    if standing is not None:
        assert (p.cause, p.standing, p.ranks, p.remedies[0].id) == ("rendezvous-misconfig", standing, (0, 1), "same-meeting-point")
        assert "rank 0: 10.0.0.1:29500" in p.says and "rank 1: 10.0.0.1:29501" in p.says
