"""What a training goes on behind did not end it; what the survivors print is no reason of the one that fell."""

from __future__ import annotations

import pytest

from unhang.diagnosis.logs import judge_logs

XID = "[ 881.3] NVRM: Xid (PCI:0000:1b:00): 31, pid=70211, name=render, Ch 00000008, MMU Fault: ENGINE GRAPHICS faulted\n"
LINKED = "UserWarning: Failed to load audio extension: '/srv/env/lib/audio.so: undefined symbol: _ZN3c105ErrorD1Ev'\n"
BROKEN = 'Traceback (most recent call last):\n  File "/srv/job/load.py", line 12, in load\n    x = row["text"]\nKeyError: \'text\'\n'
ENDED = "E1103 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {}) local_rank: 5 (pid: 4106) of binary: python\n"
FAILED = "".join(f"[rank5]: {line}\n" for line in BROKEN.splitlines()) + ENDED.format(1)
WATCHDOG = (
    "[rank{0}]:[E1103 10:41:05 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=31, "
    "OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
)


def steps(count, begin=1):
    return "".join(f"step {n} loss 2.{n:03}\n" for n in range(begin, begin + count))


@pytest.fixture
def judge(tmp_path):
    def judge(text, **others):
        paths = [tmp_path / "train.log", *(tmp_path / f"{name}.log" for name in others)]
        for path, written in zip(paths, (text, *others.values()), strict=True):
            path.write_text(written)
        return judge_logs([str(p) for p in paths]).verdict

    return judge


@pytest.mark.parametrize("line", [XID, LINKED, "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0); reducing the batch size\n"])
def test_a_healthy_log_with_one_stray_line_gives_nothing(judge, line):
    assert judge(steps(3) + line + steps(40, 4)).primary is None
    assert judge(steps(3) + line + "preparing\n" * 200 + steps(3, 4)).primary is None


@pytest.mark.parametrize("line", [XID, LINKED])
@pytest.mark.parametrize("between", [steps(2, 4), "preparing\n" * 100 + steps(200, 4)])
def test_what_the_training_went_on_behind_is_not_why_it_failed(judge, line, between):
    v = judge(steps(3) + line + between + FAILED)
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("rank-exception", "established", (5,))
    assert all(c.standing == "possible" and "training steps follow" in c.says for c in v.contributing)


def test_behind_one_step_it_may_be(judge):
    v = judge(steps(3) + XID + steps(1, 4) + FAILED)
    assert v.primary.cause == "illegal-memory-access"


def test_a_trackers_summary_counts_no_steps(judge):
    summary = "".join(f"wandb: {name}/loss 0.{n}\n" for n, name in enumerate(("train", "eval", "test")))
    assert judge(steps(3) + XID + summary + FAILED).primary.cause == "illegal-memory-access"


def test_the_steps_of_the_next_attempt_are_not_of_this_one(judge):
    again = ENDED.format(-9) + "Restarting the worker group\n[default] attempts left; will restart worker group\n"
    v = judge(steps(3) + XID.replace("31, pid=70211, name=render", "79, pid=4106, name=python") + again + steps(40), other="")
    assert v.primary is None and any("attempt 1" in n.what for n in v.not_examined)


def test_steps_in_another_log_are_told_by_their_time(judge):
    kernel = f"2026-11-03T10:00:05Z node7 kernel: {XID.split('] ', 1)[1]}"
    timed = "".join(f"2026-11-03 10:{n:02}:00 step {n} loss 2.{n}\n" for n in range(40))
    assert judge(timed, kernel=kernel).primary is None
    assert judge(timed.replace(" 10:", " 09:"), kernel=kernel).primary is not None


def test_a_hang_is_told_by_who_waited_not_by_what_was_passed(judge):
    v = judge(steps(2) + LINKED.replace("UserWarning", "E") + XID + steps(40, 3) + "".join(WATCHDOG.format(r) for r in range(4)))
    assert v.primary.cause == "collective-timeout" and "waited" in v.primary.says
    assert [c.cause for c in v.contributing] == ["illegal-memory-access"]


def test_an_exception_that_was_logged_and_survived_explains_no_later_hang(judge):
    v = judge("ERROR:data:cannot decode\n" + BROKEN + steps(40) + "".join(WATCHDOG.format(r) for r in range(4)))
    assert v.primary.cause == "collective-timeout"
    assert [(c.cause, c.standing) for c in v.contributing] == [("rank-exception", "possible")]


@pytest.mark.parametrize(
    "survivor",
    [
        "[rank{}]: RuntimeError: Gloo connectFullMesh failed with [/g/gloo/transport/tcp/pair.cc:144] no error\n",
        "[rank{}]: node1:330:3702 [0] transport/net_ib.cc:2230 NCCL WARN NET/IB: Got completion from peer 10.0.0.9<4123> with status=12 opcode=0\n",
        "[rank{}]: node1:330:3702 [0] socket.cc:484 NCCL WARN Connect to 10.0.0.5<40123> failed : Software caused connection abort\n",
    ],
)
def test_what_survivors_print_is_no_reason_of_the_one_that_fell(judge, survivor):
    v = judge(FAILED + "".join(survivor.format(r) for r in (0, 1, 2)))
    assert (v.primary.cause, v.primary.ranks) == ("rank-exception", (5,))


def test_local_ranks_tell_them_apart_too(tmp_path):
    lost = "node1:33{0}:3702 [{0}] transport/net_ib.cc:2230 NCCL WARN NET/IB: Got completion from peer 10.0.0.9<4123> with status=12 opcode=0\n"
    for local in range(4):
        folder = tmp_path / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(FAILED.replace("rank5", "rank2") if local == 2 else lost.format(local))
    v = judge_logs([str(tmp_path)]).verdict
    assert v.primary.cause == "rank-exception"
    assert [c.cause for c in v.contributing] == ["ib-transport-retry"]


def test_an_import_that_failed_ends_something_only_where_it_was_raised(judge):
    said = "ImportError: /srv/env/flash.so: undefined symbol: _ZN3c105ErrorD1Ev"
    raised = f'Traceback (most recent call last):\n  File "/srv/job/train.py", line 3, in <module>\n    import flash\n{said}\n'
    assert judge(raised).primary.standing == "established"
    v = judge(LINKED + ENDED.format(-9))
    assert (v.primary.cause, [c.standing for c in v.contributing]) == ("host-oom-or-killed", ["possible"])


def test_an_assertion_of_the_gpu_is_of_the_rank_that_raised_it(judge):
    printed = "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss: block: [0,0,0], thread: [1,0,0] Assertion `t < n_classes` failed.\n"
    raised = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/srv/job/train.py", line 77, in step\n'
    v = judge(printed + raised + "[rank1]: RuntimeError: CUDA error: device-side assert triggered\n")
    assert (v.primary.cause, v.primary.ranks, v.primary.where) == ("illegal-memory-access", (1,), "/srv/job/train.py:77 in step")
    assert "t < n_classes" in v.primary.says
