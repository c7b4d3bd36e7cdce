"""Memory: what is free, what the control group allows, and how often the OOM killer struck in it."""

from __future__ import annotations

from dataclasses import dataclass

from unhang.facts.host import Host


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
    directory = _cgroup(host)
    limit = used = None
    if directory is not None:
        limit = _number(host, f"{directory}/memory.max") or _number(host, f"{directory}/memory.limit_in_bytes")
        used = _number(host, f"{directory}/memory.current") or _number(host, f"{directory}/memory.usage_in_bytes")
    return Memory(
        total_bytes=info.get("MemTotal", 0),
        available_bytes=info.get("MemAvailable", info.get("MemFree", 0)),
        # cgroup v1 writes "no limit" as a number near 2^63.
        cgroup_limit_bytes=None if limit is None or limit >= 1 << 60 else limit,
        cgroup_used_bytes=used,
        oom_kills=oom_kills(host),
    )


def oom_kills(host: Host) -> int | None:
    """How many processes the OOM killer has ended in this control group, or on this host where no group counts; None where nothing counts."""
    directory = _cgroup(host)
    texts = []
    if directory is not None:
        texts = [f"{directory}/memory.events", f"{directory}/memory.oom_control"]
    for path in [*texts, "/proc/vmstat"]:
        try:
            text = host.read(path)
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _cgroup(host: Host) -> str | None:
    try:
        lines = host.read("/proc/self/cgroup").splitlines()
    except OSError:
        return None
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return f"/sys/fs/cgroup/memory{path}"
        if number == "0" and not controllers and host.path(f"/sys/fs/cgroup{path}/memory.events").exists():
            return f"/sys/fs/cgroup{path}"
    return None


def _number(host: Host, path: str) -> int | None:
    try:
        text = host.read(path).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
