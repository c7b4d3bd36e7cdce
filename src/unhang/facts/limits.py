"""Limits that the processes of a training inherit: of this process (files, processes, locked memory), of its control group, and of the kernel.

A launcher that starts ranks elsewhere gives them its own: ssh those of sshd, Slurm those of the shell that submitted or of slurmd, a service its
unit's. What is seen here holds for what is started from here.
"""

from __future__ import annotations

import os
import re

from unhang.facts.host import Host, Subject
from unhang.facts.numa import numbered
from unhang.facts.processes import control_groups
from unhang.i18n import Text, joined, msg
from unhang.model import frozen
from unhang.text import size

# Bits of CapEff (linux/capability.h).
_IPC_LOCK, _SYS_PTRACE, _SYS_ADMIN, _SYS_RESOURCE = 14, 19, 21, 24


# As /proc/self/limits names them.
_JUDGED = {"Max open files": "open files", "Max processes": "processes", "Max locked memory": "locked memory", "Max stack size": "the stack"}


@frozen
class Limit:
    """What is granted now, and how far a process without privileges may raise it; None is no limit."""

    soft: int | None
    hard: int | None


@frozen
class Group:
    """A control group's limit on processes and threads, and how many there are. `directory` is where that stands."""

    directory: str
    limit: int
    current: int | None


@frozen
class Limits:
    """`memlock_bytes`, `stack_bytes` and `address_space_bytes` are in bytes, the others are counts. None is what could not be read.

    `user_threads` are the processes and threads of this user, counted where `processes` has a limit. `pids` is the control group with the fewest
    left, `cpu_quota` the CPUs that control groups grant (None: no such limit). `cpus_allowed` counts those of the affinity.
    `lifts_` say that a capability of this process lifts a limit: CAP_IPC_LOCK locked memory, CAP_SYS_RESOURCE processes, CAP_SYS_PTRACE reading
    other processes; the first two do so outside of user namespaces only. `ptrace_scope` is Yama's: 1 lets only ancestors read a process, 2 only root,
    3 nobody; None without Yama.
    `infiniband` are adapters with an active port.
    """

    open_files: Limit | None
    processes: Limit | None
    memlock_bytes: Limit | None
    stack_bytes: Limit | None
    address_space_bytes: Limit | None
    lifts_memlock: bool | None
    lifts_processes: bool | None
    lifts_ptrace: bool | None
    user_threads: int | None
    pids: Group | None
    cpus_online: int | None
    cpus_allowed: int | None
    cpu_quota: float | None
    threads: int | None
    threads_max: int | None
    pid_max: int | None
    open_files_of_all: int | None
    file_max: int | None
    max_map_count: int | None
    ptrace_scope: int | None
    infiniband: tuple[str, ...]
    unread: tuple[str, ...] = ()

    @property
    def cpus(self) -> float | None:
        """What is left of the CPUs by affinity and quota; None where neither could be read."""
        known = [c for c in (self.cpus_allowed, self.cpu_quota) if c is not None]
        return min(known) if known else None


def collect(host: Host) -> Limits:
    """Raises OSError without /proc/self/limits."""
    unread: list[str] = []
    given = _given(host.read("/proc/self/limits"))
    status = _status(host)
    capabilities = int(status["CapEff"], 16) if re.fullmatch(r"[0-9a-f]+", status.get("CapEff", "")) else None
    processes = given.get("Max processes")
    files = _words(host, "/proc/sys/fs/file-nr")
    unread += [f"the limit of {what}" for name, what in _JUDGED.items() if name not in given]
    return Limits(
        open_files=given.get("Max open files"),
        processes=processes,
        memlock_bytes=given.get("Max locked memory"),
        stack_bytes=given.get("Max stack size"),
        address_space_bytes=given.get("Max address space"),
        lifts_memlock=_has_on_machine(host, capabilities, _IPC_LOCK),
        lifts_processes=_has_on_machine(host, capabilities, _SYS_RESOURCE, _SYS_ADMIN),
        lifts_ptrace=_has(capabilities, _SYS_PTRACE),
        user_threads=_user_threads(host) if processes is not None and processes.soft is not None else None,
        pids=_pids(host),
        cpus_online=_count(host.text("/sys/devices/system/cpu/online") or ""),
        cpus_allowed=_count(status.get("Cpus_allowed_list", "")),
        cpu_quota=_quota(host),
        threads=_threads(host),
        threads_max=host.number("/proc/sys/kernel/threads-max"),
        pid_max=host.number("/proc/sys/kernel/pid_max"),
        open_files_of_all=files[0] if files else None,
        file_max=files[2] if len(files) > 2 else None,
        max_map_count=host.number("/proc/sys/vm/max_map_count"),
        ptrace_scope=host.number("/proc/sys/kernel/yama/ptrace_scope"),
        infiniband=_infiniband(host, unread),
        unread=tuple(unread),
    )


def _given(text: str) -> dict[str, Limit]:
    found = {}
    for name, soft, hard in re.findall(r"^(Max [a-z ]+?) +(unlimited|[0-9]+) +(unlimited|[0-9]+)", text, re.MULTILINE):
        found[name] = Limit(soft=None if soft == "unlimited" else int(soft), hard=None if hard == "unlimited" else int(hard))
    return found


def _status(host: Host) -> dict[str, str]:
    rows = (line.partition(":") for line in host.lines("/proc/self/status"))
    return {name: value.strip() for name, _, value in rows}


def _has(capabilities: int | None, *bits: int) -> bool | None:
    return None if capabilities is None else any(capabilities >> bit & 1 for bit in bits)


def _has_on_machine(host: Host, capabilities: int | None, *bits: int) -> bool | None:
    """Whether the machine grants it, too: a user namespace gives all capabilities to its root, which lift none of the machine's limits."""
    mapped = (host.text("/proc/self/uid_map") or "").split()
    if not (has := _has(capabilities, *bits)):
        return has
    return mapped == ["0", "0", "4294967295"] if mapped else None


def _user_threads(host: Host) -> int | None:
    """What the kernel compares with RLIMIT_NPROC: all threads of our real user."""
    me = os.getuid() if host.is_live else 0
    count = 0
    for pid in host.names("/proc"):
        if not pid.isdigit():
            continue
        text = host.text(f"/proc/{pid}/status") or ""
        uid, threads = re.search(r"^Uid:\s*([0-9]+)", text, re.MULTILINE), re.search(r"^Threads:\s*([0-9]+)", text, re.MULTILINE)
        if uid and threads and int(uid[1]) == me:
            count += int(threads[1])
    return count


def _pids(host: Host) -> Group | None:
    found = []
    for directory in control_groups(host, "pids", holding=("pids.max",)):
        limit = host.number(f"{directory}/pids.max")
        if limit is not None:
            found.append(Group(directory=directory, limit=limit, current=host.number(f"{directory}/pids.current")))
    return min(found, key=lambda group: group.limit - (group.current or 0), default=None)


def _quota(host: Host) -> float | None:
    found = []
    for directory in control_groups(host, "cpu", holding=("cpu.max", "cpu.cfs_quota_us")):
        words = _words(host, f"{directory}/cpu.max")
        quota, period = words if len(words) == 2 else (host.number(f"{directory}/cpu.cfs_quota_us"), host.number(f"{directory}/cpu.cfs_period_us"))
        # "max" and -1 are no limit.
        if quota is not None and quota > 0 and period:
            found.append(quota / period)
    return round(min(found), 3) if found else None


def _threads(host: Host) -> int | None:
    """All processes and threads of the machine, as the kernel counts them against pid_max and threads-max."""
    counted = re.search(r" [0-9]+/([0-9]+) ", (host.text("/proc/loadavg") or ""))
    return int(counted[1]) if counted else None


def _infiniband(host: Host, unread: list[str]) -> tuple[str, ...]:
    try:
        devices = host.names("/sys/class/infiniband")
    except FileNotFoundError:
        return ()
    except OSError as e:
        unread.append(f"InfiniBand adapters: {e.strerror or e}")
        return ()
    return tuple(
        d
        for d in devices
        if any("ACTIVE" in (host.text(f"/sys/class/infiniband/{d}/ports/{p}/state") or "") for p in host.listed(f"/sys/class/infiniband/{d}/ports"))
    )


def _count(text: str) -> int | None:
    try:
        return len(numbered(text)) or None
    except ValueError:
        return None


def _words(host: Host, path: str) -> list[int]:
    words = (host.text(path) or "").split()
    return [int(word) for word in words] if all(re.fullmatch(r"[0-9]{1,19}", word) for word in words) else []


def said(limit: Limit | None, *, bytes: bool = False) -> str:
    """A limit in words."""
    if limit is None:
        return "unknown"
    return "unlimited" if limit.soft is None else size(limit.soft) if bytes else str(limit.soft)


def _summary(limits: Limits) -> Text:
    parts = [
        msg("open files {n}", n=_told(limits.open_files)),
        msg("processes {n}", n=_told(limits.processes)),
        msg("locked memory {n}", n=_told(limits.memlock_bytes, bytes=True)),
    ]
    if limits.pids is not None:
        parts.append(msg("{n} of {limit} processes of the control group", n=str(limits.pids.current), limit=str(limits.pids.limit)))
    if limits.cpus is not None:
        parts.append(msg("{n} CPUs", n=f"{limits.cpus:g}"))
    return joined(parts, msg(", ", "limits"))


def _told(limit: Limit | None, *, bytes: bool = False) -> Text:
    return msg(said(limit, bytes=bytes))


SUBJECT = Subject(
    id="limits",
    title=msg("limits", "title"),
    facts=Limits,
    collect=collect,
    summary=_summary,
    volatile=("user_threads", "current", "threads", "open_files_of_all", "directory"),
)
