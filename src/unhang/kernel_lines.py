"""What lines of a kernel's log mean, wherever they stand: in a living kernel's ring, in a journal, in a file that a run left.

`kernel_lines.toml` has the patterns.
"""

from __future__ import annotations

import functools
import re
from typing import Literal

from unhang.model import frozen
from unhang.patterns import lazily

Kind = Literal[
    "xid",
    "sxid",
    "gpu-lost",
    "gpu-start-failed",
    "driver-mismatch",
    "pcie-error",
    "iommu-fault",
    "nic",
    "oom-kill",
    "segfault",
    "hung-task",
    "soft-lockup",
    "memory",
    "link-down",
]

_MAX_DIGITS = 9
# dmesg: seconds since the machine started.
SINCE_BOOT = lazily(r"^(?:<\d+>)?\[ *(?P<s>\d+\.\d+)\](?:\[[^\]]*\])? ?(?P<text>.*)")


@frozen
class Meaning:
    """What a line says. `code` is the number of an Xid or SXid, `device` a PCI address as sysfs writes it, `pid` a process as the host counts it.

    `severity` is of an SXid ("Fatal"), or of a PCIe error in the older kernels' words ("Uncorrected (Fatal)"). `interface` is the name of a NIC;
    `what` tells its faults apart in the driver's words; `seconds` is how long a task had hung by then.
    """

    kind: Kind
    device: str | None = None
    code: int | None = None
    severity: str | None = None
    pid: int | None = None
    process: str | None = None
    interface: str | None = None
    what: str | None = None
    seconds: int | None = None


@functools.cache
def _patterns() -> tuple[tuple[Kind, str, re.Pattern[str]], ...]:
    # Other hosts get this module without the table, which they have no use for.
    from unhang import data

    return tuple((known.get("kind", name), known["needle"], lazily(known["pattern"])) for name, known in data.table("kernel_lines").items())


@functools.cache
def _needles() -> tuple[str, ...]:
    return tuple(dict.fromkeys(needle for _, needle, _ in _patterns()))


def may_mean(line: str) -> bool:
    """Whether a line is worth being read: it is quick, and wrong only of lines that mean nothing."""
    return any(needle in line for needle in _needles())


def read(text: str) -> Meaning | None:
    """What a line means, without its time; None where that is nothing known here."""
    for kind, needle, pattern in _patterns():
        if needle in text and (found := pattern.search(text)):
            groups = found.groupdict()
            code, pid, seconds = (int(n[:_MAX_DIGITS]) if (n := groups.get(name)) else None for name in ("code", "pid", "seconds"))
            return Meaning(
                kind=kind,
                device=device_of(groups.get("device")),
                code=code,
                severity=(groups.get("severity") or "").replace("rectable", "rected") or None,
                pid=pid,
                process=groups.get("process"),
                interface=groups.get("interface"),
                what=groups.get("what"),
                seconds=seconds,
            )
    return None


def normal(address: str) -> str:
    """A PCI address as sysfs writes it: "0000:3b:00.0", from NVML's "00000000:3B:00.0" or a log's "0000:3b:00"."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" + ("" if "." in rest else ".0")


def device_of(address: str | None) -> str | None:
    """The same of what a line says, which may lack the domain; None for ""."""
    if not address:
        return None
    return normal(address if address.count(":") == 2 else f"0000:{address}")
