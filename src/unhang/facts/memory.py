"""Memory: what is free, what the control group allows, and how often the OOM killer struck in it."""

from __future__ import annotations

from dataclasses import dataclass

from unhang.facts.host import Host
from unhang.facts.subject import Subject
from unhang.facts.units import size


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Sizes in bytes. The `cgroup_` values are None where no control group limits or counts."""

    total_bytes: int
    available_bytes: int
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int | None
    oom_kills: int | None


def collect(host: Host) -> Memory:
    """Read /proc/meminfo and this process's memory control group (v1 or v2). Raises OSError without /proc/meminfo."""
    info: dict[str, int] = {}
    for line in host.read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if value.strip():
            info[name] = int(value.split()[0]) * 1024
    limit, used = _limit(host)
    return Memory(
        total_bytes=info.get("MemTotal", 0),
        available_bytes=info.get("MemAvailable", info.get("MemFree", 0)),
        cgroup_limit_bytes=limit,
        cgroup_used_bytes=used,
        oom_kills=oom_kills(host),
    )


def oom_kills(host: Host) -> int | None:
    """How many processes the OOM killer has ended in this control group, or on this host where no group counts; None where nothing counts."""
    texts = [f"{directory}/{name}" for directory in _cgroups(host)[:1] for name in ("memory.events", "memory.oom_control")]
    for path in [*texts, "/proc/vmstat"]:
        try:
            text = host.read(path)
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _limit(host: Host) -> tuple[int | None, int | None]:
    """The smallest limit over this control group and all groups around it, and what is used of that group; without a limit, what this one uses."""
    groups = []
    for directory in _cgroups(host):
        limit = _number(host, f"{directory}/memory.max") or _number(host, f"{directory}/memory.limit_in_bytes")
        used = _number(host, f"{directory}/memory.current") or _number(host, f"{directory}/memory.usage_in_bytes")
        # cgroup v1 writes "no limit" as a number near 2^63.
        groups.append((None if limit is None or limit >= 1 << 60 else limit, used))
    limited = [(limit, used) for limit, used in groups if limit is not None]
    if limited:
        return min(limited, key=lambda group: group[0])
    return groups[0] if groups else (None, None)


def _cgroups(host: Host) -> list[str]:
    """The directories of this process's memory control group and of the groups around it, innermost first."""
    try:
        lines = host.read("/proc/self/cgroup").splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            base, mark = "/sys/fs/cgroup/memory", "memory.oom_control"
        elif number == "0" and not controllers:
            base, mark = "/sys/fs/cgroup", "memory.events"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        upwards = ["/".join([base, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
        # Inside a container the path may be the host's, of which only the upper end is mounted here.
        found = [directory for directory in upwards if host.path(f"{directory}/{mark}").exists()]
        if found:
            return found
    return []


def _number(host: Host, path: str) -> int | None:
    try:
        text = host.read(path).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _summary(memory: Memory) -> str:
    said = f"{size(memory.available_bytes)} of {size(memory.total_bytes)} available"
    if memory.cgroup_limit_bytes is not None and memory.cgroup_used_bytes is not None:
        said += f"; the control group may use {size(memory.cgroup_limit_bytes)} and uses {size(memory.cgroup_used_bytes)}"
    return said


SUBJECT = Subject(id="memory", title="memory", title_zh="内存", facts=Memory, collect=collect, summary=_summary)
