"""Control groups of this process, v1 and v2: where each controller's limits and counters stand."""

from __future__ import annotations

from collections.abc import Collection

from unhang.facts.host import Host


def directories(host: Host, controller: str, *, holding: Collection[str]) -> tuple[str, ...]:
    """The directories of the group that a controller has this process in, and of the groups around it, innermost first: those with such files."""
    for row in (line.split(":", 2) for line in host.lines("/proc/self/cgroup")):
        if len(row) < 3:
            continue
        number, controllers, path = row
        if controller in controllers.split(","):
            bases = [f"/sys/fs/cgroup/{controller}", f"/sys/fs/cgroup/{controllers}"]
        elif number == "0" and not controllers:
            bases = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for base in bases:
            upwards = ["/".join([base, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
            # Inside a container the path may be the host's, of which only the upper end is mounted here.
            if found := tuple(d for d in upwards if any(host.path(f"{d}/{name}").exists() for name in holding)):
                return found
    return ()


def counted(host: Host, path: str, names: Collection[str]) -> int | None:
    """The sum of the named counters in a file of lines like "oom_kill 3"; None where none of them is there."""
    rows = (line.split() for line in host.lines(path))
    found = [int(row[1]) for row in rows if len(row) == 2 and row[0] in names and row[1].isdecimal()]
    return sum(found) if found else None
