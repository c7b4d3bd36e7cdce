"""What a thread waits in, as the kernel sees it, and whether anything can still end that wait.

Reads /proc/PID/task/TID/{syscall,wchan,comm}, /proc/PID/fd and /proc/locks. They need the same user and, under Yama, an ancestor; without that
the answer is None, never a guess.
"""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import struct
from collections.abc import Collection, Iterable
from dataclasses import replace

from unhang.facts.host import Host
from unhang.model import Wait

# Numbers of system calls by what they wait for, on x86-64 and on 64-bit Arm (whose table other new architectures share). Receiving, accepting and
# connecting count as reading, closing and syncing as writing.
_NUMBERS = {
    "x86_64": {
        "read": (0, 17, 19, 42, 43, 45, 47, 288),
        "write": (1, 3, 18, 20, 44, 46, 74, 75),
        "open": (2, 257),
        "poll": (7,),
        "ppoll": (271,),
        "select": (23, 270),
        "epoll": (232, 281),
        "sleep": (35, 230),
        "futex": (202,),
        "wait": (61, 247),
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
        "wait": (95, 260),
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


def waits_in(host: Host, pid: int, *, tid: int | None = None, idle: Collection[int] = (), children: Iterable[int] = ()) -> Wait | None:
    """What thread `tid` (the main one) of a process waits in; None if it runs, or the kernel does not say.

    `idle` are threads, of the process or its children, that are known to release nothing. A wait for other processes cannot end if one of
    `children` is deadlocked: that child is the holder then.
    """
    found = _waits_in(host, pid, tid or pid, idle)
    if found is not None and found.kind in ("pipe", "semaphore", "child", "poll", "socket"):
        for child in children:
            if is_deadlocked(host, child, idle=idle):
                return replace(found, ends=False, holder=child, command=command_line(host, child))
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
    if name == "wait":
        child = args[0] if 0 < args[0] < 1 << 31 else None
        return Wait(kind="child", holder=child, command=command_line(host, child))
    if name == "lock":
        holder = _lock_holder(host, pid)
        return Wait(kind="file-lock", what=_target(host, pid, args[0]), holder=holder, command=command_line(host, holder))
    if name == "open":
        # Only opening a FIFO waits for long in the call itself; its path is in the program's memory.
        text = _string(host, pid, args[1])
        return Wait(kind="fifo" if "partner" in _wchan(host, pid, tid) else "file", what=text)
    if name in ("read", "write"):
        return _of_descriptor(host, pid, args[0], reads=name == "read")
    if name in ("poll", "ppoll"):
        return _of_poll(host, pid, args, timed=args[2] != 0 if name == "ppoll" else _signed(args[2]) >= 0)
    return Wait(kind="poll", timed=args[4] != 0 if name == "select" else _signed(args[3]) >= 0)


def is_deadlocked(host: Host, pid: int, *, idle: Collection[int] = ()) -> bool:
    """Whether every thread of a process waits, without a timeout, for another thread of that same process.

    Threads of transports and watchdogs do not count, nor do those in `idle`: they run no Python code, so they release no lock of it.
    """
    seen = 0
    try:
        tasks = host.names(f"/proc/{pid}/task")
        for tid in map(int, tasks):
            call = _call(host, pid, tid)
            if call is not None and call[0] == "futex" and call[1][1] & _FUTEX_PRIVATE and call[1][3] == 0:
                seen += 1
            elif tid not in idle and not host.read(f"/proc/{pid}/task/{tid}/comm").startswith(_NATIVE_THREADS):
                return False
    except (OSError, ValueError):
        return False
    return seen > 0


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
        others = sorted(p for p in _at_the_other_end(host, target, writers=reads) if p != pid)
        ends = timed or bool(others) or not _could_be_alone(host, pid)
        holder = others[0] if others else None
        what = None if target.startswith("pipe:") else target
        return Wait(kind="pipe", timed=timed, ends=ends, what=what, holder=holder, command=command_line(host, holder))
    return Wait(kind="poll" if target.startswith("anon_inode:") else "file", timed=timed, what=target or None)


def _of_poll(host: Host, pid: int, args: tuple[int, ...], *, timed: bool) -> Wait:
    """Of a poll with a single descriptor, that descriptor's wait."""
    if args[1] == 1:
        with contextlib.suppress(OSError, struct.error):
            fd, events = struct.unpack("ih", _memory(host, pid, args[0], 6))
            return _of_descriptor(host, pid, fd, reads=bool(events & _POLLIN), timed=timed)
    return Wait(kind="poll", timed=timed)


def _could_be_alone(host: Host, pid: int) -> bool:
    """Whether no other thread of the process runs Python: one that does could write into a pipe that this process holds itself."""
    try:
        others = [t for t in host.names(f"/proc/{pid}/task") if t != str(pid)]
        return all(host.read(f"/proc/{pid}/task/{t}/comm").startswith(_NATIVE_THREADS) for t in others)
    except OSError:
        return False


def _at_the_other_end(host: Host, target: str, *, writers: bool) -> Iterable[int]:
    """Processes that hold the other end of a pipe or FIFO, as far as they may be looked at."""
    for name in host.names("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for fd in host.names(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    if host.link(f"/proc/{name}/fd/{fd}") == target:
                        flags = int(host.read(f"/proc/{name}/fdinfo/{fd}").partition("flags:")[2].split()[0], 8)
                        if bool(flags & _WRITES) if writers else flags & os.O_ACCMODE != os.O_WRONLY:
                            yield int(name)
                            break


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


def _wchan(host: Host, pid: int, tid: int) -> str:
    try:
        return host.read(f"/proc/{pid}/task/{tid}/wchan")
    except OSError:
        return ""


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
