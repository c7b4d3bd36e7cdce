"""TCP ports: who listens, above all on the port of the job's store, and the range from which the system hands out ports."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from unhang.facts import job
from unhang.facts.host import Host, Subject
from unhang.facts.job import Job
from unhang.i18n import Text, msg, same
from unhang.model import frozen
from unhang.text import counted

# torchrun, accelerate, DeepSpeed and init_process_group all take it unless they are told another.
USUAL_PORT = 29500
_LISTEN, _TIME_WAIT = "0A", "06"
_MAX_LISTENERS = 1000
_PATIENCE_S = 1.0

State = Literal["listening", "connected"]

# What runs scripts, and its options that may stand alone before one.
_ALONE = {
    r"(?:.*/)?(?:python|pypy)[\d.]*": r"-[bBdEhiIOPqRsSuvV]+|-[WX].+",
    r"(?:.*/)?-?(?:ba|da|k|z)?sh": r"-[eufxvl]+|--(?:login|norc|noprofile|posix)",
}
# Python's options with a word behind them, and the one that names a module.
_WITH_WORD, _MODULE = r"-[WX]", r"-[bBdEhiIOPqRsSuvV]*m(.*)"


@frozen
class Holder:
    """A socket on a local port, and the process that has it open: None where that could not be seen. `command` is its program, with its script."""

    port: int
    address: str
    state: State
    uid: int
    pid: int | None = None
    command: str | None = None


@frozen
class Ports:
    """`listeners` are all that listen, `connections` what else occupies the store's port. `range_first` to `range_last` is handed out by the system.

    `store_port` is MASTER_PORT, or 29500. `in_range` counts the ports of that range that are in use.
    """

    listeners: tuple[Holder, ...]
    connections: tuple[Holder, ...]
    store_port: int
    range_first: int | None
    range_last: int | None
    reserved: tuple[str, ...]
    in_range: int | None
    job: Job
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Ports:
    """Raises OSError without /proc/net/tcp."""
    unread: list[str] = []
    here = job.of(host.environ)
    store = here.master_port or USUAL_PORT
    bounds = _range(host, unread)
    listeners: list[tuple[str, Holder]] = []
    connections: list[tuple[str, Holder]] = []
    used: set[int] = set()
    for state, inode, socket in _sockets(host):
        if state == _LISTEN:
            listeners.append((inode, socket))
        elif socket.port == store and state != _TIME_WAIT:
            connections.append((inode, socket))
        if bounds is not None and bounds[0] <= socket.port <= bounds[1]:
            used.add(socket.port)
    listeners.sort(key=lambda found: (found[1].port != store, found[1].port))
    named = _named(host, listeners[:_MAX_LISTENERS] + connections[:10], unread)
    return Ports(
        listeners=tuple(h for h in named if h.state == "listening"),
        connections=tuple(h for h in named if h.state == "connected"),
        store_port=store,
        range_first=bounds[0] if bounds else None,
        range_last=bounds[1] if bounds else None,
        reserved=tuple(entry for entry in (host.text("/proc/sys/net/ipv4/ip_local_reserved_ports") or "").split(",") if entry),
        in_range=len(used) if bounds else None,
        job=here,
        unread=tuple(unread),
    )


def is_reserved(ports: Ports, number: int) -> bool:
    """Whether the system never hands this port out although it is in the range (ip_local_reserved_ports)."""
    for entry in ports.reserved:
        first, _, last = entry.partition("-")
        if first.isdigit() and (last or first).isdigit() and int(first) <= number <= int(last or first):
            return True
    return False


def _sockets(host: Host) -> Iterator[tuple[str, str, Holder]]:
    """State, inode and socket of each line."""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = host.read(path).splitlines()[1:]
        except FileNotFoundError:
            if path.endswith("6"):  # a kernel without IPv6
                continue
            raise
        for line in lines:
            words = line.split()
            try:
                address, _, port = words[1].partition(":")
                socket = Holder(
                    port=int(port, 16),
                    address=_address(address),
                    state="listening" if words[3] == _LISTEN else "connected",
                    uid=int(words[7]),
                )
            except (ValueError, IndexError):
                continue
            yield words[3], words[9] if len(words) > 9 else "0", socket


def _address(text: str) -> str:
    """The kernel writes words of 32 bits in the machine's own order."""
    raw = bytes.fromhex(text)
    turned = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    address = ipaddress.ip_address(turned)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _named(host: Host, sockets: list[tuple[str, Holder]], unread: list[str]) -> list[Holder]:
    """With the processes that have them open; the first of several (a forked worker has its parent's)."""
    wanted = {f"socket:[{inode}]" for inode, _ in sockets if inode != "0"}
    owners: dict[str, int] = {}
    blind = False
    until = time.monotonic() + _PATIENCE_S
    for pid in sorted(int(n) for n in host.listed("/proc") if n.isdigit()):
        if len(owners) == len(wanted):
            break
        if time.monotonic() > until:
            blind = True
            break
        try:
            fds = os.listdir(host.path(f"/proc/{pid}/fd"))  # noqa: PTH208 - the fastest: there can be a hundred thousand
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            continue
        except OSError:
            blind = True
            continue
        for fd in fds:
            try:
                target = os.readlink(host.path(f"/proc/{pid}/fd/{fd}"))  # noqa: PTH115 - as above
            except OSError:
                continue
            if target in wanted:
                owners.setdefault(target, pid)
    if blind and len(owners) < len(wanted):
        unread.append("the processes behind some ports (needs root)" if time.monotonic() <= until else "the processes behind some ports")
    commands = {pid: _command(host, pid) for pid in set(owners.values())}
    found = []
    for inode, socket in sockets:
        owner = owners.get(f"socket:[{inode}]")
        found.append(socket if owner is None else replace(socket, pid=owner, command=commands[owner]))
    return found


def _command(host: Host, pid: int) -> str | None:
    try:
        words = host.read(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")
        return _told(words)[:120] or host.read(f"/proc/{pid}/comm").strip()
    except OSError:
        return None


def _told(words: list[str]) -> str:
    """The program, and the script or module that Python or a shell runs. All other words may be credentials: those behind an unknown option, too."""
    # Programs that set their title write it as one word.
    program = words[0].split(" ", 1)[0]
    alone = next((options for names, options in _ALONE.items() if re.fullmatch(names, program)), None)
    rest = iter(words[1:] if alone is not None else ())
    for word in rest:
        if module := re.fullmatch(_MODULE, word):
            return f"{program} -m {module[1] or next(rest, '')}".rstrip()
        if not word.startswith("-"):
            return f"{program} {word}".rstrip()
        if re.fullmatch(_WITH_WORD, word):
            next(rest, None)
        elif not re.fullmatch(alone or "", word):
            break
    return program


def _range(host: Host, unread: list[str]) -> tuple[int, int] | None:
    try:
        first, last = (int(w) for w in host.read("/proc/sys/net/ipv4/ip_local_port_range").split())
    except (OSError, ValueError):
        unread.append("the range of ports that the system hands out")
        return None
    return first, last


def _summary(ports: Ports) -> Text:
    name = same("MASTER_PORT") if ports.job.master_port else msg("the usual port")
    taken = any(h.port == ports.store_port for h in (*ports.listeners, *ports.connections))
    how = msg("taken") if taken else msg("free")
    listened = len({h.port for h in ports.listeners})
    told = msg(
        "{name} {port} is {how}; listened on: {ports}",
        name=name,
        port=ports.store_port,
        how=how,
        ports=counted(listened, "port"),
        n=listened,
    )
    if ports.range_first is None:
        return told
    return told + msg("; the system hands out {first} to {last}", first=ports.range_first, last=str(ports.range_last))


def _lasting(ports: Ports) -> Ports:
    """Without who listens where the system put them; the store's port was chosen by somebody."""
    if ports.range_first is None or ports.range_last is None:
        return ports
    chosen = (h for h in ports.listeners if h.port == ports.store_port or not ports.range_first <= h.port <= ports.range_last)
    return replace(ports, listeners=tuple(chosen))


SUBJECT = Subject(
    id="ports", title=msg("ports", "title"), facts=Ports, collect=collect, summary=_summary, volatile=("in_range", "pid"), lasting=_lasting
)
