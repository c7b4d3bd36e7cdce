"""peer-lost: the connection to another rank is gone."""

from __future__ import annotations

from unhang.knowledge import cann
from unhang.knowledge.cause import Cause, Signature

LEFT_AT_BARRIER = Signature(
    needle="but received errors while waiting for send/recv",
    pattern=r"(?:Rank (?P<came>\d{1,9}) successfully reached monitoredBarrier, )?but received errors while waiting for send/recv",
    role="symptom",
)

# Of concurrent.futures, and joblib's.
BROKEN_POOL = tuple(
    Signature(
        needle=needle,
        pattern=rf"{needle}(?::|$)",
        role="symptom",
        says="a worker process of a pool died abruptly: it was killed, mostly for want of memory, or crashed in native code",
        says_zh="进程池中的一个工作进程突然死亡：它被杀死（多半因为内存不足），或在原生代码中崩溃",
    )
    for needle in ("BrokenProcessPool", "TerminatedWorkerError")
)

CAUSE = Cause(
    id="peer-lost",
    role="symptom",
    title="The connection to another rank was lost",
    title_zh="与另一个进程的连接断开",
    what="A rank noticed, inside a collective, that its peer closed the connection, ended, or aborted the communicator.",
    why="The peer failed, was killed or left first; only rarely the network itself.",
    signatures=(
        *(cann.message(needle, role="symptom") for needle in ("ransport init error", "SDMA memory copy task exception occurred")),
        Signature(
            needle="Connection closed by peer [",
            pattern=r"Connection closed by peer \[(?P<address>[^\]]{1,100})\]",
            role="symptom",
            says="the peer at {address} closed its connection",
            says_zh="位于 {address} 的对端关闭了连接",
        ),
        Signature(
            needle="Connection reset by peer",
            pattern=r"(?:Read|Write) error \[(?P<address>[^\]]+)\]:\d+: Connection reset by peer",
            role="symptom",
            says="the peer at {address} reset the connection",
            says_zh="位于 {address} 的对端重置了连接",
        ),
        Signature(
            needle="Broken pipe",
            pattern=r"(?:Read|Write) error \[(?P<address>[^\]]+)\]:\d+: Broken pipe",
            role="symptom",
            says="the connection to {address} was already gone",
            says_zh="到 {address} 的连接早已断开",
        ),
        LEFT_AT_BARRIER,
        *BROKEN_POOL,
        Signature(
            needle="ncclRemoteError",
            pattern=r"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
            role="symptom",
        ),
        Signature(needle="remote process exited or there was a network error", role="symptom"),
        # NCCL 2.4 `Net : Connection closed by remote peer host<port>`, 2.19 `socketProgress: Connection closed by remote peer`, 2.21+ with the host.
        Signature(needle="Connection closed by remote peer", role="symptom"),
        Signature(
            needle="Call to recv from",
            pattern=r"Call to recv from (?P<peer>\S+) failed : (?:Connection reset by peer|Broken pipe|Software caused connection abort)",
            role="symptom",
            says="the connection to {peer} was reset",
            says_zh="到 {peer} 的连接被重置",
        ),
        Signature(
            needle="Call to send to ",
            pattern=r"Call to send to (?P<peer>\S+) failed : (?:Connection reset by peer|Broken pipe)",
            role="symptom",
            says="the connection to {peer} was reset",
            says_zh="到 {peer} 的连接被重置",
        ),
        Signature(
            needle="ocketProgressOpt: ",
            pattern=r"Call to (?:recv|send)\S* (?:from|to) (?P<peer>\S+) failed : (?:Connection reset by peer|Broken pipe)",
            role="symptom",
        ),
        Signature(needle="NCCL communicator was aborted", pattern=r"was aborted(?: on rank (?P<rank>\d+))?", role="symptom"),
        Signature(needle="Gloo all-reduce failed with error", role="symptom"),
        Signature(needle="NIXL_ERR_REMOTE_DISCONNECT", role="symptom"),
        Signature(needle="Horovod has been shut down", role="symptom"),
        Signature(
            needle="has been marked dead because the detector",
            pattern=r"address: (?P<address>[\w.:-]{1,64}) .{0,200}has been marked dead",
            role="symptom",
            says="Ray took the node {address} for dead: it no longer answered health checks",
            says_zh="Ray 认为节点 {address} 已失效：它不再响应健康检查",
        ),
        Signature(needle="HorovodInternalError", role="symptom"),
    ),
    mistaken_for={"network-blocked": "a connection that once worked and then closed is nearly always the end of the process at its other side"},
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.html",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html",
    ),
    hits=(
        "EI0009: [PID: 812] 2026-01-08 Transport init error. Reason: [Create][DestLink]Create Dest error! dst_rank[0]-remoteUserrank[0]",
        "EI0012: [PID: 812] 2026-01-08 SDMA memory copy task exception occurred. Remote rank: 4. Base information: x.",
        "The node with node id: 5c21e0f4aa93 and address: 10.0.0.8 and node name: 10.0.0.8 has been marked dead because the detector.",
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:47492. This is "
            "typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error."
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:51860: Connection reset by peer. "
            "This is typically caused by a remote worker hanging or bugs in the application."
        ),
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Write error [10.0.0.2]:51860: Broken pipe",
        (
            "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please "
            "check rank 0 logs for faulty rank."
        ),
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "RuntimeError: NCCL error: remote process exited or there was a network error",
        "node7:4711:4790 [3] include/socket.h:416 NCCL WARN Net : Connection closed by remote peer node8<47492>",
        "[2026-11-03 10:00:01] node7:4711:4790 [3] misc/socket.cc:46 NCCL WARN socketProgress: Connection closed by remote peer node8<47492>",
        "node7:4711:4790 [0] include/socket.h:403 NCCL WARN Call to recv from 10.0.0.8<36231> failed : Connection reset by peer",
        "node7:4711:4790 [0] include/socket.h:403 NCCL WARN Call to send to 10.0.0.8<36231> failed : Broken pipe",
        "node7:4711:4790 [0] misc/socket.cc:57 NCCL WARN socketProgressOpt: Call to recv from 10.0.0.8<36231> failed : Connection reset by peer",
        "RuntimeError: NCCL communicator was aborted on rank 3.",
        "[rank2]: torch.distributed.DistBackendError: NCCL communicator was aborted. Original reason for failure was: watchdog",
        "nixl_cu12._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
        "RuntimeError: Gloo all-reduce failed with error: [pair.cc:589] Read error [10.0.0.2]:51860: Connection reset by peer",
        "[1,0]<stderr>:RuntimeError: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce",
        "horovod.common.exceptions.HorovodInternalError: Connection reset",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running",
        "joblib.externals.loky.process_executor.TerminatedWorkerError: A worker process managed by the executor was unexpectedly terminated.",
    ),
    near_misses=(
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ssh: connect to host node2 port 22: Connection refused",
        "node7:4711:4790 [0] NCCL INFO comm 0x55d0 rank 3 nranks 8 cudaDev 3 busId 4f000 - Abort COMPLETE",
    ),
    explain={
        "en": (
            "The other side of a connection went away while this rank communicated with it. The rank that prints this was healthy: find out why "
            "its peer ended first."
        ),
        "zh": "通信过程中，连接的另一端消失了。打印这条信息的进程本身是健康的：要找的是它的同伴为什么先结束。",
    },
)
