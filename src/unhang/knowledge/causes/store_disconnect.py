"""store-disconnect: the key-value store that the ranks meet at is gone, or did not answer in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import unhang_errors
from unhang.knowledge.caught_exceptions import that_ended_something
from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import Text
from unhang.patterns import lazily

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unhang.logs import Hit
    from unhang.model import Finding

_TIMED_OUT = r"Socket Timeout|[Ww]ait timeout after|[Tt]imed out waiting"
_WAITED = lazily(rf"{_TIMED_OUT}|waitForInput: |clients joined|[Tt]imed out initializing process group")
WAITED = Text(
    "the store is there, and a key that was waited for was not written in time: the rank that writes it was late, stuck or gone",
    "store 仍在，但等待的键没有按时写入：写入它的 rank 迟到、卡住或已经不在",
)
# Threads print it whose process leaves in order, but after the one with the store.
AT_THE_END = lazily(r"(?:recvValue\w*|sendBytes) failed|\"should dump\" flag")
# Cut off before its numbers.
NOT_ALL_CAME = Signature(
    needle="imed out initializing process group",
    pattern=r"[Tt]imed out initializing process group(?! in store based barrier .*timeout=)",
    role="symptom",
    says="not all ranks came to the first barrier of the process group in time",
    says_zh="并非所有 rank 都按时到达进程组的第一个 barrier",
)


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    if view.finished and all(AT_THE_END.search(h.text) for h in hits):
        failed = view.timeouts or any(e.code != 0 for e in view.exits) or that_ended_something(view.tracebacks, view)
        if not failed and view.hits.keys() <= {CAUSE.id}:
            return None
    return CAUSE.of_hits(hits, view)


def is_wait(hits: Sequence[Hit]) -> bool:
    """Whether all that is said of the store is that a rank waited in vain for what another one writes: the store itself is there."""
    return bool(hits) and all(_WAITED.search(h.text) for h in hits)


CAUSE = Cause(
    id="store-disconnect",
    role="symptom",
    title="The store of the job is gone, or a key that a rank waits for was not written",
    title_zh="作业的 store 断开，或某个 rank 等待的键没有写入",
    what="The TCPStore, which rank 0 or the launcher hosts, closed its connection or did not answer.",
    why="Its host process ended, was killed, or left first; or a rank that should have written a key never did.",
    signatures=(
        Signature(needle="ailed to recv, got 0 bytes", role="symptom"),
        Signature(
            needle="wait timeout after ",
            pattern=r"[Ww]ait timeout after (?P<timeout_ms>\d+)ms, keys: (?P<keys>\S+)",
            role="symptom",
            says="the store is there, and nobody wrote {keys} to it within {timeout_ms} ms",
            says_zh="store 仍在，但 {timeout_ms} ms 内没有进程把 {keys} 写入",
        ),
        Signature(
            needle="client socket has timed out after",
            # `(host, port)` or `host:port`.
            pattern=r"timed out after (?P<timeout>\d+m?s) while trying to connect to (?P<open>\()?(?P<peer>[^\s,]+)(?(open), |:)(?P<port>\d+)",
            role="symptom",
            says="no connection to {peer}:{port} within {timeout}",
            says_zh="{timeout} 内没有连上 {peer}:{port}",
        ),
        # Cut off.
        Signature(
            needle="client socket has timed out after",
            pattern=r"timed out after (?P<timeout>\d+m?s) while trying to connect(?:\.|:| to)?\s*$",
            role="symptom",
            says="no connection to the store within {timeout}",
            says_zh="{timeout} 内没有连上 store",
        ),
        Signature(needle="possible application crash on rank 0 or a network set up issue", role="symptom"),
        Signature(needle="waitForInput, pool", pattern=r"waitForInput, poo?l\w* failed with", role="symptom"),
        Signature(
            needle="clients joined",
            pattern=r"waiting for clients\. (?P<joined>\d+)/(?P<expected>\d+) clients joined",
            role="symptom",
            says="{joined} of {expected} processes came to the store",
            says_zh="{expected} 个进程中有 {joined} 个连上了 store",
        ),
        # torch 1.8 to 2.0 "on rank: 0, ... worker_count=1"; 2.1+ "on rank 0, ... num_workers_joined=1".
        Signature(
            needle="in store based barrier on rank",
            pattern=r"Timed out initializing process group .*\(world_size=(?P<expected>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+), "
            r"timeout=(?P<timeout>[\d:.]+)\)",
            role="symptom",
            says="{joined} of {expected} ranks came to the first barrier within {timeout}",
            says_zh="{timeout} 内 {expected} 个 rank 中有 {joined} 个到达了第一个 barrier",
        ),
        NOT_ALL_CAME,
        Signature(
            needle="waitForInput: ",
            pattern=r"waitForInput: .{0,300}?(?:timed out after (?P<timeout_ms>\d+)ms|returned 0, likely a timeout)",
            role="symptom",
            says=WAITED.en,
            says_zh=WAITED.zh,
        ),
        Signature(needle="sendBytes failed on SocketImpl", role="symptom"),
        Signature(
            needle="Socket Timeout",
            pattern=r"(?:DistNetworkError|DistStoreError|DistBackendError|RuntimeError|got error): (?:.*got error: )?Socket Timeout",
            role="symptom",
            says=WAITED.en,
            says_zh=WAITED.zh,
        ),
        Signature(
            needle="via c10d key-value store by key",
            pattern=(
                r"(?:\[(?P<rank>\d+)\] is setting up NCCL communicator and retr\w+ ncclUniqueId from \[(?P<other>\d+)\] .*)?"
                rf"store->get\('(?P<keys>[^']*)'\) got error(?!: .{{0,80}}?(?:{_TIMED_OUT}))"
            ),
            role="symptom",
            says="key {keys}, by which a communicator begins, could not be read from the store: the rank that writes it had not come, or was gone",
            says_zh="无法从 store 读取建立通信器所用的键 {keys}：写入它的 rank 没有到，或已经不在",
        ),
        Signature(
            needle="via c10d key-value store by key",
            pattern=(
                r"(?:\[(?P<rank>\d+)\] is setting up NCCL communicator and retr\w+ ncclUniqueId from \[(?P<other>\d+)\] .*)?"
                rf"store->get\('(?P<keys>[^']*)'\) got error: .{{0,80}}?(?:{_TIMED_OUT})"
            ),
            role="symptom",
            says="the store is there, and nobody wrote key {keys}, by which a communicator begins, in time: the rank that writes it had not come",
            says_zh="store 仍在，但没有进程按时写入建立通信器所用的键 {keys}：写入它的 rank 没有到",
        ),
        Signature(needle='Failed to check the "should dump" flag on TCPStore', role="symptom"),
        Signature(needle="Stop_waiting response is expected", role="symptom"),
        Signature(
            needle="has failed to send a keep-alive heartbeat to the rendezvous",
            role="symptom",
            says="torchrun's agent lost the rendezvous: the host that holds it is gone, or its agent has ended",
            says_zh="torchrun 的 agent 失去了 rendezvous：承载它的主机已不在，或其 agent 已结束",
        ),
        Signature(
            needle=", in num_nodes_waiting",
            near=r"RendezvousConnectionError",
            lines=24,
            role="symptom",
            says="torchrun's agent lost the rendezvous while its ranks ran: the host that holds it is gone, or its agent has ended",
            says_zh="torchrun 的 agent 在其 rank 运行时失去了 rendezvous：承载它的主机已不在，或其 agent 已结束",
        ),
        Signature(
            needle="Error: Connection reset by peer",
            pattern=r"(?:RuntimeError|DistNetworkError|DistStoreError): Connection reset by peer$",
            role="symptom",
        ),
        unhang_errors.signature(
            "StoreLost", "store of torch.distributed", r"(?P<lost>.{0,100}store of torch\.distributed.{0,400})", role="symptom", says="{lost}"
        ),
        Signature(needle="Error: Broken pipe", pattern=r"(?:RuntimeError|DistNetworkError|DistStoreError): Broken pipe$", role="symptom"),
    ),
    in_logs=_in_logs,
    mistaken_for={"rendezvous-misconfig": "a store that never answered, from the start, may be the wrong address or port"},
    sources=("https://docs.pytorch.org/docs/stable/distributed.html#distributed-key-value-store",),
    hits=(
        "unhang.errors.StoreLost: the store of torch.distributed no longer answers: recvValue failed on SocketImpl(fd=4)",
        "[rank1]: unhang.errors.StoreLost: no connection to the store of torch.distributed within 60 s",
        (
            "[W1103 01:31:40.100 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=4): Failed to recv, got 0 bytes. "
            "Connection was likely closed. Did the remote server shutdown or crash?"
        ),
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /nokey",
        "[E1103 01:31:40.100 socket.cpp:1028] [c10d] The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).",
        "TimeoutError: The client socket has timed out after 900s while trying to connect to (node7, 29500).",
        "[W1103 01:31:40.100 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe",
        "[E1103 01:31:40.100 socket.cpp:1028] The client socket has timed out after 900000ms while trying to connect",
        "[rank2]: . This may indicate a possible application crash on rank 0 or a network set up issue.",
        "[W1103 01:31:40.100 socket.cpp:432] [c10d] While waitForInput, poolFD failed with (errno: 0 - Success).",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        "RuntimeError: Timed out initializing process group",
        (
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 "
            "(world_size=8, worker_count=1, timeout=0:30:00)"
        ),
        (
            "[rank1]:[W1103 14:34:56.854597329 socket.cpp:489] [c10d] waitForInput: socket SocketImpl(fd=79, addr=[localhost]:41170, "
            "remote=[localhost]:29500) timed out after 1800000ms"
        ),
        "RuntimeError: Socket Timeout",
        (
            "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
            "store by key '0', but store->get('0') got error: Socket Timeout"
        ),
        (
            '[rank3]:[W1103 10:00:01 ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0 Rank 3] Failed to check the "should dump" flag on TCPStore, '
            "(maybe TCPStore server has shut down too early), with error: Broken pipe"
        ),
        (
            "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
            "store by key '0:1', but store->get('0:1') got error: Connection reset by peer"
        ),
        "RuntimeError: Stop_waiting response is expected",
        (
            "W1103 10:00:01 4711 dynamic_rendezvous.py:1341] The node 'node2_4711_0' has failed to send a keep-alive heartbeat to the rendezvous "
            "'job7' due to an error."
        ),
        "[rank4]: torch.distributed.DistNetworkError: Connection reset by peer",
        "RuntimeError: Broken pipe",
        (
            '  File "/opt/torch/elastic/dynamic_rendezvous.py", line 1255, in num_nodes_waiting\n    self._state_holder.sync()\n'
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception"
        ),
    ),
    near_misses=(
        "rank 0's monitor knows no other ranks any more, the training goes on: the store of torch.distributed no longer answers: Broken pipe",
        "Failed to recv response from the model server: 0 tokens",
        "TimeoutError: The read operation timed out",
        (
            "INFO - Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:2 (world_size=8, "
            "worker_count=1)"
        ),
        "aiohttp.client_exceptions.ClientOSError: [Errno 104] Connection reset by peer",
    ),
    explain={
        "en": (
            "The ranks keep small messages in a store that rank 0 (or the launcher's agent) hosts. A lost connection means that its host ended "
            "first: find out why. A timeout means that the store is there and a rank never wrote the key that is named: it was late, stuck or gone."
        ),
        "zh": (
            "各进程通过 rank 0（或启动器的 agent）提供的 store 交换小消息。现在它断开了，或者没有应答。要找的是提供它的进程为什么先结束，或者是哪"
            "个进程一直没有写入所点名的键（超时说明 store 还在，写入者迟到、卡住或已经不在）。"
        ),
    },
)
