"""Memory: what is free, what the control group allows, what the kernel promises, and how often the OOM killer struck."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unhang.facts import processes
from unhang.facts.host import Host, Subject
from unhang.i18n import Text, msg
from unhang.model import frozen
from unhang.text import size


@frozen
class Memory:
    """Sizes in bytes; None where the kernel does not tell. The `cgroup_` values are None where no control group limits or counts.

    `cgroup_used_bytes` counts the cache of files too; `cgroup_reclaimable_bytes` is the part that the kernel takes back before it kills anyone.
    `overcommit` is vm.overcommit_memory: with 2 nothing is promised beyond `commit_limit_bytes`, of which `committed_bytes` are taken.
    `oom_kills` are those in the control group, where it counts; `host_oom_kills` those of the whole machine since it started.
    """

    total_bytes: int
    available_bytes: int | None
    transparent_huge_pages: str | None
    overcommit: int | None
    commit_limit_bytes: int | None
    committed_bytes: int | None
    cgroup: str | None
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int | None
    cgroup_reclaimable_bytes: int | None
    oom_kills: int | None
    host_oom_kills: int | None
    unread: tuple[str, ...] = ()

    @property
    def left_bytes(self) -> int | None:
        """What a training may take before something is refused or killed."""
        if self.cgroup_limit_bytes is None or self.cgroup_used_bytes is None:
            return self.available_bytes
        left = max(0, self.cgroup_limit_bytes - self.cgroup_used_bytes + (self.cgroup_reclaimable_bytes or 0))
        return left if self.available_bytes is None else min(self.available_bytes, left)


def collect(host: Host) -> Memory:
    """Read /proc/meminfo and this process's memory control group (v1 or v2). Raises OSError without /proc/meminfo, ValueError without its total."""
    info: dict[str, int] = {}
    for line in host.read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            # Counts of huge pages are the only values without a unit.
            info[name] = int(words[0]) * (1024 if words[1:] else 1)
    if not info.get("MemTotal"):
        raise ValueError("/proc/meminfo does not tell how much memory there is")
    # The group with the least room of this one and all around it; without a limit, this one.
    groups = []
    for directory in _groups(host):
        limit = host.number(f"{directory}/memory.max", f"{directory}/memory.limit_in_bytes")
        used = host.number(f"{directory}/memory.current", f"{directory}/memory.usage_in_bytes")
        # v1 counts the groups below only in its total_ names, v2 always. "file" and "cache" would count tmpfs as well, which nothing takes back.
        totals = processes.counted(host, f"{directory}/memory.stat", ("total_active_file", "total_inactive_file"))
        # cgroup v1 writes "no limit" as a number near 2^63.
        groups.append(
            _Group(
                directory,
                None if limit is None or limit >= 1 << 60 else limit,
                used,
                totals if totals is not None else processes.counted(host, f"{directory}/memory.stat", ("active_file", "inactive_file")),
            )
        )
    limited = [group for group in groups if group.limit is not None]
    group = min(limited, key=lambda group: group.left) if limited else next(iter(groups), _Group())
    available = info.get("MemAvailable", info.get("MemFree"))
    return Memory(
        total_bytes=info["MemTotal"],
        available_bytes=available,
        transparent_huge_pages=_chosen(host, "/sys/kernel/mm/transparent_hugepage/enabled"),
        overcommit=host.number("/proc/sys/vm/overcommit_memory"),
        commit_limit_bytes=info.get("CommitLimit"),
        committed_bytes=info.get("Committed_AS"),
        cgroup=group.directory,
        cgroup_limit_bytes=group.limit,
        cgroup_used_bytes=group.used,
        cgroup_reclaimable_bytes=group.reclaimable,
        oom_kills=oom_kills(host),
        host_oom_kills=processes.counted(host, "/proc/vmstat", ("oom_kill",)),
        unread=("how much memory is available",) if available is None else (),
    )


def oom_kills(host: Host) -> int | None:
    """How many processes the OOM killer has ended in this control group, or on this host where no group counts; None where nothing counts."""
    texts = [f"{directory}/{name}" for directory in _groups(host)[:1] for name in ("memory.events", "memory.oom_control")]
    counts = (processes.counted(host, path, ("oom_kill",)) for path in [*texts, "/proc/vmstat"])
    return next((count for count in counts if count is not None), None)


def _groups(host: Host) -> tuple[str, ...]:
    return processes.control_groups(host, "memory", holding=("memory.events", "memory.oom_control"))


@dataclass(frozen=True)
class _Group:
    directory: str | None = None
    limit: int | None = None
    used: int | None = None
    reclaimable: int | None = None

    @property
    def left(self) -> int:
        return (self.limit or 0) - (self.used or 0) + (self.reclaimable or 0)


def _chosen(host: Host, path: str) -> str | None:
    """The word in brackets of a setting like "always [madvise] never"."""
    found = re.search(r"\[(\w+)\]", host.text(path) or "")
    return found[1] if found else None


def _summary(memory: Memory) -> Text:
    left = "?" if memory.available_bytes is None else size(memory.available_bytes)
    told = msg("{left} of {all} available", left=left, all=size(memory.total_bytes))
    if memory.cgroup_limit_bytes is not None and memory.cgroup_used_bytes is not None:
        told += msg("; the control group may use {limit} and uses {used}", limit=size(memory.cgroup_limit_bytes), used=size(memory.cgroup_used_bytes))
    return told


SUBJECT = Subject(
    id="memory",
    title=msg("memory", "title"),
    facts=Memory,
    collect=collect,
    summary=_summary,
    volatile=(
        "available_bytes",
        "committed_bytes",
        "cgroup",
        "cgroup_used_bytes",
        "cgroup_reclaimable_bytes",
        "oom_kills",
        "host_oom_kills",
    ),
)
