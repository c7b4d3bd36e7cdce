"""The clock: whether anything keeps it right, what does, and how far off the kernel believes it to be.

The kernel's own answer (adjtimex, which anyone may ask) holds inside containers too: they have the machine's clock.
"""

from __future__ import annotations

import re

from unhang.facts import processes
from unhang.facts.host import Host, Subject
from unhang.i18n import NOTHING, Text, msg
from unhang.model import frozen

# STA_UNSYNC of include/uapi/linux/timex.h.
_UNSYNCHRONISED = 0x40
_KEEPERS = frozenset(("chronyd", "ntpd", "systemd-timesyn", "ptp4l", "phc2sys", "timemaster", "openntpd", "VBoxService", "vmtoolsd"))
_CHRONY_S = 1.0


@frozen
class Clock:
    """`synchronised` and `max_error_s` are the kernel's; None where it was not asked. `offset_s` is what chrony measured, None where it did not say.

    `keepers` are the programs that keep clocks, of those that we can see. `now_s` is the clock itself, seconds since 1970.
    """

    now_s: float
    synchronised: bool | None
    max_error_s: float | None
    offset_s: float | None
    keepers: tuple[str, ...]
    source: str | None
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Clock:
    """Never raises: what was not seen is None."""
    unread: list[str] = []
    synchronised: bool | None = None
    error: float | None = None
    try:
        status, error = host.kernel_clock()
        synchronised = not status & _UNSYNCHRONISED
    except OSError:
        unread.append("whether the kernel's clock is synchronised")
    keepers = tuple(sorted({*processes.names(host).values()} & _KEEPERS))
    source = host.text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return Clock(
        now_s=host.now_s(),
        synchronised=synchronised,
        max_error_s=error,
        offset_s=_chrony(host) if "chronyd" in keepers else None,
        keepers=keepers,
        source=source,
        unread=tuple(unread),
    )


def _chrony(host: Host) -> float | None:
    """Seconds by which the clock is ahead of true time; None where chrony does not say."""
    try:
        said = host.run(["chronyc", "-n", "tracking"], timeout_s=_CHRONY_S).out
    except (FileNotFoundError, TimeoutError, PermissionError):
        return None
    line = re.search(r"System time\s*:\s*([0-9.]+) seconds (fast|slow) of NTP time", said)
    return None if line is None else float(line[1]) * (1 if line[2] == "fast" else -1)


def _summary(clock: Clock) -> Text:
    kept = msg(" by {keepers}", keepers=", ".join(clock.keepers)) if clock.keepers else NOTHING
    if clock.synchronised is None:
        if not kept:
            return msg("nothing is known of it", "clock")
        return msg("kept by {keepers}", keepers=", ".join(clock.keepers))
    if not clock.synchronised:
        there = msg(" (by {keepers} is there)", keepers=", ".join(clock.keepers)) if clock.keepers else NOTHING
        return msg("not synchronised") + there
    off = msg(", {ms} ms off", ms=f"{abs(clock.offset_s) * 1000:.1f}") if clock.offset_s is not None else NOTHING
    return msg("synchronised{kept}{off}, at most {ms} ms wrong", kept=kept, off=off, ms=f"{(clock.max_error_s or 0) * 1000:.0f}")


SUBJECT = Subject(
    id="clock",
    title=msg("clock", "title"),
    facts=Clock,
    collect=collect,
    summary=_summary,
    volatile=("now_s", "offset_s", "max_error_s"),
)
