"""Control groups of this process, v1 and v2: where each controller's limits and counters stand."""

from __future__ import annotations

import re
from collections.abc import Collection

from unhang.facts.host import Host


def directories(host: Host, controller: str, *, holding: Collection[str]) -> tuple[str, ...]:
    """The directories of the group that a controller has this process in, and of the groups around it, innermost first: those with such files."""
    try:
        rows = [line.split(":", 2) for line in host.read("/proc/self/cgroup").splitlines()]
    except OSError:
        return ()
    for row in rows:
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


def number(host: Host, *paths: str) -> int | None:
    """The whole number that the first of these files holds that can be read; None where it holds a word, as "max" is."""
    for path in paths:
        if (text := host.text(path)) is None:
            continue
        return int(text) if re.fullmatch(r"-?[0-9]{1,30}", text) else None
    return None


def counted(host: Host, path: str, names: Collection[str]) -> int | None:
    """The sum of the named counters in a file of lines like "oom_kill 3"; None where none of them is there."""
    try:
        rows = [line.split() for line in host.read(path).splitlines()]
    except OSError:
        return None
    found = [int(row[1]) for row in rows if len(row) == 2 and row[0] in names and row[1].isdecimal()]
    return sum(found) if found else None
