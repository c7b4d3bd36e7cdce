"""Lines that the kernel printed, and whether a pid in one is that of a rank, as launchers and NCCL tell those.

What may surprise: a container counts pids from 1 and the kernel as the host does, and each host counts anew. An equal number alone is no rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang import kernel_lines
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.knowledge.cause import LogView
    from unhang.logs import Hit

# As torch and as a shell tell SIGKILL, the only end that the OOM killer gives.
KILLED = (-9, 137)
_KILLS = lazily(r"oom-kill:constraint=|oom_reaper: |ut of memory: Kill")
_ADDRESS = lazily(r"[\d.]+|[\da-f:]*:[\da-f:]*")

_KERNEL = lazily(
    r"^(?:\[ *\d+\.\d+\] ?)?(?:kernel: )?(?:NVRM: |nvidia-nvswitch\d*: |mlx5_core |bnxt_en |pcieport |AMD-Vi: |DMAR: |EDAC |mce: |nfs: server "
    r"|oom-kill:constraint=|oom_reaper: |(?:Memory cgroup o|O)ut of memory: Kill|INFO: task |watchdog: BUG: )"
)


def is_kernels(hit: Hit) -> bool:
    """Whether the kernel printed what a signature of a cause hit."""
    return hit.signature.role == "root" and (_KERNEL.match(hit.text) is not None or kernel_lines.read(hit.text) is not None)


def pid_of(hit: Hit) -> str | None:
    return hit.groups.get("pid") or hit.groups.get("process")


def is_of_a_rank(hit: Hit, view: LogView) -> bool:
    """Whether a line tells of a rank's process: an equal pid, on no other host, that did not end in another way than the line has it."""
    pid = pid_of(hit)
    if pid is None:
        return False
    begun = [i.at for i in view.nccl.inits if str(i.at.pid) == pid]
    named = {at.host for at in begun if at.host is not None}
    ended = [e for e in view.exits if str(e.at.pid) == pid and _may_be_here(hit, named if e.at.host is None else {e.at.host})]
    if ended:
        return _KILLS.search(hit.text) is None or any(e.code in KILLED for e in ended)
    return any(_may_be_here(hit, set() if at.host is None else {at.host}) for at in begun)


def short(host: str) -> str:
    """A host without its domain."""
    return host if is_address(host) else host.partition(".")[0]


def is_address(host: str) -> bool:
    return _ADDRESS.fullmatch(host) is not None


def _may_be_here(hit: Hit, hosts: set[str]) -> bool:
    if hit.host is None or not hosts:
        return True
    here = short(hit.host)
    # An address and a name may be one host.
    return any(here == short(h) or is_address(here) != is_address(short(h)) for h in hosts)
