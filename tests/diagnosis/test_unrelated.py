"""Logs of several jobs given together: told apart where two things say so, and never the logs of one job."""

from __future__ import annotations

import pytest

from unhang.diagnosis.logs import judge_logs
from unhang.diagnosis.unrelated import MAX_JOBS, newest_job
from unhang.knowledge import catalogue

OMP = "W1103 {t} 4700 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1\n"
PORT = (
    "2026-11-03 {t},000 [rank0]: torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)
OOM = "2026-11-03 {t},000 [rank{r}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
SIZE = "2026-11-03 {t},000 world_size: {n}\n"
NCCL = "2026-11-03 {t},000 {who} [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.7<0>\n"
XID = "2026-11-03T{t}.000000+00:00 node9 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
LOSS = "2026-11-03 {t},000 step 7 loss 1.9\n"
ENDED = "  host      : {host}\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: {pid})\n"


@pytest.fixture
def newest(reads):
    """The logs of the newest job, and what was said of the others."""

    def newest(files):
        of_job, others = newest_job(reads(files), catalogue.signatures())
        return [r.source for r in of_job], [n.what for n in others]

    return newest


def job(begin, end, *, size=None, who=None, failure=OOM, rank=0):
    """A log that begins, tells its size and its host where they are given, and fails."""
    text = OMP.format(t=begin)
    text += SIZE.format(t=begin, n=size) if size else ""
    text += NCCL.format(t=begin, who=who) if who else ""
    return text + failure.format(t=end, r=rank)


EARLY, LATE = ("02:00:00", "02:01:00"), ("09:00:00", "09:30:00")
A, B = "node1:52:90", "node7:61:99"


ONE, TWO = "slurm-4711.out", "slurm-4820.out"


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        # More than an hour, and other hosts, another size or another number.
        (job(*EARLY, who=A), job(*LATE, who=B), ("a.log", "b.log")),
        (job(*EARLY, size=8), job(*LATE, size=16), ("a.log", "b.log")),
        (job(*EARLY), job(*LATE), (ONE, TWO)),
        (job(*EARLY, who=A), job(*LATE, who=A), (ONE, TWO)),
        # At one time.
        (job(*EARLY, who=A), job(*EARLY, who=B), ("slurm_4711/x.log", "slurm_4820/x.log")),
        # No start, but steps from the first line on; the host stands in what torchrun ends with.
        (
            job(*EARLY) + ENDED.format(host="node1", pid=90),
            LOSS.format(t="09:00:00") + OOM.format(t="09:30:00", r=0) + ENDED.format(host="node7", pid=99),
            ("a.log", "b.log"),
        ),
        # Without times, the last one given is the newest.
        (f"{A} [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>\n", f"{B} [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.8<0>\n", (ONE, TWO)),
        (f"{A} [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>\n", f"{B} [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.8<0>\n", (TWO, ONE)),
    ],
)
def test_two_things_tell_jobs_apart(newest, a, b, names):
    assert newest(dict(zip(names, (a, b), strict=True))) == ([names[1]], [names[0]])


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        # Restarts, nodes, elastic jobs, numbers: one thing alone; and groups of other sizes on other hosts.
        (job(*EARLY, size=8), job(*LATE, size=8), ("a.log", "b.log")),
        (job(*EARLY), job(*LATE), ("a.log", "b.log")),
        (job(*EARLY, size=8, who=A), job(*EARLY, size=16, who=B), ("a.log", "b.log")),
        (job(*EARLY, who=A), job(*EARLY, who=A), (ONE, TWO)),
        (job(*EARLY), job(*EARLY), (ONE, TWO)),
        (job(*EARLY, who=A), job(*EARLY, who=B), ("job-0.log", "job-1.log")),
        # Less than a restart takes, or nothing failed, or nothing tells that the other one only began then.
        (job("02:00:00", "02:01:00", who=A), job("02:50:00", "02:51:00", who=B), ("a.log", "b.log")),
        (job("02:00:00", "02:01:00", who=A, failure=LOSS), job(*LATE, who=B), ("a.log", "b.log")),
        (job(*EARLY, who=A), NCCL.format(t="08:00:00", who=B) + OOM.format(t="09:30:00", r=0), ("a.log", "b.log")),
        (
            job(*EARLY, who=A),
            SIZE.format(t="01:30:00", n=8) + NCCL.format(t="08:00:00", who=B) + OOM.format(t="09:30:00", r=0),
            ("a.log", "b.log"),
        ),
        # An address and a name may be one host.
        (job(*EARLY, who="10.0.0.7:52:90"), job(*LATE, who=B), ("a.log", "b.log")),
        (job(*EARLY, who="node7.cluster:51:90"), job(*LATE, who=B), ("a.log", "b.log")),
    ],
)
def test_one_does_not(newest, a, b, names):
    assert newest(dict(zip(names, (a, b), strict=True))) == (list(names), [])


@pytest.mark.parametrize(
    "names",
    [
        ("run/attempt_0/0/stderr.log", "run/attempt_1/0/stderr.log"),
        ("slurm_4711/first.log", "slurm_4711/second.log"),
        ("4711/first.log", "4711/second.log"),
        ("train-attempt1.log", "train-attempt2.log"),
        ("slurm-471123.out", "launcher_471123.log"),
        (f"worker-{'0a' * 28}-01000000-4711.out", f"worker-{'f3' * 28}-01000000-4820.err"),
        ("session_2026-11-03_02-00-00_1_52/logs/raylet.out", "session_2026-11-03_02-00-00_1_52/logs/gcs_server.out"),
    ],
)
def test_names_of_one_job(newest, names):
    files = dict(zip(names, (job(*EARLY, size=8, who=A), job(*LATE, size=16, who=B)), strict=True))
    assert newest(files) == (list(names), [])


def test_a_kernel_log_is_no_job(newest):
    assert newest({"dmesg": XID.format(t="01:00:00"), "b.log": job(*LATE, size=16, who=B).replace(",000 ", "+00:00 ")})[1] == []


def test_ranks_of_two_jobs(newest):
    """Each is one entry, in the order given; what tells nothing belongs to the largest job, what has a time to the nearest."""
    first = {f"first/rank{r}.log": job(*EARLY, size=8, who=f"node{r}:52:90", rank=r) for r in range(5)}
    second = {f"second/rank{r}.log": job(*LATE, size=2, who=f"node1{r}:52:90", rank=r) + "x\n" * 900 for r in range(2)}
    loose = {"notes.txt": "it failed again\n", "watch.txt": XID.format(t="02:00:30").replace("+00:00", "")}
    of_job, others = newest({**loose, **first, **second})
    assert of_job == ["notes.txt", *second]
    assert others == ["watch.txt, first/rank0.log, first/rank1.log and 3 more"]


def test_jobs_are_bounded(newest):
    """Each has a number and a host of its own."""
    hosts = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(2 * MAX_JOBS)]
    files = {f"slurm-{1000 + n}.out": f"{host}x:52:90 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>\n" for n, host in enumerate(hosts)}
    of_job, others = newest(files)
    assert of_job and len(others) == MAX_JOBS - 1


def test_the_earlier_jobs_failure_is_none_of_the_later_ones(tmp_path):
    a, b = tmp_path / "a.log", tmp_path / "b.log"
    a.write_text(job(*EARLY, size=8, failure=PORT))
    b.write_text(job(*LATE, size=16))
    verdict = judge_logs([str(b), str(a)]).verdict
    assert (verdict.primary.cause, verdict.contributing) == ("gpu-oom", ())
    assert [i.source for i in verdict.inputs] == [str(b)]
    assert any(n.what == str(a) and n.why == "another job; give it alone" and not n.unread for n in verdict.not_examined)
    assert judge_logs([str(a)]).verdict.primary.cause == "port-in-use"
