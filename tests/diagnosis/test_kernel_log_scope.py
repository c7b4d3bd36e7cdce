"""Kernel logs beside those of a job: lines of another time are no cause, and those that nothing dates or ties to the job are no proof."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.chinese import both, zh

from unhang.diagnosis.kernel_log_scope import Doubt, weighed
from unhang.diagnosis.logs import judge_logs
from unhang.knowledge.cause import LogView
from unhang.logs import Hit, Signature
from unhang.model import Evidence, Finding

STEP = "[rank{r}]: 2026-11-22 03:00:00 step 1000 loss 2.31\n"
TIMEOUT = (
    "[rank{r}]:[E1122 03:10:05.12{r}456789 ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4001, "
    "OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)
JOB = "".join(STEP.format(r=r) for r in (0, 1)) + "".join(TIMEOUT.format(r=r) for r in (1, 2, 3))
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
ECC = "NVRM: Xid (PCI:0000:3b:00): 48, pid=4711, name=python, DBE\n"
OOM = "Out of memory: Killed process 4711 (python) total-vm:123456kB, anon-rss:99999kB\n"
KILLED = (
    "E1122 03:10:06.000000 9 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: {pid}) of binary: p\n"
)
NCCL = (
    "node0:4001:4001 [1] NCCL INFO comm 0x55d1c0 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 3b000 commId 0x9f21a1 - Init COMPLETE\n"
    "node0:4000:4000 [0] NCCL INFO comm 0x55d1c0 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9f21a1 - Init COMPLETE\n"
)
ON_NODE1 = NCCL.replace("node0:400", "node1:500").replace("rank 1", "rank 3").replace("rank 0", "rank 2")


def judged(tmp_path, kernel, job=JOB, name="dmesg.txt"):
    (tmp_path / "train.log").write_text(job)
    (tmp_path / name).write_text(kernel)
    return judge_logs([str(tmp_path / name), str(tmp_path / "train.log")]).verdict


def told(verdict):
    return {f.cause: f.standing for f in (verdict.primary, *verdict.contributing) if f is not None}


def left(verdict):
    return [n for n in verdict.not_examined if "of the kernel" in n.what]


@pytest.mark.parametrize(
    "line",
    [
        "[Tue Oct 20 01:00:00 2026] " + LOST,
        "2026-10-20T01:00:00,123456+00:00 " + LOST,
        "Oct 20 01:00:00 gpu17 kernel: " + LOST,
        "[Tue Oct 20 01:00:00 2026] " + OOM,
        "[Mon Nov 23 23:00:00 2026] " + LOST,
    ],
)
def test_lines_of_another_day_are_no_cause_and_are_told(tmp_path, line):
    verdict = judged(tmp_path, line)
    assert (verdict.primary.cause, verdict.primary.standing) == ("collective-timeout", "not-established") and not verdict.contributing
    (n,) = left(verdict)
    assert "1 line of the kernel" in n.what and ("before this job" in n.why or "after this job" in n.why) and "2026-11-22 03:00 to 03:10" in n.why
    assert zh(n.what) and zh(n.why) and not n.unread


def test_in_one_file_with_the_job(tmp_path):
    (tmp_path / "all.log").write_text("[Tue Oct 20 01:00:00 2026] " + LOST + JOB)
    verdict = judge_logs([str(tmp_path / "all.log")]).verdict
    assert verdict.primary.cause == "collective-timeout" and left(verdict)


def test_a_pid_of_a_month_ago_is_another_process(tmp_path):
    verdict = judged(tmp_path, "[Tue Oct 20 01:00:00 2026] " + OOM, JOB + KILLED.format(pid=4711))
    assert verdict.primary.cause == "host-oom-or-killed" and "by whom is not in the log" in verdict.primary.says and left(verdict)


def test_an_exact_time_after_the_failure(tmp_path):
    job = JOB.replace("2026-11-22 03:00:00 step", "2026-11-22T03:00:00+00:00 step").replace("[E1122 03:10", "2026-11-22T03:10:05+00:00 [E1122 03:10")
    verdict = judged(tmp_path, "2026-11-22T05:00:00+00:00 node0 kernel: " + LOST, job)
    assert "gpu-hardware" not in told(verdict) and left(verdict)


def test_where_only_some_lines_of_the_job_have_a_zone(tmp_path):
    begun = "2026-11-22T02:00:00+00:00 INFO entrypoint: starting torchrun --nproc-per-node 4\n"
    job = begun + JOB + KILLED.format(pid=4711)
    verdict = judged(tmp_path, "2026-11-22T03:10:04.000000+00:00 node0 kernel: " + OOM, job)
    assert verdict.primary.standing == "established" and "OOM killer ended process 4711" in verdict.primary.says and not left(verdict)
    verdict = judged(tmp_path, "2026-11-21T21:10:04+00:00 node0 kernel: " + LOST, begun + JOB)
    assert "gpu-hardware" not in told(verdict) and "before this job" in left(verdict)[0].why
    # The zone of one line alone proves that the job ran then.
    job = JOB.replace("2026-11-22 03:00:00", "2026-11-22T11:00:00+08:00").replace("E1122 03:10", "E1122 11:10") + KILLED.format(pid=99)
    verdict = judged(tmp_path, "2026-11-22T03:00:20+00:00 kernel: " + LOST, job)
    assert told(verdict)["gpu-hardware"] == "likely"


@pytest.mark.parametrize("at", ["08:39:58", "08:54:58", "21:24:58", "17:39:58"])
def test_zones_that_are_not_whole_hours_from_utc(tmp_path, at):
    day = "Sat Nov 21" if at > "15" else "Sun Nov 22"
    oom = judged(tmp_path, f"[{day} {at} 2026] " + OOM, JOB + KILLED.format(pid=4711))
    assert oom.primary.standing == "established" and "OOM killer ended process 4711" in oom.primary.says and not left(oom)
    lost = judged(tmp_path, f"[{day} {at} 2026] " + LOST)
    assert told(lost) == {"gpu-hardware": "possible"} and "time zones" in lost.primary.says


def test_whole_hours_apart_may_be_time_zones(tmp_path):
    verdict = judged(tmp_path, "[Sun Nov 22 11:09:00 2026] " + LOST)
    assert told(verdict) == {"gpu-hardware": "possible"} and "time zones" in verdict.primary.says and "2026-11-22 11:09" in verdict.primary.says
    verdict = judged(tmp_path, "[Sun Nov 22 11:39:00 2026] " + LOST)
    assert told(verdict) == {"collective-timeout": "not-established"} and left(verdict)


def test_within_the_time_of_the_job(tmp_path):
    verdict = judged(tmp_path, "[Sun Nov 22 03:00:20 2026] " + LOST)
    assert told(verdict) == {"gpu-hardware": "likely"} and "is not told" in verdict.primary.says and not left(verdict)
    verdict = judged(tmp_path, "Nov 22 03:00:20 node0 kernel: " + LOST, NCCL + JOB)
    assert told(verdict) == {"gpu-hardware": "established"} and verdict.primary.ranks == (1,)
    verdict = judged(tmp_path, "Nov 22 03:00:20 node9 kernel: " + LOST, NCCL + JOB)
    assert told(verdict) == {"gpu-hardware": "possible"} and "node9" in verdict.primary.says
    verdict = judged(tmp_path, "[Sun Nov 22 03:00:20 2026] " + LOST, NCCL + ON_NODE1 + JOB)
    assert told(verdict) == {"gpu-hardware": "possible"}


def test_lines_without_a_date(tmp_path):
    verdict = judged(tmp_path, "[86399.000123] " + LOST)
    assert told(verdict) == {"gpu-hardware": "possible"} and "start of the machine" in verdict.primary.says
    assert verdict.symptoms[0].cause == "collective-timeout"
    verdict = judged(tmp_path, "[86399.000123] " + LOST, NCCL + JOB)
    assert told(verdict) == {"gpu-hardware": "likely"} and verdict.primary.ranks == (1,)
    verdict = judged(tmp_path, "[86399.000123] " + ECC, JOB + KILLED.format(pid=4711))
    assert told(verdict)["gpu-hardware"] == "likely"


def test_an_undated_kill_of_a_rank_and_of_another_process(tmp_path):
    verdict = judged(tmp_path, "[86399.000123] " + OOM, JOB + KILLED.format(pid=4711))
    assert verdict.primary.standing == "established" and "OOM killer ended process 4711" in verdict.primary.says
    verdict = judged(tmp_path, "[86399.000123] " + OOM, JOB + KILLED.format(pid=99))
    p = verdict.primary
    assert (p.cause, p.standing) == ("host-oom-or-killed", "established") and "by whom is not in the log; a kernel log beside it" in p.says
    assert "start of the machine" in p.says and [e.source.rpartition("/")[2] for e in p.evidence] == ["train.log", "dmesg.txt"]
    assert told(judged(tmp_path, "[86399.000123] " + OOM)) == {"host-oom-or-killed": "possible"}


def test_what_a_rank_prints_itself_ties_the_kernels_line(tmp_path):
    ecc = "[rank1]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
    verdict = judged(tmp_path, "[86399.000123] " + ECC.replace("pid=4711, name=python", "pid='<unknown>', name=<unknown>"), JOB + ecc)
    assert told(verdict)["gpu-hardware"] == "established"


def test_a_log_that_begins_with_the_failure(tmp_path):
    job = "".join(TIMEOUT.format(r=r) for r in (1, 2, 3))
    assert told(judged(tmp_path, "[Sun Nov 22 03:00:20 2026] " + LOST, job)) == {"gpu-hardware": "likely"}
    verdict = judged(tmp_path, "[Sat Nov 21 03:40:20 2026] " + LOST, job)
    assert told(verdict) == {"gpu-hardware": "possible"} and "that of the failure" in verdict.primary.says
    assert left(judged(tmp_path, "[Tue Nov 10 03:40:20 2026] " + LOST, job))


def test_a_job_that_only_stopped_printing_may_have_gone_on(tmp_path):
    steps = "".join(STEP.format(r=r) for r in (0, 1))
    verdict = judged(tmp_path, "[Sun Nov 22 03:30:00 2026] " + LOST, steps)
    assert told(verdict) == {"gpu-hardware": "possible"} and "after the last line" in verdict.primary.says


def test_beside_a_log_in_which_nothing_is_recognised(tmp_path):
    verdict = judged(tmp_path, "[Tue Oct 20 01:00:00 2026] " + LOST, "2026-11-22 03:00:00 hello\n")
    assert told(verdict) == {"gpu-hardware": "possible"} and "nothing was recognised" in verdict.primary.says


def test_a_kernel_log_alone_is_answered(tmp_path):
    path = tmp_path / "dmesg.txt"
    for line in ("[86399.000123] " + LOST, "[Tue Oct 20 01:00:00 2026] " + LOST):
        path.write_text(line)
        verdict = judge_logs([str(path)]).verdict
        assert (verdict.primary.cause, verdict.primary.standing) == ("gpu-hardware", "established")


RAISED = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/train.py", line 8, in <module>\n[rank1]:     main()\n[rank1]: ValueError: NaN\n'
)
FAILED = KILLED.replace("exitcode: -9", "exitcode: {code}")
INSIDE = "2026-11-22T03:09:58 {host} kernel: "


def test_an_equal_pid_is_no_tie_where_the_rank_ended_in_another_way(tmp_path):
    for name in ("mysqld", "python3"):
        kernel = "[  812.100100] " + OOM.replace("4711 (python)", f"312 ({name})")
        verdict = judged(tmp_path, kernel, JOB + RAISED + FAILED.format(code=1, pid=312))
        assert (verdict.primary.cause, verdict.primary.standing) == ("rank-exception", "established")
        assert told(verdict).get("host-oom-or-killed") in (None, "possible")


def test_an_equal_pid_is_no_tie_on_another_host(tmp_path):
    job = NCCL + JOB + KILLED.format(pid=4001)
    oom = OOM.replace("4711", "4001")
    p = judged(tmp_path, INSIDE.format(host="node7") + oom, job).primary
    assert p.says.startswith("rank 1") and "by whom is not in the log" in p.says and "node7 is named nowhere else" in p.says and not p.hosts
    p = judged(tmp_path, INSIDE.format(host="node0.cluster") + oom, job).primary
    assert (p.standing, p.hosts) == ("established", ("node0.cluster",)) and "OOM killer ended process 4001" in p.says


def test_an_equal_pid_without_a_date_leaves_the_doubt(tmp_path):
    p = judged(tmp_path, "[86399.000123] " + OOM, JOB + KILLED.format(pid=4711)).primary
    assert "by whom is not in the log; a kernel log beside it" in p.says and "start of the machine" in p.says
    # Hours before its rank was said to be killed.
    job = "".join(TIMEOUT.format(r=r) for r in (1, 2, 3)) + KILLED.format(pid=4711)
    p = judged(tmp_path, "[Sat Nov 21 03:40:20 2026] " + OOM, job).primary
    assert "by whom is not in the log; a kernel log beside it" in p.says and "that of the failure" in p.says


def test_the_same_pid_at_the_same_time_of_another_zone(tmp_path):
    job = JOB + KILLED.format(pid=4711)
    p = judged(tmp_path, "[Sun Nov 22 11:09:58 2026] " + OOM, job).primary
    assert p.standing == "established" and p.says.startswith("the kernel's OOM killer ended process 4711")
    job = JOB + KILLED.format(pid=4711).replace("E1122 03:10:06", "E1122 07:40:06")
    p = judged(tmp_path, "[Sun Nov 22 12:24:58 2026] " + OOM, job).primary
    assert "by whom is not in the log; a kernel log beside it" in p.says and "time zones" in p.says


FELL = LOST.replace("pid='<unknown>', name=<unknown>", "pid=4001, name=python3")


def test_what_befell_a_rank_stands_before_a_kill_by_somebody_unknown(tmp_path):
    def judged(kernel, job):
        paths = [tmp_path / "train.log", tmp_path / "dmesg.txt"]
        for path, text in zip(paths, (job, kernel), strict=True):
            path.write_text(text)
        return judge_logs([str(p) for p in paths]).verdict

    fell = "2026-11-22T03:10:04+00:00 node0 kernel: " + FELL
    for job in (NCCL + JOB, JOB):
        found = told(judged(fell, job + KILLED.format(pid=4001)))
        assert list(found.items())[:2] == [("gpu-hardware", "established"), ("host-oom-or-killed", "established")]
        assert judged(fell, job + KILLED.format(pid=4000)).primary.cause == "host-oom-or-killed"
    # Who ended it is known.
    oom = fell.replace(FELL, OOM.replace("4711", "4001"))
    verdict = judged(oom + fell, NCCL + JOB + KILLED.format(pid=4001))
    assert verdict.primary.cause == "host-oom-or-killed" and told(verdict)["gpu-hardware"] == "established"


def test_a_line_that_the_cause_sets_aside_is_no_doubt(tmp_path):
    kernel = "[  812.100100] " + OOM.replace("4711 (python)", "313 (mysqld)")
    p = judged(tmp_path, kernel, JOB + KILLED.format(pid=4711)).primary
    assert p.says == "local rank 1 was killed (SIGKILL); by whom is not in the log"
    assert [e.source.rpartition("/")[2] for e in p.evidence] == ["train.log"]


def finding(*lines, says="own", chinese="自己"):
    evidence = tuple(Evidence(source="dmesg", line=n, text="") for n in lines)
    return Finding(cause="host-oom-or-killed", standing="established", says=both(says, chinese), evidence=evidence)


def test_both_languages_tell_what_stands_beside_it():
    kernels = Hit(signature=Signature(needle="x"), source="dmesg", line=7, text=OOM, groups={"pid": "4711"})
    launchers = replace(kernels, source="train.log", line=1)
    view = LogView(hits={"host-oom-or-killed": (kernels, launchers)})
    why = both("nobody knows when", "不知道是什么时候")
    doubts = {("dmesg", 7): Doubt(alone="possible", with_gpu="likely", with_pid="likely", why=why)}

    def answer(of):
        return finding() if kernels not in of.hits_of("host-oom-or-killed") else finding(7, says="theirs", chinese="别的")

    beside = weighed(view, doubts, "host-oom-or-killed", answer)
    assert beside.says == "own; a kernel log beside it: theirs (nobody knows when)"
    assert zh(beside.says) == "自己；旁边的内核日志：别的（不知道是什么时候）" and [e.line for e in beside.evidence] == [7]
    alone = weighed(
        replace(view, hits={"host-oom-or-killed": (kernels,)}), doubts, "host-oom-or-killed", lambda of: answer(of) if any(of.hits.values()) else None
    )
    assert (alone.standing, alone.says, zh(alone.says)) == ("possible", "theirs; nobody knows when", "别的；不知道是什么时候")
