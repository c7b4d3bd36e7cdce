"""Ranks that ended: killed, crashed, raised, left; and victims that are never taken for the cause."""

from __future__ import annotations

import dataclasses

import pytest
from tests.chinese import zh

from unhang.frames import Frame


def survivor(b, lab, number=0, **more):
    return b.rank(number, raised=lab.lost(**more), entries=lab.steps(13), frames=lab.lost().frames)


def killed(b, lab, number=1, *, code=-9, at_s=30.0, **more):
    return b.rank(number, ended=lab.Ended(at_s=at_s, exitcode=code), last_place=lab.user(61, "load"), enqueued=12, **more)


def test_a_killed_rank_whose_killer_nobody_saw(build, lab):
    v = survivor(killed(build(), lab), lab).judge("failure")
    p = v.primary
    # It died somewhere behind the line of its last heartbeat.
    assert (p.cause, p.standing, p.ranks) == ("host-oom-or-killed", "established", (1,))
    assert p.where == "train.py:61 in load (last seen 20 s before its end)"
    assert p.says == (
        "rank 1 was killed (SIGKILL), last seen at train.py:61 in load 20 s before its end; by whom is not in evidence "
        "(the kernel log could not be read; the memory cgroup could not be read)"
    )
    assert (
        zh(p.says)
        == "rank 1 被杀死（SIGKILL），最后见于 train.py:61 in load（结束前 20 s）；没有证据表明是谁所为（内核日志无法读取；内存 cgroup 无法读取）"
    )
    assert [s.cause for s in v.symptoms] == ["peer-lost"] and p.remedies[0].id == "find-the-killer"


def test_the_oom_killer_in_the_kernel_log(build, lab):
    line = "[88123.4] Memory cgroup out of memory: Killed process 4001 (python3) total-vm:91234567kB, anon-rss:65012345kB"
    v = survivor(killed(build(), lab), lab).dmesg(f"[88120.0] something else\n{line}\n").judge("failure", oom_kills=1)
    assert "OOM killer did it" in v.primary.says and v.primary.remedies[0].id == "less-memory"
    assert any(e.source == "incidents/1/kernel.txt" and e.line == 2 for e in v.primary.evidence)


def test_the_oom_killer_of_somebody_else_is_not_ours(build, lab):
    line = "[88123.4] Out of memory: Killed process 77 (chrome) total-vm:1kB"
    v = survivor(killed(build(), lab), lab).dmesg(line + "\n").judge("failure", oom_kills=0)
    assert "shows no OOM kill of it; the memory cgroup counted none" in v.primary.says


def test_the_oom_killer_counted_by_the_cgroup(build, lab):
    v = survivor(killed(build(), lab), lab).judge("failure", oom_kills=1)
    assert "memory cgroup counted it" in v.primary.says


def test_the_earliest_death_wins_and_launcher_kills_do_not_count(build, lab):
    b = build()
    b.rank(0, ended=lab.Ended(at_s=31.0, exitcode=-9, by_launcher=True))
    killed(b, lab, 1, at_s=30.0)
    b.rank(2, ended=lab.Ended(at_s=31.0, exitcode=-15, by_launcher=True))
    v = b.judge("failure")
    assert (v.primary.cause, v.primary.ranks) == ("host-oom-or-killed", (1,))


def test_only_the_launcher_saw_the_kill(build, lab):
    # Rank 0 had failed for it, and then would not end.
    b = build().rank(0, raised=lab.lost(), ended=lab.Ended(at_s=61.0)).rank(1, ended=lab.Ended(at_s=30.0))
    b.log(
        None,
        (
            "[1]:\n  exitcode  : -9 (pid: 4000)  (SIGKILL)\n  traceback : Signal 9 (SIGKILL) received by PID 4000\n"
            "E1103 09:12:44.120000 9 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 4001) of "
            "binary: p\n"
        ),
    )
    v = b.judge("failure")
    assert (v.primary.cause, v.primary.ranks) == ("host-oom-or-killed", (1,))


def boom(lab, *, at_s=30.0, text="bad sample 17", kind="ValueError", line=33):
    return lab.Raised(type=kind, text=text, frames=(lab.user(40, "main"), lab.user(line, "collate", file="data.py")), at_s=at_s)


@pytest.mark.parametrize("world", [2, 8])
def test_an_exception_on_one_rank(build, lab, world):
    b = build()
    for r in range(world):
        if r == 1:
            b.rank(1, raised=boom(lab), frames=boom(lab).frames, world=world)
        else:
            survivor(b, lab, r)
    b.log(
        1,
        (
            'Traceback (most recent call last):\n  File "/home/user/project/data.py", line 33, in collate\n    raise ValueError()\nValueError: bad '
            "sample 17\n"
        ),
    )
    v = b.judge("failure")
    p = v.primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("rank-exception", "established", (1,), "data.py:33 in collate")
    assert "ValueError: bad sample 17" in p.says and zh(p.says).startswith("rank 1 抛出 ValueError: bad sample 17，位于 data.py:33 in collate")
    assert any(e.source == "logs/attempt-0/rank1.err" and e.line == 4 for e in p.evidence)


def test_the_same_exception_on_all_ranks(build, lab):
    v = build().rank(0, raised=boom(lab, at_s=30.1)).rank(1, raised=boom(lab, at_s=30.0)).judge("failure")
    assert v.primary.ranks == (0, 1) or v.primary.ranks == (1, 0)
    assert v.primary.says.startswith("every rank raised ValueError") and zh(v.primary.says).startswith("每个 rank 抛出 ValueError")


def test_the_same_exception_on_two_ranks_is_as_early_as_the_first_of_them(build, lab):
    b = build().rank(0, raised=boom(lab, at_s=10.0)).rank(1, raised=boom(lab, at_s=30.0))
    v = killed(b, lab, 2, at_s=20.0).judge("failure")
    assert [(f.cause, f.ranks) for f in (v.primary, *v.contributing)] == [("rank-exception", (0, 1)), ("host-oom-or-killed", (2,))]


def test_the_earlier_of_two_exceptions_wins(build, lab):
    v = build().rank(0, raised=boom(lab, at_s=30.4, text="late")).rank(1, raised=boom(lab, at_s=30.0, text="early")).judge("failure")
    assert v.primary.ranks == (1,) and "early" in v.primary.says


@pytest.mark.parametrize(
    "text",
    [
        "PEER_RESET",
        "PEER_CLOSED",
        "NCCL communicator was aborted on rank 0.",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ],
)
def test_a_victim_alone_is_not_a_cause(build, lab, text):
    v = build().rank(0, raised=lab.lost(getattr(lab, text, text))).rank(1, frames=(lab.user(33, "x"),)).judge("failure")
    assert (v.primary.cause, v.primary.standing) == ("peer-lost", "not-established")
    assert "its cause is not in evidence" in v.primary.says


def test_a_rank_that_left_in_order(build, lab):
    b = build().rank(1, ended=lab.Ended(at_s=28.0, exitcode=0, announced=True), last_place=lab.user(90, "main"))
    v = survivor(b, lab).judge("failure")
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("premature-exit", "established", (1,))


@pytest.mark.parametrize(
    "ended",
    [
        {"exitcode": 0, "announced": True},
        {"announced": True, "by_launcher": True, "finished": True},
        {"by_launcher": True, "finished": True},
        {"exitcode": -15, "by_launcher": True},
    ],
)
@pytest.mark.parametrize("at_s", [28.0, 33.0])
def test_uneven_batches_are_told_by_the_call_and_not_by_the_clock(build, lab, ended, at_s):
    """Rank 0 raised in its backward pass at 30.5 s; rank 1 had come to the end of its script, or left its group, whenever its process ended."""
    back = (lab.user(40, "main"), lab.user(20, "step"), lab.torch("_tensor.py", 623, "backward"), lab.torch("autograd/graph.py", 979, "_engine"))
    entries = [dataclasses.replace(e, frames=back) for e in lab.steps(13)]
    b = build().rank(0, raised=lab.Raised(type="RuntimeError", text=lab.PEER_CLOSED, frames=back, at_s=30.5), entries=entries)
    b.rank(1, ended=lab.Ended(at_s=at_s, **ended), enqueued=12, last_place=lab.user(6, "main"))
    b.ranks[1] = dataclasses.replace(b.ranks[1], done=True)
    p = b.judge("failure").primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("premature-exit", "established", (1,), None)
    assert "rank 0 waits in all_reduce" in p.says and "even-batches" in [r.id for r in p.remedies]


def test_os_exit_announces_nothing(build, lab):
    v = survivor(build().rank(1, ended=lab.Ended(at_s=28.0, exitcode=0)), lab).judge("failure")
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("premature-exit", "established", (1,))
    assert "ended with exit code 0" in v.primary.says and "in order" not in v.primary.says
    unknown = survivor(build().rank(1, ended=lab.Ended(at_s=28.0)), lab).judge("failure")
    assert unknown.primary.cause != "premature-exit"


def test_a_rank_that_left_while_the_other_waits(build, lab):
    frames = lab.in_collective("all_reduce", lab.user(20, "step"))
    b = build().rank(0, frames=frames, entries=[*lab.steps(12), lab.Entry(seq=13, done=False, frames=frames)])
    v = b.rank(1, ended=lab.Ended(at_s=28.0, announced=True), enqueued=12).judge("hang")
    assert (v.primary.cause, v.primary.ranks) == ("premature-exit", (1,)) and "rank 0 waits in all_reduce" in v.primary.says
    assert "以退出码 0 结束" in zh(v.primary.says) or "正常结束" in zh(v.primary.says)


def test_a_guarded_wait_for_ranks_that_left(build, lab):
    frames = lab.in_collective("barrier", lab.user(52, "save", guards=("rank == 0",)))
    b = build().rank(0, frames=frames, entries=[*lab.steps(12), lab.Entry(seq=13, op="barrier", sizes=(), done=False, frames=frames)])
    v = b.rank(1, ended=lab.Ended(at_s=28.0, exitcode=0, announced=True), enqueued=12).judge("hang")
    assert (v.primary.cause, v.primary.ranks, v.primary.where) == ("rank0-guarded-collective", (0,), "train.py:52 in save")


def test_a_test_of_the_rank_that_others_passed_by_a_branch_of_their_own_keeps_nobody_away(build, lab):
    """`if rank == 0: broadcast(x) else: broadcast(y)`: rank 0 stands under the test in every step, and rank 1 had fewer batches."""
    frames = lab.in_collective("broadcast", lab.user(10, "main", guards=("rank == 0",)))
    entries = [e for n in range(1, 12, 2) for e in (lab.Entry(seq=n, op="broadcast", frames=frames), dataclasses.replace(lab.steps(1)[0], seq=n + 1))]
    b = build().rank(0, frames=frames, entries=[*entries, lab.Entry(seq=13, op="broadcast", done=False, frames=frames)])
    p = b.rank(1, ended=lab.Ended(at_s=28.0, exitcode=0, announced=True), enqueued=12).judge("hang").primary
    assert (p.cause, p.standing, p.ranks) == ("premature-exit", "established", (1,))


def test_an_exit_after_an_exception_is_not_premature(build, lab):
    b = build().rank(1, raised=boom(lab), ended=lab.Ended(at_s=30.2, exitcode=1, announced=True))
    v = survivor(b, lab).judge("failure")
    assert (v.primary.cause, [c.cause for c in v.contributing]) == ("rank-exception", [])


@pytest.mark.parametrize(("code", "name"), [(-11, "SIGSEGV"), (-7, "SIGBUS"), (-6, "SIGABRT")])
def test_other_signals_are_named_and_not_explained(build, lab, code, name):
    fatal = (
        f'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File "{lab.CWD}/ext.py", line 5 in kernel\n'
    )
    v = survivor(killed(build(), lab, code=code), lab).fatal(1, fatal).dmesg("[1.0] python3[4001]: segfault at 10 ip 0 in x.so\n").judge("failure")
    p = v.primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("unknown", "not-established", (1,), "ext.py:5 in kernel")
    assert name in p.says and any("Fatal Python error" in e.text for e in p.evidence) and any("segfault at 10" in e.text for e in p.evidence)


def test_ddp_that_crashes_where_it_is_built_is_torchs_own_defect(build, lab):
    stack = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        '  File "/env/torch/nn/parallel/distributed.py", line 1473 in {}\n'
        '  File "/env/torch/nn/parallel/distributed.py", line 1079 in __init__\n'
        f'  File "{lab.CWD}/train.py", line 4 in <module>\n'
    )
    crashed = survivor(killed(build(), lab, code=-11), lab).fatal(1, stack.format("_ddp_init_helper")).judge("failure").primary
    assert (crashed.cause, crashed.standing, crashed.ranks) == ("framework-bug", "likely", (1,)) and "DETAIL" in crashed.says
    assert [r.id for r in crashed.remedies] == ["detail-off", "upgrade-torch"]
    other = survivor(killed(build(), lab, code=-11), lab).fatal(1, stack.format("forward")).judge("failure").primary
    assert other.cause == "unknown"


def test_an_exit_code_without_a_traceback(build, lab):
    v = survivor(killed(build(), lab, code=3), lab).judge("failure")
    assert (v.primary.cause, v.primary.ranks) == ("unknown", (1,)) and "exit code 3" in v.primary.says


def test_a_traceback_in_a_log_is_enough(build, lab):
    b = survivor(killed(build(), lab, code=1), lab)
    b.log(
        None,
        "-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
        f'  File "{lab.SITE}/torch/multiprocessing/spawn.py", line 90, in _wrap\n    fn(i, *args)\n'
        f'  File "{lab.CWD}/train.py", line 12, in main\n    raise ValueError("boom")\nValueError: boom\n',
    )
    v = b.judge("failure")
    assert (v.primary.cause, v.primary.standing, v.primary.ranks, v.primary.where) == ("rank-exception", "established", (1,), "train.py:12 in main")


def test_a_port_that_is_taken(build, lab):
    text = (
        "The server socket has failed to listen on any local network address. port: 29511, useIpv6: false, code: -98, name: EADDRINUSE, "
        "message: address already in use"
    )
    b = build().rank(0, raised=lab.Raised(type="torch.distributed.DistNetworkError", text=text, frames=(lab.user(5, "main"),), at_s=2.0))
    v = b.judge("failure")
    assert (v.primary.cause, v.primary.standing) == ("port-in-use", "established") and "29511" in v.primary.says
    assert any(r.command and "29511" in r.command for r in v.primary.remedies)
    b = build().log(None, f"torch.distributed.DistNetworkError: {text}\n")
    v = b.judge("failure", exitcode=1)
    assert v.primary.cause == "port-in-use" and v.primary.evidence[0].source == "logs/attempt-0/launcher.err"


def test_two_processes_that_are_each_rank_0_of_1(build, lab):
    b = build().rank(0, world=1, pid=10).rank(0, world=1, pid=11)
    v = b.judge("world-size", expected_world=2)
    assert (v.primary.cause, v.primary.standing) == ("rendezvous-misconfig", "established")
    assert "two processes each believe they are rank 0 of 1" in v.primary.says and "2 ranks were expected" in v.primary.says


def test_a_world_of_another_size(build, lab):
    v = build().rank(0, world=2).rank(1, world=2).judge("world-size", expected_world=4)
    assert "report a world of 2" in v.primary.says and "4 ranks were expected" in v.primary.says


def test_a_command_that_never_became_a_training(build, lab):
    v = build().log(None, "starting\nthe moon is not in the right house\n").judge("failure", exitcode=2)
    assert (v.primary.cause, v.primary.standing) == ("unknown", "not-established") and "exit code 2" in v.primary.says
    assert any(e.line == 2 and "the moon" in e.text for e in v.primary.evidence)
    v = build().log(None, "usage: train.py\ntrain.py: error: unrecognized arguments: --lrr\n").judge("failure", exitcode=2)
    assert (v.primary.cause, v.primary.standing) == ("config-error", "established") and "--lrr" in v.primary.says


@pytest.mark.parametrize("started", [True, False])
def test_a_script_that_was_missed_beside_a_rank_that_had_been_started(build, lab, started):
    b = build().log(None, "./run.sh: line 3: ./tools/prep.py: Permission denied\n")
    if started:
        b = b.rank(0, raised=lab.Raised(type="ValueError", text="bad sample", frames=(lab.user(5, "main"),), at_s=2.0))
    v = b.judge("failure", exitcode=1)
    assert (v.primary.cause, v.contributing) == ("rank-exception" if started else "config-error", ())


def test_an_incident_that_does_not_exist(build, lab):
    rundir = build().rank(0).write()
    with pytest.raises(Exception, match="no incident 7; it has: 1"):
        lab.judge(rundir, number=7)


def test_credentials_are_redacted(build, lab):
    text = "cannot reach https://bob:s3cret@example.org/x with HF_TOKEN=hf_abcdefghijklmnopqrstuvwx"
    v = build().rank(0, raised=boom(lab, text=text)).judge("failure")
    shown = lab.encoding.encode(v).decode()
    assert "s3cret" not in shown and "hf_abc" not in shown and "https://bob:[redacted]@example.org" in shown


def test_a_rank_that_raised_is_not_also_stuck(build, lab):
    # It is held by its last words until the evidence of the others is in, so it is alive and idle.
    b = build().rank(0, raised=lab.lost(lab.GLOO_TIMEOUT, at_s=30.5), entries=lab.steps(13))
    v = b.rank(1, raised=boom(lab), frames=boom(lab).frames, entries=lab.steps(12)).judge("failure")
    assert (v.primary.cause, v.contributing) == ("rank-exception", ())


def test_an_orderly_exit_with_a_code_is_not_premature(build, lab):
    b = build().rank(1, ended=lab.Ended(at_s=28.0, exitcode=3, announced=True))
    v = survivor(b, lab).judge("failure")
    assert (v.primary.cause, v.primary.ranks) == ("unknown", (1,)) and "exit code 3" in v.primary.says


@pytest.mark.parametrize(
    ("code", "other", "says"),
    [
        (-6, {"finished": True}, "rank 0 crashed with SIGABRT while shutting down; the training script had finished on all ranks; results are safe"),
        (
            120,
            {"finished": True},
            "rank 0 crashed with exit code 120 while shutting down; the training script had finished on all ranks; results are safe",
        ),
        # The launcher has ended it in the middle of its work.
        (-11, {"by_launcher": True}, "rank 0 crashed with SIGSEGV while shutting down; the training script had not finished on rank 1"),
    ],
)
def test_a_crash_at_exit(build, lab, code, other, says):
    b = build().rank(0, ended=lab.Ended(at_s=30.0, exitcode=code, announced=True, finished=True)).rank(1, ended=lab.Ended(at_s=30.1, **other))
    b.log(0, "step 24\nterminate called without an active exception\n")
    v = b.judge("failure", exitcode=1)
    assert (v.primary.cause, v.primary.standing, v.primary.ranks, v.primary.says) == ("crash-at-exit", "established", (0,), says)
    assert any(e.line == 2 for e in v.primary.evidence)


@pytest.mark.parametrize("ended", [{"exitcode": -6}, {"exitcode": 1, "finished": True}, {"exitcode": -15, "finished": True}])
def test_no_crash_at_exit(build, lab, ended):
    """Before the end of the script, with an exit code that the script asked for, and ended from outside."""
    b = build().rank(0, ended=lab.Ended(at_s=30.0, announced=True, **ended)).rank(1, ended=lab.Ended(at_s=30.1, finished=True))
    assert b.judge("failure", exitcode=1).primary.cause != "crash-at-exit"


def test_an_abort_in_the_middle_is_no_bug_of_the_teardown(build, lab):
    b = build().rank(0, ended=lab.Ended(at_s=30.0, exitcode=-6)).rank(1, ended=lab.Ended(at_s=30.1, exitcode=-15, by_launcher=True))
    assert b.judge("failure", exitcode=1).primary.cause != "framework-bug"


def left_early(b, lab, *, raised_at=30.0, by_launcher=False, exitcode=0, entries=None, survivor_ended=31.0):
    """Rank 1 has broken out of its loop and destroyed its group: its peer notices before its process has ended."""
    frames = lab.in_collective("all_reduce", lab.user(20, "step", guards=("not (rank == 1 and step == 13)",)))
    ended = lab.Ended(at_s=survivor_ended, exitcode=1, announced=True)
    raised = lab.Raised(type="RuntimeError", text=lab.PEER_CLOSED, frames=frames, at_s=raised_at)
    hook = (lab.torch("distributed/distributed_c10d.py", 1928, "_distributed_excepthook"), HOOK, WAIT)
    b.rank(0, raised=raised, frames=hook, entries=[*lab.steps(12), lab.Entry(seq=13, frames=frames)], ended=ended)
    gone = lab.Ended(at_s=30.4, exitcode=exitcode, announced=True, by_launcher=by_launcher)
    return b.rank(1, ended=gone, entries=entries, last_place=lab.user(22, "main"), last_beat_s=30.2)


HOOK = Frame(file="/opt/venv/lib/python3.11/site-packages/unhang/attach/session.py", line=76, name="wait_for_go")
WAIT = Frame(file="/usr/lib/python3.11/threading.py", line=331, name="wait")


@pytest.mark.parametrize("with_dump", [True, False])
@pytest.mark.parametrize(("by_launcher", "exitcode"), [(False, 0), (True, None)])
def test_a_rank_that_destroyed_its_group_and_left(build, lab, by_launcher, exitcode, with_dump):
    b = left_early(build(), lab, by_launcher=by_launcher, exitcode=exitcode, entries=lab.steps(12) if with_dump else None)
    v = b.judge("failure")
    p = v.primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("premature-exit", "established", (1,), "train.py:22 in main")
    assert "last seen at train.py:22 in main" in p.says and "rank 0 waits in all_reduce (train.py:20 in step)" in p.says
    assert not any("attach" in e.text or "threading" in e.text for e in p.evidence)


def test_a_rank_that_came_to_the_collective_did_not_leave_early(build, lab):
    assert left_early(build(), lab, entries=lab.steps(13)).judge("failure").primary.cause == "peer-lost"


def test_a_rank_that_the_launcher_ended_did_not_leave(build, lab):
    v = left_early(build(), lab, by_launcher=True, exitcode=None, survivor_ended=30.2).judge("failure")
    assert v.primary.cause == "peer-lost"


def test_a_held_rank_stands_where_it_raised(build, lab):
    v = left_early(build(), lab).judge("failure")
    assert any(e.source == "incidents/1/flight/rank_0" and "waits in all_reduce" in e.text for e in v.primary.evidence)


IMPORTED = (
    "/opt/env/lib/python3.11/site-packages/torch/_subclasses/functional_tensor.py:368: UserWarning: Failed to initialize NumPy\n"
    '  cpu = _conversion_method_template(device=torch.device("cpu"))\n'
)


def test_a_warning_is_nobodys_last_word(build, lab):
    p = survivor(killed(build(), lab, code=7), lab).log(1, IMPORTED).judge("failure").primary
    assert "rank 1 以退出码 7 自行结束" in zh(p.says) and zh(p.says).endswith("；它的日志末尾对此只字未提")
    assert "rank 1 ended itself with exit code 7" in p.says and p.says.endswith("; its log ends without a word about it")
    assert not any("Warning" in e.text or "_conversion" in e.text for e in p.evidence)
    p = survivor(killed(build(), lab, code=7), lab).log(1, IMPORTED + "no more samples\n").judge("failure").primary
    assert "without a word" not in p.says and [e.text for e in p.evidence if e.source.endswith("rank1.err")] == ["no more samples"]


@pytest.mark.parametrize(("err", "out", "named"), [("words\n", "step 1\n", "rank1.err"), ("", "step 1\n", "rank1.out"), ("words\n", "", "rank1.err")])
def test_an_exit_code_names_a_log_that_holds_something(build, lab, err, out, named):
    p = survivor(killed(build(), lab, code=7), lab).log(1, out, stream="out").log(1, err).judge("failure").primary
    assert f"logs/attempt-0/{named}" in p.remedies[0].says and ("ends without a word" in p.says) is (not err)


def test_an_exit_code_of_a_rank_that_said_nothing_skips_what_torchrun_always_says(build, lab):
    b = survivor(killed(build(), lab, code=3), lab)
    b.log(1, "")
    noise = "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n" + "=" * 60 + "\n"
    b.log(None, "Failures:\nbad thing happened\n  exitcode  : 3 (pid: 4001)\n" + noise)
    p = b.judge("failure").primary
    assert "rank 1 ended itself with exit code 3" in p.says and "last seen at train.py:61 in load" in p.says
    # Nobody is sent to a file that is empty.
    assert p.says.endswith("; it printed nothing") and [r.id for r in p.remedies] == ["find-the-exit"]
    assert not any("To enable traceback" in e.text for e in p.evidence) and any("exitcode  : 3" in e.text for e in p.evidence)


def test_a_signal_at_a_place_that_only_a_heartbeat_knows(build, lab):
    p = survivor(killed(build(), lab, code=-11), lab).judge("failure").primary
    assert "SIGSEGV, last seen at train.py:61 in load" in p.says and "rank 1 被 SIGSEGV 结束，最后见于 train.py:61 in load" in zh(p.says)


def test_a_fatal_file_without_stacks_is_missed_only_of_a_rank_that_a_signal_ended(build, lab):
    text = "Fatal Python error: Aborted\n\n<no Python frame>\n"
    b = build().rank(0, raised=boom(lab), ended=lab.Ended(at_s=30.2, exitcode=1, announced=True)).fatal(0, text)
    assert not any("last stacks" in n.what for n in b.judge("failure").not_examined)
    b = survivor(killed(build(), lab, code=-6), lab).fatal(1, text)
    assert any("last stacks of rank 1" in n.what for n in b.judge("failure").not_examined)
