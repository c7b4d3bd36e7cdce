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
COMM = "2026-11-03 {t},000 {who} [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1 commId 0xabc - Init COMPLETE\n"
XID = "2026-11-03T{t}.000000+00:00 node9 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
LOSS = "2026-11-03 {t},000 step 7 loss 1.9\n"
ENDED = "  host      : {host}\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: {pid})\n"
LATER = OOM.format(t="02:04:00", r=0)


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


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (job(*EARLY, size=8), job(*LATE, size=16)),
        (job(*EARLY, who=A), job(*LATE, who=B)),
        (job(*EARLY, size=8, who=A), job(*LATE, size=16, who=B)),
        (job(*EARLY, size=8, who=A), job(*EARLY, size=16, who=B)),
        # No start, but steps from the first line on; the host stands in what torchrun ends with.
        (
            job(*EARLY) + ENDED.format(host="node1", pid=90),
            LOSS.format(t="09:00:00") + OOM.format(t="09:30:00", r=0) + ENDED.format(host="node7", pid=99),
        ),
        # A rank that is heard from two jobs of different sizes, or from two hosts.
        (job(*EARLY, size=8) + PORT.format(t="02:03:00"), job("02:01:30", "02:02:00", size=16) + LATER),
        (job(*EARLY, who=A) + PORT.format(t="02:03:00"), job("02:01:30", "02:02:00", who=B) + LATER),
    ],
)
def test_two_things_tell_jobs_apart(newest, a, b):
    a = a.replace("CUDA out of memory.", "CUDA out of memory on GPU 0.")
    assert newest({"a.log": a, "b.log": b}) == (["b.log"], ["a.log"])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        # Restarts, elastic jobs, nodes: one thing alone.
        (job(*EARLY, size=8), job(*LATE, size=8)),
        (job(*EARLY), job(*LATE)),
        (job(*EARLY, size=8), job(*EARLY, size=16, rank=1)),
        (job(*EARLY, who=A), job(*EARLY, who=B, rank=1)),
        # Less than a restart takes, or nothing failed, or nothing tells that the other one only began then.
        (job("02:00:00", "02:01:00", size=8), job("02:50:00", "02:51:00", size=16)),
        (job("02:00:00", "02:01:00", size=8, failure=LOSS), job(*LATE, size=16)),
        (job(*EARLY, who=A), NCCL.format(t="08:00:00", who=B) + OOM.format(t="09:30:00", r=0)),
        (job(*EARLY, who=A), SIZE.format(t="01:30:00", n=8) + NCCL.format(t="08:00:00", who=B) + OOM.format(t="09:30:00", r=0)),
        # The same processes, the same communicator.
        (job(*EARLY, size=8, who=A), job(*LATE, size=16, who=A)),
        (job(*EARLY, size=8, who=A) + COMM.format(t="02:00:09", who=A), job(*LATE, size=16, who=B) + COMM.format(t="09:00:09", who=B)),
        # One log holds what was copied from the other.
        (job(*EARLY, who=A) + OOM.format(t="02:05:00", r=0), job(*EARLY, who=B) + OOM.format(t="02:05:00", r=0)),
        # An address and a name may be one host.
        (job(*EARLY, who="10.0.0.7:52:90"), job(*LATE, who=B)),
        (job(*EARLY, who="node7.cluster:51:90"), job(*LATE, who=B)),
    ],
)
def test_one_does_not(newest, a, b):
    assert newest({"a.log": a, "b.log": b}) == (["a.log", "b.log"], [])


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


@pytest.mark.parametrize(
    "names",
    [
        ("rank0.log", "rank1.log"),
        ("node1.out", "node7.err"),
        ("train.node1.log", "train.node7.log"),
        ("4711_0_log.err", "4711_12_log.out"),
        ("0/stdout.log", "1/stderr.log"),
        ("nccl.node1.4711.log", "nccl.node7.4820.log"),
    ],
)
def test_nodes_of_one_job_have_different_hosts(newest, names):
    """One failed early and was quiet, the other one began late."""
    quiet, late = job(*EARLY, who=A), job(*LATE, who=B)
    assert newest(dict(zip(names, (quiet, late), strict=True))) == (list(names), [])
    assert newest({"a.log": quiet, "b.log": late}) == (["b.log"], ["a.log"])
    # Their sizes differ as well: whatever their names are, these are two jobs.
    sized = (job(*EARLY, size=8, who=A), job(*LATE, size=16, who=B))
    assert len(newest(dict(zip(names, sized, strict=True)))[1]) == 1


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


@pytest.mark.parametrize("names", [("slurm-471123.out", "slurm-471124.out"), ("a/rank0.log", "b/rank0.log"), ("job_12/out.log", "job_13/out.log")])
def test_names_of_two_jobs(newest, names):
    files = dict(zip(names, (job(*EARLY, size=8), job(*LATE, size=16)), strict=True))
    assert newest(files) == ([names[1]], [names[0]])


def test_jobs_are_bounded(newest):
    """Each has a size and a host of its own."""
    hosts = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(2 * MAX_JOBS)]
    files = {
        f"{host}.txt": f"world_size: {n + 1}\n{host}x:52:90 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>\n" for n, host in enumerate(hosts)
    }
    of_job, others = newest(files)
    assert of_job and len(others) == MAX_JOBS - 1


def test_without_times_the_last_one_given_is_the_newest(newest):
    a = f"world_size: 8\n{A} [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>\n"
    b = f"world_size: 16\n{B} [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.8<0>\n"
    assert newest({"a.log": a, "b.log": b}) == (["b.log"], ["a.log"])
    assert newest({"b.log": b, "a.log": a}) == (["a.log"], ["b.log"])


def test_the_earlier_jobs_failure_is_none_of_the_later_ones(tmp_path):
    a, b = tmp_path / "a.log", tmp_path / "b.log"
    a.write_text(job(*EARLY, size=8, failure=PORT))
    b.write_text(job(*LATE, size=16))
    verdict = judge_logs([str(b), str(a)]).verdict
    assert (verdict.primary.cause, verdict.contributing) == ("gpu-oom", ())
    assert [i.source for i in verdict.inputs] == [str(b)]
    assert any(n.what == str(a) and n.why == "another job; give it alone" and not n.unread for n in verdict.not_examined)
    assert judge_logs([str(a)]).verdict.primary.cause == "port-in-use"


def test_trainers_and_servers_of_one_run(newest):
    """Groups of other sizes on other hosts, at one time."""
    of_job, others = newest({"trainer.log": job(*EARLY, size=8, who=A, rank=3), "server.log": job(*EARLY, size=16, who=B, rank=9)})
    assert len(of_job) == 2 and not others
