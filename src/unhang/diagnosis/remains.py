"""What remains where no cause is in evidence: the causes that are possible, and what to collect next."""

from __future__ import annotations

from unhang import data
from unhang.i18n import msg
from unhang.knowledge.commands import command
from unhang.model import Remedy

# Every rank came, and the data did not: the fault lies below the code.
TRANSPORT = ("network-blocked", "network-mtu", "interface-selection", "ib-transport-retry", "p2p-broken", "gpu-hardware", "nccl-bug")
# Nobody knows who was missing.
WAITING = (
    "straggler-timeout",
    "process-stuck",
    "collective-mismatch",
    "rank0-guarded-collective",
    "premature-exit",
    "network-blocked",
    "network-mtu",
)
# Not all ranks came to their first meeting.
STARTING = ("rendezvous-misconfig", "straggler-timeout", "network-blocked", "interface-selection", "gpu-busy-exclusive", "host-oom-or-killed")
# A call of CUDA failed inside NCCL.
CUDA_CALL = ("gpu-oom", "gpu-busy-exclusive", "illegal-memory-access", "driver-too-old", "p2p-broken", "shm-exhausted", "gpu-hardware", "nccl-bug")
# Somebody is gone, and his own words are not in the log.
LOST = ("host-oom-or-killed", "rank-exception", "premature-exit", "gpu-hardware", "network-blocked")
CRASH = ("illegal-memory-access", "library-link", "version-mismatch", "gpu-hardware", "framework-bug")


def remedy(key: str, id: str = "", **values: object) -> Remedy:
    """One of `remedies.toml`, with these values in its sentence and its command."""
    known = dict(data.table("diagnosis/remedies")[key])
    if values:
        known["command"] = command(known["command"], **values)
    return Remedy(id=id or key, **dict(known, says=msg(known["says"], **values)))


NCCL_DEBUG = remedy("say-more")
TORCH_DEBUG = remedy("say-more-of-torch", id="say-more")
READ_DUMPS = remedy("read-the-dumps")
OTHER_RANKS = remedy("other-ranks")
LOOK_UP = remedy("look-up-the-words")
SUPERVISE = remedy("supervise")
TRACE = remedy("flight-recorder")
ZERO_BUCKETS = remedy("zero-buckets")
TRY_THE_MACHINE = remedy("try-the-machine")
NATIVE_STACK = remedy("native-stack")
READ_LOG = remedy("read-log")
KERNEL_LOG = remedy("kernel-log")
WHOLE_LOG = remedy("whole-log")
# Of a process that said nothing.
FIND_EXIT = remedy("find-the-exit")
