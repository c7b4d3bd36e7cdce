"""What the kernel says of one process and of its children: state, CPU time, wake-ups, memory; and of our own control groups.

The main thread, or the one that trains, is looked at apart from the others: the main thread's task has the number of the process itself. A rank's
other threads (transport, watchdogs, our heartbeat) are busy for reasons of their own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from unhang.facts.host import Host
from unhang.model import ProcessId, frozen

# The first namespace of a kernel has a fixed number (PROC_PID_INIT_INO): from there all processes of the machine are seen, and its pids are those of
# the kernel's log.
FIRST_PID_NAMESPACE = "pid:[4026531836]"

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@frozen
class Sample:
    """One look at a process at `t` (the caller's clock, seconds).

    `state`, `cpu_s` (CPU time), `switches` and `wchan` are those of the thread that was looked at; `tree_cpu_s` is that of all threads and of the
    children, those that have ended too. `io_bytes` is what the process and its children have read and written by file system calls (what goes
    through send and recv is not counted there); 0 where the kernel does not say.
    """

    t: float
    state: str
    cpu_s: float
    tree_cpu_s: float
    io_bytes: int
    switches: int
    rss_bytes: int
    wchan: str | None


def sample(host: Host, pid: int, *, t: float, tid: int | None = None, children: tuple[int, ...] = ()) -> Sample | None:
    """Look at one process; None where it is no more. `tid` is the thread to look at (the main one).

    `children` are the processes whose CPU time counts as its own.
    """
    task = f"/proc/{pid}/task/{tid or pid}"
    whole, main = _read(host, f"/proc/{pid}/stat"), _read(host, f"{task}/stat")
    if whole is None or main is None:
        return None
    tree, transferred = whole.tree_cpu_s, _io_bytes(host, pid)
    for child in children:
        if (found := _read(host, f"/proc/{child}/stat")) is not None:
            tree += found.tree_cpu_s
            transferred += _io_bytes(host, child)
    return Sample(
        t=t,
        state=main.state,
        cpu_s=main.cpu_s,
        tree_cpu_s=tree,
        io_bytes=transferred,
        switches=_switches(host.lines(f"{task}/status")),
        rss_bytes=whole.rss_bytes,
        wchan=_wchan(host, f"{task}/wchan" if tid else f"/proc/{pid}/wchan"),
    )


def descendants(host: Host, roots: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """For each of `roots`, all processes below it, from one pass over /proc."""
    parents: dict[int, int] = {}
    for name in host.names("/proc"):
        if name.isdigit() and (found := _read(host, f"/proc/{name}/stat")) is not None:
            parents[int(name)] = found.ppid
    below: dict[int, list[int]] = {root: [] for root in roots}
    for pid in parents:
        seen: set[int] = set()
        up = parents.get(pid, 0)
        while up > 1 and up not in seen:
            if up in below:
                below[up].append(pid)
            seen.add(up)
            up = parents.get(up, 0)
    return {root: tuple(sorted(pids)) for root, pids in below.items()}


@frozen
class Child:
    """One process at a glance. A zombie has a `name` only, and an `exitcode` as in subprocess, None if the kernel does not tell it to us."""

    pid: int
    name: str
    state: str
    exitcode: int | None = None
    executable: str | None = None
    command: str = ""
    wchan: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("Z", "X")

    @property
    def polls(self) -> bool:
        """Whether it waits with a timeout for one of several things, as a worker without work does."""
        return (self.wchan or "").startswith(("poll", "do_poll", "ep_poll", "do_sys_poll", "do_select"))


def child(host: Host, pid: int) -> Child | None:
    """Look at one process, which may be a zombie; None if it is gone."""
    try:
        text = host.read(f"/proc/{pid}/stat")
        found, name = _stat(text), text[text.index("(") + 1 : text.rindex(")")]
        if found.state in ("Z", "X"):
            return Child(pid=pid, name=name, state=found.state, exitcode=found.exitcode)
        return Child(
            pid=pid,
            name=name,
            state=found.state,
            executable=host.link(f"/proc/{pid}/exe"),
            command=host.read(f"/proc/{pid}/cmdline").replace("\0", " "),
            wchan=_wchan(host, f"/proc/{pid}/wchan"),
        )
    except (OSError, ValueError, LookupError):
        return None


def names(host: Host) -> dict[int, str]:
    """What the processes that can be seen are called, in 15 characters at most."""
    pids = (int(name) for name in host.listed("/proc") if name.isdigit())
    return {pid: name for pid in pids if (name := host.text(f"/proc/{pid}/comm")) is not None}


def exists(host: Host, pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    found = _read(host, f"/proc/{pid}/stat")
    return found is not None and found.state not in ("Z", "X")


def start_ticks(host: Host, pid: int) -> int | None:
    """When it started, since the start of the machine; None where the kernel does not say, or it is no more."""
    found = _read(host, f"/proc/{pid}/stat")
    return None if found is None else found.start_ticks


def identity(host: Host, pid: int) -> ProcessId | None:
    """What tells this process from all others; None where the kernel does not say, or it is no more."""
    try:
        return ProcessId(
            host=host.hostname(),
            pid=pid,
            start_ticks=_stat(host.read(f"/proc/{pid}/stat")).start_ticks,
            boot_id=host.read("/proc/sys/kernel/random/boot_id").strip(),
            pid_namespace=host.link("/proc/self/ns/pid"),
        )
    except (OSError, ValueError, LookupError):
        return None


def is_alive(host: Host, process: ProcessId) -> bool | None:
    """Whether that very process lives; None where it cannot be seen from here (another machine, another container)."""
    try:
        if (host.read("/proc/sys/kernel/random/boot_id").strip(), host.link("/proc/self/ns/pid")) != (process.boot_id, process.pid_namespace):
            return None
    except OSError:
        return None
    try:
        found = _stat(host.read(f"/proc/{process.pid}/stat"))
    except OSError:
        return False
    except (ValueError, LookupError):
        return None
    return found.start_ticks == process.start_ticks and found.state not in ("Z", "X")


def is_stopped(host: Host, process: ProcessId) -> bool:
    """Whether that very process is stopped by a signal (SIGSTOP, Ctrl-Z) now; False, too, where it cannot be seen from here."""
    found = _read(host, f"/proc/{process.pid}/stat") if is_alive(host, process) else None
    # Not "t": a tracer (a debugger, py-spy for an instant) has that one.
    return found is not None and found.state == "T"


def thread(host: Host, pid: int, tid: int) -> tuple[str, float] | None:
    """One thread of a process: its state, and its CPU time in seconds. None where it is no more."""
    found = _read(host, f"/proc/{pid}/task/{tid}/stat")
    return None if found is None else (found.state, found.cpu_s)


@dataclass(frozen=True)
class _Stat:
    state: str
    ppid: int
    cpu_s: float
    tree_cpu_s: float
    rss_bytes: int
    start_ticks: int
    exitcode: int | None


def _read(host: Host, path: str) -> _Stat | None:
    try:
        return _stat(host.read(path))
    except (OSError, ValueError, LookupError):
        return None


def _stat(text: str) -> _Stat:
    # The command name, in parentheses, may itself hold spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    own, waited_for = (int(fields[i]) + int(fields[i + 1]) for i in (11, 13))
    return _Stat(
        state=fields[0],
        ppid=int(fields[1]),
        cpu_s=own / TICKS_PER_S,
        tree_cpu_s=(own + waited_for) / TICKS_PER_S,
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        start_ticks=int(fields[19]),
        exitcode=_exitcode(fields),
    )


def _exitcode(fields: list[str]) -> int | None:
    """Of a zombie. The kernel writes 0 for those that we may not trace, which is told from a success by nothing: then it is unknown."""
    return os.waitstatus_to_exitcode(int(fields[49])) or None if fields[0] == "Z" and len(fields) > 49 else None


def _switches(status: Iterable[str]) -> int:
    return sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))


def _io_bytes(host: Host, pid: int) -> int:
    return sum(int(line.split()[1]) for line in host.lines(f"/proc/{pid}/io") if line.startswith(("rchar:", "wchar:")))


def _wchan(host: Host, path: str) -> str | None:
    name = (host.text(path) or "").strip("\0\n ")
    return name if name and name != "0" else None


def control_groups(host: Host, controller: str, *, holding: Collection[str]) -> tuple[str, ...]:
    """The directories of the group (v1 or v2) that a controller has this process in, and of the groups around it, innermost first: those with such
    files.
    """
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
