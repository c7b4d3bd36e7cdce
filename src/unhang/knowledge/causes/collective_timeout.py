"""collective-timeout: a rank waited longer than the timeout."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature

CAUSE = Cause(
    id="collective-timeout",
    role="symptom",
    title="A collective timed out",
    title_zh="集合通信超时",
    what="A rank waited in a collective longer than its timeout. The rank that prints it came; another one did not.",
    why="Some other rank was late, stuck, gone, or in another collective.",
    signatures=(
        Signature(
            needle="Watchdog caught collective operation timeout",
            pattern=r"OpType=(?P<op>\w+).*?Timeout\(ms\)=(?P<timeout_ms>\d+)",
            role="symptom",
        ),
        Signature(
            needle="Timed out waiting", pattern=r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<what>\w+) operation to complete", role="symptom"
        ),
        Signature(needle="watchdog thread terminated with exception", role="symptom"),
        Signature(needle="work sequence id", pattern=r"failure detected by watchdog at work sequence id: (?P<seq>\d+)", role="symptom"),
        Signature(needle="Timeout at NCCL work", pattern=r"Timeout at NCCL work: (?P<seq>\d+)", role="symptom"),
        Signature(needle="detected by watchdog at work:", pattern=r"at work: (?P<seq>\d+)", role="symptom"),
        Signature(needle="watchdog got stuck for", pattern=r"watchdog got stuck for (?P<seconds>\d+) seconds", role="symptom"),
        Signature(
            needle="failed to pass monitoredBarrier in", pattern=r"Ranks? (?P<missing>[\d, ]+) failed to pass monitoredBarrier", role="symptom"
        ),
    ),
    mistaken_for={"straggler-timeout": "who was slow is told by the stacks of the other ranks, not by the one that printed this"},
    sources=("https://docs.pytorch.org/docs/stable/distributed.html",),
    hits=(
        (
            "[rank1]:[E1103 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=120, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to "
            "complete"
        ),
        (
            "[rank5]:[E1103 02:07:08.465150152 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 5]  failure detected by watchdog at "
            "work sequence id: 120 PG status: last enqueued work: 121, last completed work: 119"
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
        "ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring enqueued collectives.",
        "RuntimeError: [Rank 0]: Ranks 2, 5 failed to pass monitoredBarrier in 60000 ms",
    ),
    near_misses=(
        "Setting the timeout of the process group to 1800000 ms",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='example.org', port=443): Read timed out. (read timeout=10)",
        "RuntimeError: DataLoader timed out after 120 seconds",
    ),
    explain={
        "en": (
            "A rank waited in a collective until the timeout of its group. It is a victim: it came and somebody else did not. Look for the rank "
            "that did not print this."
        ),
        "zh": "某个进程在集合通信里一直等到了进程组的超时时间。它是受害者：它到了，别的进程没有到。应当去找没有打印这条信息的那个进程。",
    },
)
