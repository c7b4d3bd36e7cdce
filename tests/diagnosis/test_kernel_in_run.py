"""The kernel log of a run: its lines are put to ranks by the PCI address of their GPU and by pid, and only those of this run count."""

from __future__ import annotations

import pytest

from unhang.diagnosis.logs import judge_logs

# The machine had been up for 90,000 s when the incident was written, 31 s into the run.
UP = 90_000.0
XID = "[{at}] NVRM: Xid (PCI:0000:{bus}:00): {code}, pid='<unknown>', name=<unknown>, {says}\n"
LOST = XID.format(at="89985.120441", bus="3b", code=79, says="GPU has fallen off the bus.")
NCCL = (
    "node0:{pid}:{pid} [{dev}] NCCL INFO comm 0x55d1c0 rank {rank} nranks 2 cudaDev {dev} nvmlDev {dev} busId {bus} commId 0x9f21a1 - Init COMPLETE\n"
)


def hang(build, lab, *, gpus=("0000:1b:00.0", "0000:3b:00.0")):
    b = build()
    frames = lab.in_collective("all_reduce", lab.user(40, "main"), lab.user(20, "step"))
    for number, gpu in enumerate(gpus):
        b.rank(number, frames=frames, entries=[*lab.steps(5), lab.Entry(seq=6, done=False, frames=frames)], backend="nccl", gpu=gpu)
    return b


def test_an_xid_names_the_rank_of_its_gpu(build, lab):
    b = hang(build, lab)
    b.dmesg("[1.0] usb 1-1: new device\n" + LOST)
    verdict = b.judge(uptime_s=UP)
    assert (verdict.primary.cause, verdict.primary.standing, verdict.primary.ranks) == ("gpu-hardware", "established", (1,))
    assert verdict.primary.hosts == ("node0",) and "Xid 79" in verdict.primary.says and "fallen off the bus" in verdict.primary.says
    assert [(e.source, e.line) for e in verdict.primary.evidence] == [("incidents/1/kernel.txt", 2)]


def test_the_gpu_of_a_rank_as_nccl_tells_it(build, lab):
    b = hang(build, lab, gpus=(None, None))
    b.log(0, NCCL.format(pid=4000, dev=0, rank=0, bus="1b000"))
    b.log(1, NCCL.format(pid=4001, dev=1, rank=1, bus="3b000"))
    b.dmesg(LOST)
    verdict = b.judge(uptime_s=UP)
    assert (verdict.primary.cause, verdict.primary.ranks) == ("gpu-hardware", (1,))


def test_whose_gpu_it_is_may_be_unknown(build, lab):
    b = hang(build, lab, gpus=(None, "0000:1b:00.0"))
    b.dmesg(LOST)
    verdict = b.judge(uptime_s=UP)
    assert (verdict.primary.cause, verdict.primary.ranks) == ("gpu-hardware", ())


def test_the_gpu_of_another_job_is_no_cause(build, lab):
    b = hang(build, lab)
    b.dmesg(XID.format(at="89985.1", bus="9a", code=79, says="GPU has fallen off the bus."))
    assert b.judge(uptime_s=UP).primary.cause != "gpu-hardware"


def test_what_the_kernel_told_before_the_run_is_not_its_cause(build, lab):
    b = hang(build, lab)
    b.dmesg(XID.format(at="4711.5", bus="3b", code=79, says="GPU has fallen off the bus."))
    assert b.judge(uptime_s=UP).primary.cause != "gpu-hardware"


@pytest.mark.parametrize("uptime_s", [None, UP])
def test_lines_that_cannot_be_dated_are_told_and_judged_by_nobody(build, lab, uptime_s):
    b = hang(build, lab)
    b.dmesg(LOST if uptime_s is None else LOST.partition("] ")[2])
    verdict = b.judge(uptime_s=uptime_s)
    assert verdict.primary.cause != "gpu-hardware"
    assert any(n.what == "1 line of the kernel log about devices" and "cannot be told" in n.why for n in verdict.not_examined)


def test_switches_and_nics_are_named_by_their_device_and_of_the_host(build, lab):
    b = hang(build, lab)
    b.dmesg(
        "[89980.5] nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
        "[89981.5] mlx5_core 0000:86:00.0: poll_health:815:(pid 0): Fatal error 1 detected\n"
    )
    verdict = b.judge(uptime_s=UP)
    found = {f.cause: f for f in (verdict.primary, *verdict.contributing)}
    assert found["nvlink-nvswitch-fabric"].hosts == found["nic-hardware"].hosts == ("node0",)
    assert "0000:c1:00.0" in found["nvlink-nvswitch-fabric"].evidence[0].text
    assert "0000:86:00.0" in found["nic-hardware"].says and found["nic-hardware"].ranks == ()


def killed(build, lab):
    b = build()
    b.rank(0, frames=lab.in_collective("all_reduce", lab.user(20, "step")), raised=lab.lost())
    return b.rank(1, ended=lab.Ended(at_s=20.0, exitcode=-9))


KILL = "[89985.4] Out of memory: Killed process {pid} (python3) total-vm:91234567kB, anon-rss:65012345kB\n"


def test_in_a_container_the_kernels_pids_are_not_ours(build, lab):
    b = killed(build, lab)
    b.dmesg(KILL.format(pid=70002))
    verdict = b.judge("failure", uptime_s=UP, host_pids=False)
    assert "shows an OOM kill of python3 (70002), and whether that is this rank cannot be told" in verdict.primary.says
    assert "shows no OOM kill" not in verdict.primary.says
    assert any(e.source == "incidents/1/kernel.txt" and e.line == 1 for e in verdict.primary.evidence)


def test_a_pid_of_the_host_that_happens_to_be_ours_proves_nothing(build, lab):
    b = killed(build, lab)
    b.dmesg(KILL.format(pid=4001))
    assert "OOM killer did it" in b.judge("failure", uptime_s=UP, host_pids=True).primary.says
    verdict = b.judge("failure", uptime_s=UP, host_pids=False)
    assert "OOM killer did it" not in verdict.primary.says and "cannot be told" in verdict.primary.says


def test_a_kill_before_the_run_is_of_another_process_with_that_pid(build, lab):
    b = killed(build, lab)
    b.dmesg(KILL.replace("89985.4", "4711.2").format(pid=4001))
    assert "the kernel log shows no OOM kill of it" in b.judge("failure", uptime_s=UP, host_pids=True).primary.says


def test_a_segfault_is_not_taken_from_the_hosts_pid_either(build, lab):
    b = build()
    b.rank(0, frames=lab.in_collective("all_reduce", lab.user(20, "step")), raised=lab.lost())
    b.rank(1, ended=lab.Ended(at_s=20.0, exitcode=-11))
    b.dmesg("[89985.4] pt_main_thread[4001]: segfault at 10 ip 00007f sp 00007f error 4 in libnccl.so.2[7f+1]\n")
    ours, theirs = (b.judge("failure", uptime_s=UP, host_pids=h).primary.evidence for h in (True, False))
    assert any("segfault at" in e.text for e in ours) and not any("segfault at" in e.text for e in theirs)


def in_logs(tmp_path, **texts):
    for name, text in texts.items():
        (tmp_path / f"{name}.log").write_text(text)
    return judge_logs([str(tmp_path / f"{name}.log") for name in texts]).verdict


NODES = {
    f"rank{rank}": f"node{rank // 2}:{4000 + rank}:{4000 + rank} [{rank % 2}] NCCL INFO comm 0x55d1c0 rank {rank} nranks 4 cudaDev {rank % 2} "
    f"nvmlDev {rank % 2} busId {bus} commId 0x9f21a1 - Init COMPLETE\n"
    for rank, bus in enumerate(("1b000", "3b000", "1b000", "3b000"))
}
SYSLOG = "Nov  3 10:00:01 {host} kernel: [89985.12] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(("host", "rank"), [("node0", 1), ("node1", 3)])
def test_in_logs_of_several_hosts_the_host_decides_whose_gpu_it_is(tmp_path, host, rank):
    verdict = in_logs(tmp_path, **NODES, kern=SYSLOG.format(host=host))
    assert (verdict.primary.cause, verdict.primary.ranks, verdict.primary.hosts) == ("gpu-hardware", (rank,), (host,))


def test_a_kernel_log_that_names_no_host_names_no_rank_of_several(tmp_path):
    verdict = in_logs(tmp_path, **NODES, dmesg=LOST)
    assert (verdict.primary.cause, verdict.primary.ranks) == ("gpu-hardware", ())


def test_a_kernel_log_of_the_only_host(tmp_path):
    verdict = in_logs(tmp_path, rank0=NODES["rank0"], rank1=NODES["rank1"], dmesg=LOST)
    assert (verdict.primary.cause, verdict.primary.ranks) == ("gpu-hardware", (1,))
