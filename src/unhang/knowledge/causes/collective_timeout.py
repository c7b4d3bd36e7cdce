"""collective-timeout: a rank waited longer than the timeout."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unhang.knowledge import other_libraries, words
from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import COMMA, THEN, Text, joined, ranks
from unhang.knowledge.watchdogs import behind, collective, evidence_of, first_of_each, ranks_of, silent
from unhang.patterns import lazily

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unhang.logs import Hit
    from unhang.logs.log_facts import Timeout
    from unhang.model import Finding
    from unhang.records.incident_view import IncidentView

GLOO_TIMEOUT = Signature(
    needle="Timed out waiting ",
    pattern=r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<what>\w+) operation to complete",
    role="symptom",
    says="Gloo waited {timeout_ms} ms for a {what} from its peer",
    says_zh="Gloo 等待对端的 {what} 已达 {timeout_ms} ms",
)

BARRIER = Signature(
    needle="failed to pass monitoredBarrier in",
    pattern=r"Ranks? (?P<missing>[\d, ]+) failed to pass monitoredBarrier in (?P<timeout_ms>\d+) ms",
    role="symptom",
    says="rank(s) {missing} did not come to a monitored barrier of their group within {timeout_ms} ms",
    says_zh="组内的 rank {missing} 在 {timeout_ms} ms 内没有到达 monitored barrier",
)

# TORCH_NCCL_DESYNC_DEBUG=1 (TraceUtils.h)
DESYNC = (
    Signature(
        needle="are the lagging ranks that caused this timeout",
        pattern=r"ranks \[(?P<missing>[\d, ]+)\] are the lagging ranks",
        role="symptom",
        says="torch's own report: ranks {missing} never joined any collective",
        says_zh="torch 自己的报告：rank {missing} 从未加入任何集合通信",
    ),
    Signature(
        needle=", but didn't join collective #",
        pattern=r"\[(?P<missing>[\d, ]+)\] finished collective #(?P<last>\d+), but didn't join collective #(?P<seq>\d+)",
        role="symptom",
        says="torch's own report: ranks {missing} finished collective #{last} and never joined #{seq}",
        says_zh="torch 自己的报告：rank {missing} 完成了集合通信 #{last}，从未加入 #{seq}",
    ),
)


# torch's second backend for NCCL, from 2.15 on the one that "nccl" means: its lines name neither the collective nor its number.
NCCL2 = (
    *(
        Signature(
            needle=needle,
            pattern=pattern,
            role="symptom",
            says="torch's nccl2 gave up a collective; which one, the flight recorder of each rank tells",
            says_zh="torch 的 nccl2 放弃了一次集合通信；是哪一次，由各 rank 的 flight recorder 给出",
        )
        for needle, pattern in (
            ("NCCL operation timed out", ""),
            ("Aborting process on rank ", r"Aborting process on rank \d{1,7} due to timeout\b"),
            ("for health check and flight recorder dump before aborting", ""),
            ("Work timed out during finalize", ""),
        )
    ),
    Signature(
        needle=" timed out after ",
        pattern=r"(?P<what>Failed to initialize NCCL communicator|NCCL [\w ]{1,60} failed) timed out after (?P<timeout_ms>\d{1,18}) ms",
        role="symptom",
        says="torch's nccl2 waited {timeout_ms} ms for the other ranks ({what})",
        says_zh="torch 的 nccl2 等待其他 rank {timeout_ms} ms（{what}）",
    ),
)


_MISSING = lazily(r"(?m)^(\d{1,9})!?: \[")
_WAITED = Text("{who} waited: ", "{who} 在等待：")
_NOT_DONE = Text("a collective of its group was not done", "它所在组的一次集合通信没有完成")


def blamed(hit: Hit) -> str:
    """The ranks that did not come, as the line names them; "" where it names only who waited. Horovod has a line for each of them."""
    named = hit.groups.get("ranks", "")
    return ", ".join(_MISSING.findall(named)) or named


def _of_hits(hits: Sequence[Hit], view: LogView | None = None) -> Finding | None:
    own, said = other_libraries.gave_up(hits) or (hits, None)
    # Each rank prints several lines of one timeout.
    own = [replace(h, signature=NCCL2[0]) if h.signature in NCCL2 and h.signature.says == NCCL2[0].says else h for h in own]
    own = [replace(h, groups={**h.groups, "ranks": named}) if (named := blamed(h)) else h for h in own]
    if said is None and all(h.rank is not None and not h.signature.says for h in own):
        # The title would be a second sentence behind who waited.
        said = _NOT_DONE
    return CAUSE.of_hits(own, view, says=said, who=_WAITED if said in (None, _NOT_DONE) else Text("{who}: ", "{who}："))


def _in_run(picture: IncidentView) -> Finding | None:
    return _of_hits(picture.hits_of(CAUSE.id))


def _in_logs(view: LogView) -> Finding | None:
    """Who waited in what, and who is known not to have come: the rank to look at is one that printed nothing."""
    hits = view.hits_of(CAUSE.id)
    waited = first_of_each(view)
    if not waited:
        return _of_hits(hits, view)
    # The collective in which most of the ranks waited.
    found: dict[tuple[str | None, int | None, str], list[Timeout]] = {}
    for t in waited:
        found.setdefault((t.group, t.seq, t.op), []).append(t)
    most = max(found.values(), key=len)
    numbers = ranks_of(most)
    missing = behind(view)
    absent = tuple(r for r, _ in missing) or silent(view)
    says = Text("{who} waited {s} in {call}", "{who} 在 {call} 中等待了 {s}").fill(
        who=ranks(numbers), s=words.seconds(most[0].timeout_ms / 1000), call=collective(most[0])
    )
    if missing:
        never = Text("rank {r} never issued it (last: #{last})", "rank {r} 从未发出它（最后一次：#{last}）")
        says += THEN + joined((never.fill(r=r, last=last) for r, last in missing[:4]), COMMA)
    elif absent:
        says += Text("; {who} printed no timeout", "；{who} 没有打印超时").fill(who=ranks(absent))
    return CAUSE.finding(standing="established", says=says, ranks=numbers, evidence=evidence_of(t.at for t in most[:2]))


CAUSE = Cause(
    id="collective-timeout",
    role="symptom",
    title="A collective did not end",
    title_zh="集合通信没有结束",
    what="A rank waited in a collective longer than its timeout, or was seen to wait in it. The rank that prints it came; another one did not.",
    why="Some other rank was late, stuck, gone, or in another collective.",
    signatures=(
        # torch 1.7 to 2.15: "[Rank 1] Watchdog caught ...", before 1.10 "Caught ...".
        Signature(
            needle="aught collective operation timeout",
            pattern=r"OpType=(?P<op>\w+).*?Timeout\(ms\)=(?P<timeout_ms>\d+)",
            role="symptom",
            says="a collective ({op}) was not done within {timeout_ms} ms",
            says_zh="一次集合通信（{op}）在 {timeout_ms} ms 内没有完成",
        ),
        # Wrapped by a terminal or abridged by whoever pasted it.
        Signature(
            needle="aught collective operation timeout",
            pattern=r"aught collective operation timeout:?\s*(?:$|WorkNCCL\((?!.*Timeout\(ms\)=\d))",
            role="symptom",
        ),
        *NCCL2,
        Signature(needle="timed out in blocking wait", role="symptom"),
        GLOO_TIMEOUT,
        Signature(needle="Application timeout caused pair closure", role="symptom"),
        Signature(needle="RuntimeError: Operation timed out!", role="symptom"),
        Signature(needle="watchdog thread terminated with exception", role="symptom", unless=r"CUDA error|ECC error|NVLink"),
        Signature(needle="work sequence id", pattern=r"failure detected by watchdog at work sequence id: (?P<seq>\d+)", role="symptom"),
        Signature(needle="Timeout at NCCL work", pattern=r"Timeout at NCCL work: (?P<seq>\d+)", role="symptom"),
        Signature(needle="detected by watchdog at work:", pattern=r"at work: (?P<seq>\d+)", role="symptom"),
        Signature(needle="Some NCCL operations have failed or timed out", role="symptom"),
        Signature(needle="we are taking the entire process down", role="symptom"),
        Signature(needle="Observed flight recorder dump signal from another rank", role="symptom"),
        Signature(needle="Received a dump signal due to a collective timeout", role="symptom"),
        Signature(needle="erminating the process after attempting to dump debug info", role="symptom"),
        *DESYNC,
        # torchfrtrace, torch's reader of flight-recorder dumps.
        Signature(
            needle="missing ranks: {",
            pattern=r"^missing ranks: \{(?P<ranks>[\d, ]+)\}",
            near=r"Not all ranks joining collective",
            role="symptom",
            says="torch's flight-recorder analysis: rank(s) {ranks} never joined a collective",
            says_zh="torch 对 flight recorder 的分析：rank {ranks} 从未加入某次集合通信",
        ),
        Signature(
            needle="Error type: COLLECTIVE_STATE_MISMATCH",
            role="symptom",
            says="torch's flight-recorder analysis: a collective is over on some ranks and not on others",
            says_zh="torch 对 flight recorder 的分析：一次集合通信在部分 rank 上已结束，在其他 rank 上没有",
        ),
        BARRIER,
        Signature(needle="timed out in monitoredBarrier after", pattern=r"monitoredBarrier after (?P<timeout_ms>\d+) ms", role="symptom"),
        # vLLM, SGLang, Horovod: the engine's own watch.
        Signature(needle="No available shared memory broadcast block found", role="symptom"),
        Signature(needle="RPC call to ", pattern=r"RPC call to \w+ timed out", role="symptom"),
        # The rank that says so has done its part.
        Signature(
            needle="there are other ranks that didn't finish loading",
            pattern=r"TP rank (?P<waiter>\d{1,5}) could finish the model loading",
            role="symptom",
            says="SGLang's tensor-parallel rank {waiter} had loaded the model and waited for others that had not",
            says_zh="SGLang 的张量并行 rank {waiter} 已加载完模型，在等待尚未加载完的 rank",
        ),
        Signature(needle="atchdog timeout (", pattern=r"\b[Ww]atchdog timeout \((?:self\.)?watchdog", role="symptom"),
        # The watchdog's stack, where its own words were cut off.
        Signature(
            needle="Exception raised from checkTimeout at ",
            pattern=r"Exception raised from checkTimeout at \S{0,300}ProcessGroupNCCL\.cpp:\d+",
            role="symptom",
        ),
        # Slurm's PMIx: a daemon of another node did not come to the fence or to the exchange of addresses.
        Signature(
            needle="collective timeout seq=",
            pattern=r"pmixp_coll_\w+: (?P<host>[\w.-]{1,253}) \[\d+\]: .{0,200}collective timeout seq=\d+",
            role="symptom",
            says="Slurm's PMIx on {host} waited for the daemons of the other nodes in vain",
            says_zh="{host} 上 Slurm 的 PMIx 没有等到其他节点的守护进程",
        ),
        Signature(needle="by subset of ranks and are waiting for remainder of ranks", role="symptom"),
        # Horovod up to 0.15, up to 0.18 and later; the last names each missing rank in a line of its own: `2: [allreduce.w, allreduce.b ...]`.
        Signature(
            needle=" [ready ranks: ",
            pattern=r"(?P<tensor>(?<![\w./:-])[\w./:-]{0,300}[Hh]orovod\w{0,100}) \[ready ranks: (?P<ready>[\d, ]+)\]",
            role="symptom",
            says="Horovod waits in {tensor}; only ranks {ready} came",
            says_zh="Horovod 在 {tensor} 中等待；只有 rank {ready} 到达",
        ),
        Signature(
            needle=" [missing ranks: ",
            pattern=r"(?P<tensor>(?<![\w./:-])[\w./:-]{1,300}) \[missing ranks: ?(?P<ranks>[\d, ]+)\]",
            role="symptom",
            says="Horovod waits in {tensor} for rank(s) {ranks}",
            says_zh="Horovod 在 {tensor} 中等待 rank {ranks}",
        ),
        Signature(
            needle="Missing ranks:",
            near=r"Missing ranks:\n(?P<ranks>(?:\d{1,9}!?: \[.{1,2000}\n?)+)",
            role="symptom",
            says="Horovod waits for rank(s) {ranks}, which did not submit a tensor that others did",
            says_zh="Horovod 在等待 rank {ranks}：其他 rank 已提交某个张量，它们没有",
        ),
        *other_libraries.SIGNATURES,
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    mistaken_for={"straggler-timeout": "who was slow is told by the stacks of the other ranks, not by the one that printed this"},
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.html",
        "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",
    ),
    hits=(
        "Not all ranks joining collective, sequence number: 41\ninternal record id: 40\ncollective: nccl:all_reduce\nmissing ranks: {2, 5}",
        "error msg: Culprit rank 1; Error type: COLLECTIVE_STATE_MISMATCH, Expected state: scheduled does not match found state: completed",
        "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:618 (most recent call first):",
        ("slurmstepd: error:  mpi/pmix_v4: pmixp_coll_tree_reset_if_to: node7 [0]: pmixp_coll_tree.c:1314: 0x1488e4003a10: collective timeout seq=1"),
        "HorovodBroadcast_logits_conv2d_weights_0 [ready ranks: 5, 6, 3, 1, 4, 0]",
        "[1,0]<stderr>:[2026-11-03 10:00:01.858119: W horovod/common/operations.cc:588] HorovodBroadcast_dense_kernel_0 [missing ranks: 1]",
        "Missing ranks:\n0: [broadcast.bool.sz]\n1: [allreduce.w, allreduce.b ...]",
        "Missing ranks:\n2: [allgather.x]\n3: [alltoall.y]\n4: [reducescatter.z]",
        "[Rank 0] Watchdog caught collective operation timeout:\n  WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1,",
        "Watchdog caught collective operation timeout: WorkNCCL(... OpType=BROADCAST ...)",
        (
            "[rank1]:[E1103 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=120, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600012 milliseconds before timing "
            "out."
        ),
        (
            "[Rank 2] Caught collective operation timeout: WorkNCCL(OpType=BROADCAST, TensorShape=[64], Timeout(ms)=1800000) ran for 1800311 "
            "milliseconds"
        ),
        "[rank2]:[E1103 02:07:08.408271257 ProcessGroupNCCL2.cpp:88] collective timeout: NCCL operation timed out",
        (
            "[rank2]:[E1103 02:07:08.408271257 ProcessGroupNCCL.cpp:641] [TC][rank=2][name=0] Aborting process on rank 2 due to timeout - timeout "
            "watchdog detected operation timeout"
        ),
        "[rank=2][name=0] Waiting 15000 ms for health check and flight recorder dump before aborting",
        "RuntimeError: Work timed out during finalize",
        "torch.distributed.DistBackendError: Failed to initialize NCCL communicator timed out after 600000 ms",
        "RuntimeError: DeepEP error: timeout (dispatch CPU)",
        "DeepEP timeout check failed: rank = 6, thread = 5, value = 1024)",
        "node7:812:830 [3] NVSHMEM ERROR proxy Timeout waiting for the completion of a put",
        "RuntimeError: HCCL function error: HcclAllreduce, error code is 9",
        "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64",
        "EI0015: [PID: 812] Failed to collect cluster information of the communicator based on rootInfo detection. Reason: timeout.",
        (
            "RuntimeError: OpParamMaker.cpp:281 OPS function error: HcclAllreduce, error code is 6\n[ERROR] 2026-11-03-10:00:01 (PID:812, Device:5, "
            "RankID:5) ERR01100 OPS call acl api failed.\nEI0006: [PID: 812] Getting socket times out. Reason: Remote Rank did not send the data"
        ),
        (
            "RuntimeError: npuSynchronizeDevice NPU function error: AclrtSynchronizeDeviceWithTimeout, error code is 507048\nEI0002: [PID: 812] The "
            "wait execution of the Notify register times out."
        ),
        "RuntimeError: ACL stream synchronize failed.\nEI9999: 2026-11-03 hccl fftsplus task timeout occurred during task execution, stream_id:5",
        "NPUStream.cpp:363 NPU error, error code is 107020\nEI9999: 2026-11-03 hccl fftsplus task timeout occurred during task execution",
        "[node7:812:0] ucc_schedule.c:99 UCC WARN timeout 60 sec has expired on task 0x55aa, seq_num 7, Allreduce",
        "ucp._libs.exceptions.UCXError: <[Recv #004] ep: 0x7f, tag: 0x1, nbytes: 24>: UCS_ERR_TIMED_OUT",
        "mscclpp.Error: bootstrap recv from peer 3 (Mscclpp failure: Timeout)",
        "/src/mscclpp/poll_device.hpp:41: void mscclpp::wait(): block: [0,0,0], thread: [3,0,0] Assertion `(flag != want)` failed.",
        "[node7:00812] PMIX ERROR: TIMEOUT in file dmdx.c at line 201",
        "[node7:00812] pmix_server_dyn.c PMIX_ERR_TIMEOUT: PMIx_Fence",
        "MPI_ERR_PROC MPI_Allreduce: TIMEDOUT",
        "A request has timed out and will therefore fail:",
        "[1730628001.120446] [node7:812  :0]     rc_ep.c:412  UCX  ERROR keepalive of peer 3 timed out",
        "TimeoutError: NIXL transfer to decode-3 did not end in 300 s",
        "RuntimeError: Expected 8 threads to join the rendezvous, but only 7 of them arrived on time.",
        (
            "[rank3]:[E1103 02:07:08.408271257 ProcessGroupNCCL.cpp:756] [Rank 3] Work WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=64, "
            "NumelOut=64, Timeout(ms)=600000) timed out in blocking wait."
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to "
            "complete"
        ),
        "RuntimeError: Application timeout caused pair closure",
        "[rank0]: RuntimeError: Operation timed out!",
        (
            "[rank5]:[E1103 02:07:08.465150152 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 5]  failure detected by watchdog "
            "at work sequence id: 120 PG status: last enqueued work: 121, last completed work: 119"
        ),
        "[rank1]:[E ProcessGroupNCCL.cpp:577] [PG 1 Rank 1] Timeout at NCCL work: 41, last enqueued NCCL work: 42, last completed NCCL work: 40.",
        (
            "[rank0]:[E1103 02:07:08.465150152 ProcessGroupNCCL.cpp:1537] [PG 1 Rank 0] Exception (either an error or timeout) detected by "
            "watchdog at work: 41, last enqueued NCCL work: 42, last completed NCCL work: 40."
        ),
        (
            "  what():  [PG 3 Rank 5] Process group watchdog thread terminated with exception: [Rank 5] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST, Timeout(ms)=600000) ran for 600020 milliseconds before timing out."
        ),
        "[rank4]:[E1103 02:07:08 ProcessGroupNCCL.cpp:684] [Rank 4] Some NCCL operations have failed or timed out. Due to the asynchronous nature",
        "[E ProcessGroupNCCL.cpp:461] To avoid data inconsistency, we are taking the entire process down.",
        (
            "[rank0]:[E1103 01:59:12 ProcessGroupNCCL.cpp:1806] [PG ID 0 PG GUID 0 Rank 0] Observed flight recorder dump signal from another "
            "rank via TCPStore."
        ),
        (
            "[rank0]:[E1103 01:59:12 ProcessGroupNCCL.cpp:1870] [PG ID 0 PG GUID 0 Rank 0] Received a dump signal due to a collective timeout "
            "from  rank 1 and"
        ),
        "[rank0]:[F1103 02:07:08 ProcessGroupNCCL.cpp:1554] [PG 0 Rank 0] Terminating the process after attempting to dump debug info",
        "\t - To our best knowledge, ranks [1, 6] are the lagging ranks that caused this timeout. They never joined any collectives",
        "\t     [5] finished collective #211, but didn't join collective #212 (count from 1)",
        "RuntimeError: [Rank 0]: Ranks 2, 5 failed to pass monitoredBarrier in 60000 ms",
        "RuntimeError: Rank 0 timed out in monitoredBarrier after 30000 ms. Successfully processed ranks: 1, 2",
        "(EngineCore pid=812) INFO 11-03 10:00:01 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
        "(EngineCore pid=812) TimeoutError: RPC call to execute_model timed out.",
        "ValueError: TP rank 2 could finish the model loading, but there are other ranks that didn't finish loading.",
        "[2026-11-03 10:00:01 TP3] Watchdog timeout (self.watchdog_last_forward_ct=812)",
        "[2026-11-03 10:00:01 TP3] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        (
            "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks "
            "for more than 60 seconds."
        ),
    ),
    near_misses=(
        "Exception raised from checkForNCCLErrors at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:556 (most recent call first):",
        "Setting the timeout of the process group to 1800000 ms",
        "DeepEP: NUM_CPU_TIMEOUT_SECS=100, NUM_TIMEOUT_CYCLES=200000000000",
        "node7:812:830 [3] NVSHMEM INFO NVSHMEM_TIMEOUT_DEVICE_POLLING=0 timeout: 36 s",
        "2026:11:03-10:00:01:(812) |CCL_INFO| CCL_KVS_CONNECTION_TIMEOUT: 120",
        "(EngineCore pid=812) NixlConnector abort request timeout: 480",
        "[node7:812:0] ucp_context.c:2119 UCX INFO RC_TIMEOUT=1000.00ms",
        "HCCL_EXEC_TIMEOUT=1800 HCCL_CONNECT_TIMEOUT=600",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='example.org', port=443): Read timed out. (read timeout=10)",
        "RuntimeError: DataLoader timed out after 120 seconds",
        (
            "[rank2]:[E1103 02:07:08 ProcessGroupNCCL.cpp:1414] [PG 0 Rank 2] Process group watchdog thread terminated with exception: CUDA "
            "error: unspecified"
        ),
        "ProcessGroupNCCL initialization options: size: 8, global rank: 0, TIMEOUT(ms): 600000, USE_HIGH_PRIORITY_STREAM: 0",
    ),
    explain={
        "en": (
            "A rank waited in a collective until the timeout of its group. It is a victim: it came and somebody else did not. Look for the rank "
            "that did not print this, or whose last enqueued number is the lowest: torch's counters name it from 2.3 on. Every rank may print "
            "it, if all came and the data did not arrive, or if they came to different collectives."
        ),
        "zh": (
            "某个进程在集合通信里一直等到了进程组的超时时间。它是受害者：它到了，别的进程没有到。应当去找没有打印这条信息的进程，或者 last "
            "enqueued 序号最小的进程（torch 2.3 起会打印这些计数）。如果所有进程都打印了它，要么是都到了而数据没有传到，要么是各自进入了不同的集"
            "合通信。"
        ),
    },
)
