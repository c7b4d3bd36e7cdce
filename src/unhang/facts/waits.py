"""What a thread waits in, as the kernel sees it, and whether anything can still end that wait.

Reads /proc/PID/task/TID/{syscall,wchan,comm}, /proc/PID/fd and /proc/locks. They need the same user and, under Yama, an ancestor; without that
the answer is None, never a guess.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import stat
import struct
from collections.abc import Collection
from dataclasses import replace

from unhang.facts.host import Host
from unhang.model import Wait

# Numbers of system calls by what they wait for, on x86-64 and on 64-bit Arm (whose table other new architectures share). Receiving, accepting and
# connecting count as reading, closing and syncing as writing.
_NUMBERS = {
    "x86_64": {
        "read": (0, 17, 19, 42, 43, 45, 47, 288),
        "write": (1, 3, 18, 20, 44, 46, 74, 75),
        "open": (257,),
        "poll": (7,),
        "ppoll": (271,),
        "select": (23, 270),
        "epoll": (232, 281),
        "sleep": (35, 230),
        "futex": (202,),
        "wait": (61,),
        "waitid": (247,),
        "lock": (72, 73),
    },
    "aarch64": {
        "read": (63, 65, 67, 202, 203, 207, 212, 242),
        "write": (57, 64, 66, 68, 82, 83, 206, 211),
        "open": (56,),
        "ppoll": (73,),
        "select": (72,),
        "epoll": (22,),
        "sleep": (101, 115),
        "futex": (98,),
        "wait": (260,),
        "waitid": (95,),
        "lock": (25, 32),
    },
}
_CALLS = {number: name for name, numbers in _NUMBERS.get(platform.machine(), {}).items() for number in numbers}
_FUTEX_PRIVATE = 128
_POLLIN = 1
_WRITES = os.O_WRONLY | os.O_RDWR
# Threads of libraries that never run Python code, idle in their own loops: they release no lock that a Python thread waits for.
_NATIVE_THREADS = ("gloo_", "pt_tcpstore", "pt_gloo", "pt_nccl", "cuda-", "unhang-")
_COMMAND_CHARS = 120
# Caught by Python, faulthandler, torch's loader and the C library: as bits of SigCgt.
_USUAL_SIGNALS = sum(
    1 << (number - 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, 32, 33)
)


def waits_in(host: Host, pid: int, *, tid: int | None = None, idle: Collection[int] = (), workers: Collection[int] = ()) -> Wait | None:
    """What thread `tid` (the main one) of a process waits in; None if it runs, or the kernel does not say.

    `idle` are threads, of the process or its children, that are known to release nothing. `workers` are child processes whose results the thread is
    known to wait for: one that is deadlocked delivers none, and is the holder then.
    """
    found = _waits_in(host, pid, tid or pid, idle)
    if found is None or not found.ends:
        return found
    child = found.holder if found.kind == "child" else None
    for suspect in (*workers, *((child,) if child is not None else ())):
        if is_deadlocked(host, suspect, idle=idle):
            return replace(found, ends=False, holder=suspect, command=command_line(host, suspect))
    return found


def _waits_in(host: Host, pid: int, tid: int, idle: Collection[int]) -> Wait | None:
    call = _call(host, pid, tid)
    if call is None:
        return None
    name, args = call
    if name == "sleep":
        return Wait(kind="sleep", timed=True)
    if name == "futex":
        timed = args[3] != 0
        if not args[1] & _FUTEX_PRIVATE:
            return Wait(kind="semaphore", timed=timed)
        return Wait(kind="mutex", timed=timed, ends=timed or not is_deadlocked(host, pid, idle=idle))
    if name in ("wait", "waitid"):
        # waitid has the kind of its number first: 1 for a process.
        number = args[0] if name == "wait" else args[1] if args[0] == 1 else 0
        child = number if 0 < number < 1 << 31 else None
        return Wait(kind="child", holder=child, command=command_line(host, child))
    if name == "lock":
        holder = _lock_holder(host, pid)
        return Wait(kind="file-lock", what=_target(host, pid, args[0]), holder=holder, command=command_line(host, holder))
    if name == "open":
        # Only opening a FIFO waits for long in the call itself; its path is in the program's memory.
        text = _string(host, pid, args[1])
        return Wait(kind="fifo" if "partner" in (host.text(f"/proc/{pid}/task/{tid}/wchan") or "") else "file", what=text)
    if name in ("read", "write"):
        return _of_descriptor(host, pid, args[0], reads=name == "read")
    if name in ("poll", "ppoll"):
        # Of a poll with a single descriptor, that descriptor's wait.
        timed = args[2] != 0 if name == "ppoll" else _signed(args[2]) >= 0
        if args[1] == 1:
            with contextlib.suppress(OSError, struct.error):
                fd, events = struct.unpack("ih", _memory(host, pid, args[0], 6))
                return _of_descriptor(host, pid, fd, reads=bool(events & _POLLIN), timed=timed)
        return Wait(kind="poll", timed=timed)
    return Wait(kind="poll", timed=args[4] != 0 if name == "select" else _signed(args[3]) >= 0)


def is_deadlocked(host: Host, pid: int, *, idle: Collection[int] = ()) -> bool:
    """Whether every thread of a process waits, without a timeout, for another thread of that same process.

    Threads of transports and watchdogs do not count, nor do those in `idle`: they run no Python code, so they release no lock of it. A process that
    catches signals of its own is not called deadlocked: a handler may release anything.
    """
    seen = 0
    try:
        if _handles_signals(host, pid):
            return False
        tasks = host.names(f"/proc/{pid}/task")
        for tid in map(int, tasks):
            call = _call(host, pid, tid)
            if call is not None and call[0] == "futex" and call[1][1] & _FUTEX_PRIVATE and call[1][3] == 0:
                seen += 1
            elif tid not in idle and not host.read(f"/proc/{pid}/task/{tid}/comm").startswith(_NATIVE_THREADS):
                return False
    except (OSError, ValueError, IndexError):
        return False
    return seen > 0


def _handles_signals(host: Host, pid: int) -> bool:
    """Whether a process catches signals that Python and torch do not catch by themselves. Raises OSError, ValueError, IndexError."""
    return bool(int(host.read(f"/proc/{pid}/status").partition("SigCgt:")[2].split()[0], 16) & ~_USUAL_SIGNALS)


def _runs_alone(host: Host, pid: int) -> bool:
    """Whether the main thread of a process is the only one that runs Python code, and no handler of a signal does."""
    try:
        if _handles_signals(host, pid):
            return False
        others = [t for t in host.names(f"/proc/{pid}/task") if t != str(pid)]
        return all(host.read(f"/proc/{pid}/task/{t}/comm").startswith(_NATIVE_THREADS) for t in others)
    except (OSError, ValueError, IndexError):
        return False


def command_line(host: Host, pid: int | None) -> str | None:
    """The command of a process, shortened; None if it is gone."""
    if pid is None:
        return None
    try:
        words = host.read(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")
    except OSError:
        return None
    text = " ".join(words)
    return text if len(text) <= _COMMAND_CHARS else text[: _COMMAND_CHARS - 1] + "…"


def _call(host: Host, pid: int, tid: int) -> tuple[str, tuple[int, ...]] | None:
    """The system call that a thread is blocked in, and its six arguments."""
    try:
        words = host.read(f"/proc/{pid}/task/{tid}/syscall").split()
        number = int(words[0])
    except (OSError, ValueError, IndexError):
        # "running", or a kernel that does not tell.
        return None
    name = _CALLS.get(number)
    return None if name is None or len(words) < 7 else (name, tuple(int(w, 16) for w in words[1:7]))


def _of_descriptor(host: Host, pid: int, fd: int, *, reads: bool, timed: bool = False) -> Wait:
    target = _target(host, pid, fd) or ""
    if target.startswith("socket:"):
        return Wait(kind="socket", timed=timed, what=_peer(host, pid, fd))
    if target.startswith(("/dev/pts/", "/dev/tty")):
        return Wait(kind="terminal", timed=timed, what=target)
    if target.startswith("pipe:") or _is_fifo(host, pid, fd):
        others, unseen = _at_the_other_end(host, target, writers=reads)
        others -= {pid}
        what = None if target.startswith("pipe:") else target
        # A FIFO with a name may be opened by anybody.
        ends = timed or unseen or bool(others) or what is not None or not _runs_alone(host, pid)
        holder = min(others, default=None)
        return Wait(kind="pipe", timed=timed, ends=ends, what=what, holder=holder, command=command_line(host, holder))
    return Wait(kind="poll" if target.startswith("anon_inode:") else "file", timed=timed, what=target or None)


def _at_the_other_end(host: Host, target: str, *, writers: bool) -> tuple[set[int], bool]:
    """Processes that hold the other end of a pipe or FIFO, and whether there are some that may not be looked at."""
    found: set[int] = set()
    unseen = False
    for name in host.names("/proc"):
        if not name.isdigit():
            continue
        try:
            for fd in host.names(f"/proc/{name}/fd"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError, IndexError):
                    if host.link(f"/proc/{name}/fd/{fd}") == target:
                        flags = int(host.read(f"/proc/{name}/fdinfo/{fd}").partition("flags:")[2].split()[0], 8)
                        if bool(flags & _WRITES) if writers else flags & os.O_ACCMODE != os.O_WRONLY:
                            found.add(int(name))
                            break
        except (FileNotFoundError, ProcessLookupError):
            # It has ended meanwhile.
            continue
        except OSError:
            # Of an init that may not be looked at, no training has its pipes.
            unseen = unseen or name != "1"
    return found, unseen


def _lock_holder(host: Host, pid: int) -> int | None:
    """Who holds the file lock that a process waits for, by /proc/locks ("4: FLOCK ADVISORY WRITE 4711 fd:00:123 0 EOF", "4: -> ..." waits)."""
    holders: dict[str, int] = {}
    try:
        lines = host.read("/proc/locks").splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        with contextlib.suppress(ValueError, IndexError):
            if words[1] != "->":
                holders[words[0]] = int(words[4])
            elif int(words[5]) == pid:
                return holders.get(words[0])
    return None


def _peer(host: Host, pid: int, fd: int) -> str | None:
    if not host.is_live:
        return None
    import psutil

    try:
        connections = psutil.Process(pid).net_connections(kind="inet")
    except psutil.Error:
        return None
    # A socket that listens has no peer.
    return next((f"{c.raddr.ip}:{c.raddr.port}" for c in connections if c.fd == fd and c.raddr), None)


def _target(host: Host, pid: int, fd: int) -> str | None:
    try:
        return host.link(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return None


def _is_fifo(host: Host, pid: int, fd: int) -> bool:
    try:
        return stat.S_ISFIFO(host.path(f"/proc/{pid}/fd/{fd}").stat().st_mode)
    except OSError:
        return False


def _string(host: Host, pid: int, address: int) -> str | None:
    try:
        return _memory(host, pid, address, 256).partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return None


def _memory(host: Host, pid: int, address: int, size: int) -> bytes:
    with host.path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)


def _signed(argument: int) -> int:
    """An int argument: only its low 32 bits count."""
    low = argument & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low
