"""The kernel's own log since boot: what it tells of GPUs, NVSwitches, PCIe, NICs, memory and processes that it ended. Other lines are not kept.

Read from /dev/kmsg; where that is refused, from the journal, dmesg, or the log files. Alike lines are one event with a count.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from unhang.facts.host import Host, Subject
from unhang.i18n import COMMA, NOTHING, Text, joined, msg
from unhang.kernel_lines import SINCE_BOOT, Kind, Meaning, may_mean, read
from unhang.model import frozen

# What happened in the last hours may be why a training ended, and may come back in the next; what is older is history.
RECENT_S = 6 * 3600
# While a machine starts its links go down and up again, as their drivers and its network are set up.
_STARTING_S = 600
_MAX_EVENTS = 100
_MAX_BYTES = 4 * 1024 * 1024
_MAX_LINE = 400
# The kernel's own lines end near 1,000 characters.
_MAX_READ = 1000
# TASK_COMM_LEN, less its end.
_COMM_CHARS = 15
_KMSG = re.compile(r"(?P<priority>\d+),\d+,(?P<us>\d+),[^;]*;(?P<text>.*)")
_EPOCH = re.compile(r"^(?P<s>\d{9,11}\.\d+) \S+ kernel: (?P<text>.*)")
_ISO = re.compile(r"^(?P<t>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)? \S+ kernel: (?P<text>.*)")
_SYSLOG = re.compile(r"^(?P<t>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) \S+ kernel: (?P<text>.*)")


@frozen
class Event(Meaning):
    """Something that the kernel said, `count` times.

    `process_is_there`: whether a task that hung was still a process of that number and name when we looked. Ages are seconds before the snapshot,
    None where the lines carry no time; `text` is the last of the lines.
    """

    text: str
    count: int = 1
    first_age_s: float | None = None
    last_age_s: float | None = None
    process_is_there: bool | None = None


@frozen
class KernelLog:
    """`events` are the newest last; `left_out` of them were too many to keep. `uptime_s` bounds how far back the log can reach."""

    source: str
    uptime_s: float | None
    events: tuple[Event, ...]
    left_out: int = 0
    unread: tuple[str, ...] = ()


def collect(host: Host) -> KernelLog:
    """Raises OSError where nothing lets us read it, or shows one record of it: an empty log is no healthy machine."""
    refused: list[str] = []
    now, uptime = host.now_s(), uptime_s(host)
    for source, lines in _sources(host, refused, now=now, uptime=uptime):
        events, left_out = _together(_events(lines, now=now, uptime=uptime))
        return KernelLog(
            source=source,
            uptime_s=uptime,
            events=tuple(replace(e, process_is_there=_is_there(host, e)) if e.kind == "hung-task" else e for e in events),
            left_out=left_out,
        )
    raise OSError(f"the kernel log may not be read: {'; '.join(refused)}")


def _sources(host: Host, refused: list[str], *, now: float, uptime: float | None) -> Iterator[tuple[str, list[str]]]:
    """Those that show at least one record of the kernel. In containers /dev/kmsg may be /dev/null or a console."""
    try:
        lines = _kmsg(host)
        if any(map(_is_the_kernels, lines)):
            yield "/dev/kmsg", lines
        refused.append("/dev/kmsg: it shows nothing")
    except OSError as e:
        refused.append(f"/dev/kmsg: {e.strerror or e}")
    for argv in (("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-unix", "-n", "20000"), ("dmesg",)):
        try:
            ran = host.run(argv, timeout_s=3)
        except OSError as e:
            refused.append(f"{argv[0]}: {e.strerror or e}")
            continue
        if ran.exitcode == 0 and ran.out.strip() and (argv[0] == "dmesg" or any(map(_EPOCH.match, ran.out.splitlines()))):
            yield argv[0], ran.out[-_MAX_BYTES:].splitlines()
        refused.append(f"{argv[0]}: {ran.err.strip()[:120] or 'it shows nothing'}")
    for path in ("/var/log/kern.log", "/var/log/messages"):
        try:
            if _is_of_this_boot(lines := _tail(host, path), now=now, uptime=uptime):
                yield path, lines
            refused.append(f"{path}: it holds nothing of the kernel since this machine started")
        except OSError as e:
            refused.append(f"{path}: {e.strerror or e}")


def _is_the_kernels(line: str) -> bool:
    """Other programs write records there, too (facility 0 is the kernel's)."""
    found = _KMSG.match(line)
    return found is not None and int(found["priority"][:9]) >> 3 == 0


def _is_of_this_boot(lines: list[str], *, now: float, uptime: float | None) -> bool:
    if uptime is None:
        return False
    kernels = (line for line in reversed(lines) if " kernel: " in line or SINCE_BOOT.match(line))
    return any((age := _age(line[:_MAX_READ], now=now, uptime=uptime)[0]) is not None and age <= uptime + 60 for line in kernels)


def _is_there(host: Host, event: Event) -> bool | None:
    """None where that cannot be told. A container counts its processes anew: the name has to fit, too."""
    try:
        return host.read(f"/proc/{event.pid}/comm").strip() == (event.process or "")[:_COMM_CHARS]
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return False
    except OSError:
        return None


def _kmsg(host: Host) -> list[str]:
    """All records that the kernel still has. Each read gives one; a read that would wait says that there are no more."""
    lines: list[str] = []
    size = 0
    fd = os.open(host.path("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        while size < 4 * _MAX_BYTES:
            try:
                record = os.read(fd, 65536)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # Overwritten while we read: the next read goes on with the oldest that is left.
                continue
            if not record:
                break
            size += len(record)
            lines += record.decode(errors="replace").splitlines()
    finally:
        os.close(fd)
    return lines


def _tail(host: Host, path: str) -> list[str]:
    with host.path(path).open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_BYTES))
        return file.read(_MAX_BYTES).decode(errors="replace").splitlines()


def _events(lines: Iterable[str], *, now: float, uptime: float | None) -> Iterator[Event]:
    for line in lines:
        if not may_mean(line):
            continue
        age, text = _age(line[:_MAX_READ], now=now, uptime=uptime)
        if age is not None and uptime is not None and age > uptime + 60:
            # Before this boot: a reboot has cured or changed it.
            continue
        told = read(text)
        if told is None or (told.kind == "link-down" and (age is None or uptime is None or uptime - age < _STARTING_S)):
            continue
        yield Event(text=text[:_MAX_LINE], first_age_s=age, last_age_s=age, **vars(told))


def ago(age_s: float | None) -> Text:
    """An age in words: "3 minutes ago"."""
    if age_s is None:
        return msg("at an unknown time")
    for unit, seconds in ((msg("days"), 86400), (msg("hours"), 3600), (msg("minutes"), 60)):
        if age_s >= 2 * seconds:
            return msg("{n:.0f} {unit} ago", n=age_s / seconds, unit=unit)
    return msg("{n:.0f} s ago", n=age_s)


def recent(event: Event) -> bool:
    """Whether it is of the last hours; not where nothing tells when it was."""
    return event.last_age_s is not None and event.last_age_s < RECENT_S


def times(event: Event) -> Text:
    """When, and how often: "3 minutes ago, 4 times"."""
    return ago(event.last_age_s) + (msg(", {n} times", n=event.count) if event.count > 1 else NOTHING)


def _together(events: Iterable[Event]) -> tuple[tuple[Event, ...], int]:
    """One event of each kind, device, code, process name and fault; the newest where they are too many."""
    found: dict[object, Event] = {}
    for e in events:
        key = (e.kind, e.device, e.code, e.severity, e.process, e.interface, e.what)
        before = found.pop(key, None)
        found[key] = e if before is None else replace(e, count=before.count + 1, first_age_s=before.first_age_s)
    kept = tuple(found.values())[-_MAX_EVENTS:]
    return kept, len(found) - len(kept)


def _age(line: str, *, now: float, uptime: float | None) -> tuple[float | None, str]:
    """How long ago a line was written, and its text behind time and host."""
    if m := _KMSG.match(line):
        return None if uptime is None else round(max(0.0, uptime - int(m["us"]) / 1e6), 1), m["text"]
    if m := SINCE_BOOT.match(line):
        # A file may be of an earlier boot that lasted longer.
        return None if uptime is None or float(m["s"]) > uptime + 60 else round(max(0.0, uptime - float(m["s"])), 1), m["text"]
    if m := _EPOCH.match(line):
        return round(max(0.0, now - float(m["s"])), 1), _bare(m["text"])
    try:
        if m := _ISO.match(line):
            zone = (m["zone"] or "").replace("Z", "+00:00")
            zone = zone if not zone or ":" in zone else f"{zone[:3]}:{zone[3:]}"
            return round(max(0.0, now - datetime.datetime.fromisoformat(m["t"] + zone).timestamp()), 1), _bare(m["text"])
        if m := _SYSLOG.match(line):
            # No year in it: the last time that this day came by.
            year = datetime.datetime.fromtimestamp(now).year
            for guess in (year, year - 1):
                at = datetime.datetime.strptime(f"{guess} {m['t']}", "%Y %b %d %H:%M:%S").timestamp()
                if at <= now + 86400:
                    return round(max(0.0, now - at), 1), _bare(m["text"])
    except (ValueError, OverflowError, OSError):
        pass
    return None, line


def _bare(text: str) -> str:
    return found["text"] if (found := SINCE_BOOT.match(text)) else text


def uptime_s(host: Host) -> float | None:
    try:
        return float(host.read("/proc/uptime").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _summary(log: KernelLog) -> Text:
    counts: dict[Kind, int] = {}
    for e in log.events:
        counts[e.kind] = counts.get(e.kind, 0) + e.count
    if not counts:
        return msg("nothing of GPUs, PCIe, NICs or memory")
    return joined((msg("{n} {kind}", n=n, kind=msg(kind, "kernel log")) for kind, n in counts.items()), COMMA)


SUBJECT = Subject(
    id="kernel",
    title=msg("kernel log", "title"),
    facts=KernelLog,
    collect=collect,
    summary=_summary,
    timeout_s=8.0,
    volatile=("first_age_s", "last_age_s", "uptime_s", "count", "seconds", "process_is_there"),
)
