"""A timeout of a communication library beside NCCL and Gloo: its rank waited, and no line of it is at fault."""

from __future__ import annotations

import pytest
from tests.tables import for_each

from unhang.diagnosis.logs import judge_logs

RAISED = (
    "Traceback (most recent call last):\n"
    '  File "/srv/job/train.py", line 77, in step\n'
    "    out = layer(x)\n"
    '  File "/opt/py/lib/python3.12/site-packages/deep_ep/buffer.py", line 584, in internode_dispatch\n'
    "    recv = self.runtime.internode_dispatch(x)\n"
)


def ranked(text, prefix="[rank17]: "):
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@pytest.fixture
def judge(tmp_path):
    def judge(text):
        path = tmp_path / "train.log"
        path.write_text(text)
        return judge_logs([str(path)]).verdict

    return judge


NVL = "DeepEP dispatch NVL receiver timeout, channel: 2, RDMA: 1, nvl: 0, src NVL: 3, head: 88, tail: 88\n"
LAUNCH = "  what():  Failed: CUDA error /src/csrc/deep_ep.cpp:83 'unspecified launch failure'\n"
HCCL = (
    RAISED + "RuntimeError: InnerRunOpApi OPS function error: HcclAllreduce, error code is 6\n"
    "[ERROR] 2026-02-11-08:15:42 (PID:4711, Device:5, RankID:5) ERR01100 OPS call acl api failed.\n"
    "EI0006: [PID: 4711] Getting socket times out. Reason: Remote Rank did not send the data in time.\n"
)
NOTIFY = (
    RAISED + "RuntimeError: npuSynchronizeDevice NPU function error: AclrtSynchronizeDeviceWithTimeout, error code is 507048\n"
    "[ERROR] 2026-02-11-08:15:42 (PID:4711, Device:3, RankID:11) ERR00100 PTA call acl api failed\n"
    "EI0002: [PID: 4711] The wait execution of the Notify register times out. Reason: no record from remote rank: [7], tag[AllReduce_world]\n"
)
OLDER = (
    RAISED + "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
    "EI0002: The wait execution of the Notify register times out. Reason: no record from remote rank [1]. tag[AllReduce_127.0.0.1]\n"
)


@for_each(
    ("text", "who", "says"),
    [
        (ranked(RAISED + "RuntimeError: DeepEP error: timeout (dispatch CPU)\n"), (17,), "DeepEP waited in dispatch for another rank"),
        (ranked(RAISED + "RuntimeError: DeepEP error: CPU recv timeout\n", "5: "), (5,), "DeepEP waited"),
        (NVL + "terminate called after throwing an instance of 'EPException'\n" + LAUNCH, (), "DeepEP waited in dispatch for rank 3 of its node"),
        ("".join(f"{r}: DeepEP timeout check failed: rank = {r}, thread = 5, value = 1024)\n" for r in (2, 6)), (2, 6), "for rank 5 of its node"),
        ("[1,4]<stderr>:DeepEP RDMA all-reduce send timeout: rank 4, peer 9, chunk 3, head 1\n", (4,), "in all_reduce for rank 9"),
        (ranked(HCCL, "[rank5]: "), (5,), "HCCL waited in all_reduce for another rank"),
        (HCCL, (5,), "HCCL waited in all_reduce"),
        (ranked(OLDER, "[rank3]: "), (3,), "HCCL waited in all_reduce for rank 1"),
        (ranked(NOTIFY, "[rank11]: "), (11,), "HCCL waited in all_reduce for rank 7"),
        (ranked(RAISED + "RuntimeError: HCCL function error: HcclAllGather, error code is 9\n", "[1,4]<stderr>:"), (4,), "HCCL waited in all_gather"),
        ("(Worker_TP2 pid=81) gpu07:812:830 [3] NVSHMEM ERROR proxy: timed out waiting for peer 12\n", (2,), "NVSHMEM waited for rank 12"),
        ("[1784621081.896649] [pod-a:537  :1]  rc_ep.c:221  UCX  ERROR keepalive of peer 3 timed out\n", (), "UCX waited for rank 3"),
        ("[gpu07:537:0] ucc_schedule.c:211 UCC  WARN  timeout 120 sec has expired on task 0x55d1, Allreduce\n", (), "UCC waited in all_reduce"),
        ("2026:01:14-10:02:33:(4016) |CCL_ERROR| internal_kvs.cpp:330 kvs_init: connection timed out after 120 sec\n", (), "oneCCL waited"),
        (ranked(RAISED + "TimeoutError: NIXL transfer to decode-3 did not end in 300 s\n"), (17,), "NIXL waited"),
        (ranked(RAISED + "mscclpp._mscclpp.Error: bootstrap recv from rank 3 (Mscclpp failure: Timeout)\n"), (17,), "MSCCL++ waited for rank 3"),
        ("[rank9]: gpu07:812:830 [3] ofi_process_cq:700 NCCL WARN NET/OFI Request 0x7f (RECV) timed out\n", (9,), "libfabric (EFA) waited"),
        ("[gpu03:00812] PMIX ERROR: TIMEOUT in file dmodex.c at line 201\n", (), "MPI waited"),
    ],
)
def test_it_is_a_symptom(judge, text, who, says):
    found = judge(text).primary
    assert (found.cause, found.standing, found.ranks) == ("collective-timeout", "not-established", who)
    assert says in found.says and "longer than its timeout; this is a consequence" in found.says
    assert "NCCL_DEBUG" not in [name for r in found.remedies for name in r.env or ()] or "EFA" in found.says


def test_a_call_of_hccl_that_failed_is_no_exception_of_its_caller(judge):
    found = judge(ranked(OLDER.partition("EI0002")[0])).primary
    assert (found.cause, found.standing, found.ranks) == ("collective-timeout", "not-established", (17,))
    assert "waited" not in found.says and any("ASCEND_GLOBAL_LOG_LEVEL" in (r.env or ()) for r in found.remedies)
    busy = "EJ0001: [PID: 5122] Failed to initialize the HCCP process. Reason: Maybe the last training process is running.\n"
    assert judge(ranked(OLDER.partition("EI0002")[0] + busy)).primary.cause == "gpu-busy-exclusive"


def test_prefixes_give_the_host(judge):
    assert judge("[1784621081.896649] [pod-a:537  :1]  rc_ep.c:221  UCX  ERROR peer 3 timed out\n").primary.hosts == ("pod-a",)
    assert judge("(Worker pid=7, ip=10.3.0.8) " + NVL).primary.hosts == ("10.3.0.8",)


ASSERTED = "/src/mscclpp/semaphore_device.hpp:61: void wait(long): block: [0,0,0], thread: [5,0,0] Assertion `(spins < most)` failed.\n"


@pytest.mark.parametrize(
    "text",
    [
        NVL + ranked(RAISED + "torch.AcceleratorError: CUDA error: unspecified launch failure\n"),
        ranked(NVL) + ranked(RAISED + "RuntimeError: cudaErrorLaunchFailure: unspecified launch failure\n"),
        ASSERTED + ranked(RAISED + "torch.AcceleratorError: CUDA error: device-side assert triggered\n"),
    ],
)
def test_a_trap_of_the_library_is_no_illegal_access(judge, text):
    v = judge(text)
    assert v.primary.cause == "collective-timeout" and not v.contributing


@pytest.mark.parametrize(
    ("text", "who"),
    [
        # The fault of one rank is why the others wait.
        (ranked(NVL, "[rank1]: ") + ranked(RAISED + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"), (17,)),
        (ranked(NVL, "[rank1]: ") + ranked(RAISED + "torch.AcceleratorError: CUDA error: unspecified launch failure\n"), (17,)),
        # What DeepEP does not trap.
        (NVL + ranked(RAISED + "torch.AcceleratorError: CUDA error: device-side assert triggered\n"), (17,)),
    ],
)
def test_a_fault_of_another_kind_or_rank_stays_one(judge, text, who):
    found = judge(text).primary
    assert (found.cause, found.ranks) == ("illegal-memory-access", who)


def test_other_exceptions_of_these_libraries_are_exceptions(judge):
    found = judge(ranked(RAISED + "RuntimeError: DeepEP error: the number of experts is not divisible by 16\n")).primary
    assert (found.cause, found.ranks) == ("rank-exception", (17,))
    found = judge(ranked(RAISED + "RuntimeError: HCCL function error: HcclAllreduce, error code is 2\n")).primary
    assert found.cause == "rank-exception"


def test_settings_are_no_timeout(judge):
    assert (
        judge(
            "DeepEP: NUM_CPU_TIMEOUT_SECS=100, timeout: 100 s\n"
            "2026:01:14-10:02:33:(4016) |CCL_INFO| CCL_KVS_CONNECTION_TIMEOUT: 120\n"
            "gpu07:812:830 [3] NVSHMEM INFO NVSHMEM_TIMEOUT_DEVICE_POLLING=0\n"
            "HCCL_EXEC_TIMEOUT=1800 HCCL_CONNECT_TIMEOUT=600\n"
            "[node7:812:0] ucp_context.c:2119 UCX INFO RC_TIMEOUT=1000.00ms\n"
            "2026-01-14 10:02:33 NIXL INFO _api.py:361 Backend UCX was instantiated, abort timeout 480\n"
        ).primary
        is None
    )


def test_torchs_watchdog_says_more_than_another_library(judge):
    text = (
        "[rank0]:[E1103 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, "
        "OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    )
    found = judge(text + NVL).primary
    assert found.cause == "collective-timeout" and "ALLREDUCE" in found.says
