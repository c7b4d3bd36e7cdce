"""limits: a limit of the system was reached: open files, locked memory, processes, mappings."""

from __future__ import annotations

from unhang.facts.container import Kind
from unhang.facts.limits import Limits
from unhang.knowledge.judge import Findings, Found, HostView

_MIB = 1024 * 1024
# Measured with torch 2.13: one rank with Gloo and a data loader of four workers has 46 files open, one that has imported torch 10 to 20. CUDA keeps
# some 30 for each GPU that it sees, NCCL several for each peer.
_FILES_OF_A_RANK, _FILES_TO_SPARE = 64, 256
_FILES_WITH_GPUS, _FILES_TO_SPARE_WITH_GPUS = 256, 512
_USUAL_FILES = 1024
_MANY_CPUS = 32
# Main thread, autograd, Gloo or NCCL, watchdog, heartbeat, CUDA: without the threads that compute.
_THREADS_OF_A_RANK = 64
# One buffer of NCCL is 4 MiB, and each connection of each channel registers some.
_LOCKED_BYTES = 64 * _MIB

# What a rank on the CPU maps with a model of some size; usually there is no limit at all.
_ADDRESSES_OF_A_RANK = 16 << 30


def on_host(host: HostView) -> Findings:
    from unhang.facts import numa

    seen = host.limits
    nodes = host.get(numa.SUBJECT)
    gpus = len(nodes.gpus) if nodes is not None else 0
    kind = host.kind
    yield from _open_files(seen, gpus, kind)
    yield from _locked_memory(seen, gpus, kind)
    yield from _processes(seen, gpus)
    if gpus and seen.cpus is not None and seen.cpus < 2:
        quota = seen.cpu_quota is not None and seen.cpu_quota < (seen.cpus_allowed or 2)
        yield Found("few-cpus", seen=seen, quota=quota, cpu_quota=seen.cpu_quota or "none")
    yield from _others(seen, gpus)


def _open_files(seen: Limits, gpus: int, kind: Kind) -> Findings:
    limit = seen.open_files
    if limit is None or limit.soft is None:
        return
    needs, spare = (_FILES_WITH_GPUS, _FILES_TO_SPARE_WITH_GPUS) if gpus else (_FILES_OF_A_RANK, _FILES_TO_SPARE)
    many = gpus and (seen.cpus_allowed or 0) >= _MANY_CPUS
    if limit.soft > (_USUAL_FILES if many else spare):
        return
    raised = 65536 if limit.hard is None else min(65536, limit.hard)
    yield Found(
        "open-files",
        severity="error" if limit.soft < needs else "warning" if limit.soft <= spare else "note",
        by="raise" if raised > limit.soft else kind,
        raised=raised,
        limit=limit,
        on_gpu=gpus > 0,
        needs=needs,
    )


def _locked_memory(seen: Limits, gpus: int, kind: Kind) -> Findings:

    limit = seen.memlock_bytes
    if limit is None or limit.soft is None or seen.lifts_memlock is not False or not seen.infiniband:
        return
    small = limit.soft < _LOCKED_BYTES
    yield Found(
        "locked-memory",
        severity="note" if not gpus else "error" if small else "warning",
        by="raise" if limit.hard is None else kind,
        limit=limit,
        infiniband=seen.infiniband[:4],
    )


def _processes(seen: Limits, gpus: int) -> Findings:
    needs = max(1, gpus) * _THREADS_OF_A_RANK + (seen.cpus_allowed or 0)
    group = seen.pids
    if group is not None and group.current is not None and group.limit - group.current < needs:
        left = max(0, group.limit - group.current)
        yield Found(
            "control-group-full",
            none_left=left < _THREADS_OF_A_RANK,
            group=group,
            left=left,
            several=gpus > 1,
            needs=needs,
        )
    limit = seen.processes
    if limit is None or limit.soft is None or seen.user_threads is None or seen.lifts_processes is not False:
        return
    left = max(0, limit.soft - seen.user_threads)
    if left < needs:
        yield Found(
            "user-full",
            none_left=left < _THREADS_OF_A_RANK,
            raisable=limit.hard is None or limit.hard > limit.soft,
            seen=seen,
            limit=limit,
            left=left,
            several=gpus > 1,
            needs=needs,
            hard=limit.hard or "unlimited",
        )


def _others(seen: Limits, gpus: int) -> Findings:

    most = min((n for n in (seen.pid_max, seen.threads_max) if n is not None), default=None)
    if most is not None and seen.threads is not None and most - seen.threads < most // 10:
        yield Found("machine-full", none_left=most - seen.threads < _THREADS_OF_A_RANK, seen=seen, most=most)
    if seen.file_max and seen.open_files_of_all is not None and seen.file_max - seen.open_files_of_all < seen.file_max // 20:
        yield Found("files-full", seen=seen)
    space = seen.address_space_bytes
    if space is not None and space.soft is not None and (gpus or space.soft < _ADDRESSES_OF_A_RANK):
        yield Found("address-space", space=space, on_gpu=gpus > 0)
    if (seen.ptrace_scope or 0) >= 2 and seen.lifts_ptrace is False:
        yield Found("ptrace-closed", seen=seen)
