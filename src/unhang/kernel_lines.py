"""What lines of a kernel's log mean, wherever they stand: in a living kernel's ring, in a journal, in a file that a run left.

A needle is what a line must hold before its pattern is tried; the first pattern that fits tells what a line means. Its groups are the fields of
`Meaning`, `device` as the driver writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

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

# A domain has five digits behind Intel's VMD and on Arm, eight in NVML.
_BUS = r"(?P<device>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?)"
# As an IOMMU writes the device behind it.
_REQUESTER = r"(?P<device>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_INTERFACE = r"[\w.@-]{1,15}"
_GRAVE = r"Uncorrect(?:ed|able) \([\w-]+\)"
_PATTERNS: tuple[tuple[Kind, str, re.Pattern[str]], ...] = (
    ("xid", "NVRM: Xid", lazily(rf"NVRM: Xid \((?:PCI:)?{_BUS}\): (?P<code>\d+)")),
    ("sxid", "SXid", lazily(rf"SXid \((?:PCI:)?{_BUS}\): (?P<code>\d+)(?:, (?P<severity>Fatal|Non-fatal))?")),
    ("gpu-lost", "fallen off the bus", lazily(rf"NVRM: (?:.{{0,80}}?{_BUS})?.{{0,120}}?fallen off the bus")),
    ("gpu-start-failed", "RmInitAdapter failed", lazily(rf"NVRM: (?:GPU {_BUS}: )?RmInitAdapter failed")),
    ("driver-mismatch", "NVRM: API mismatch", lazily(r"NVRM: API mismatch: ")),
    # With "AER: " from Linux 5.3 to 6.9; "Uncorrectable" since 6.10.
    ("pcie-error", "PCIe Bus Error", lazily(rf"{_BUS}: (?:AER: )?PCIe Bus Error: severity=(?P<severity>Correct(?:ed|able)|{_GRAVE})")),
    ("pcie-error", "AER: ", lazily(rf"AER: (?:Multiple )?(?P<severity>{_GRAVE}) error (?:message )?received(?: from|:) {_BUS}")),
    ("iommu-fault", "IO_PAGE_FAULT", lazily(rf"{_BUS}: AMD-Vi: .{{0,20}}IO_PAGE_FAULT ")),
    ("iommu-fault", "IO_PAGE_FAULT", lazily(rf"AMD-Vi: .{{0,20}}\[?IO_PAGE_FAULT device={_REQUESTER}")),
    ("iommu-fault", "DMAR: [", lazily(rf"DMAR: \[.{{0,60}}?\] Request device \[{_REQUESTER}\]")),
    (
        "nic",
        "mlx5_core",
        lazily(
            rf"mlx5_core {_BUS}.{{0,120}}?(?P<what>health compromised|[Ff]atal error|firmware assert|bad device here|TX timeout|[Hh]igh temperature"
            r"|Will cause a leak of a command resource|Command completion arrived after timeout)"
        ),
    ),
    (
        "nic",
        "bnxt_en",
        lazily(rf"bnxt_en {_BUS}.{{0,60}}?(?P<what>Firmware not responding|(?:[Ff]irmware|FW) fatal|Error recovery is not supported)"),
    ),
    (
        "nic",
        "NETDEV WATCHDOG",
        lazily(rf"(?:{_BUS} (?P<interface>{_INTERFACE}): )?(?P<what>NETDEV WATCHDOG).{{0,80}}?: transmit queue \d+ timed out"),
    ),
    ("nic", "hw csum failure", lazily(rf"(?<![\w.@-])(?P<interface>{_INTERFACE}): (?P<what>hw csum failure)")),
    ("link-down", "ink down", lazily(rf"{_BUS} (?P<interface>{_INTERFACE}): Link down\b")),
    ("link-down", "ink is ", lazily(rf"(?:{_BUS} )?(?<![\w.@-])(?P<interface>{_INTERFACE}): (?:NIC )?Link is [Dd]own\b")),
    ("oom-kill", "ut of memory", lazily(r"[Oo]ut of memory.{0,200}?: Kill(?:ed)? process (?P<pid>\d+) \((?P<process>.{0,40}?)\)(?=[ ,]|$)")),
    ("segfault", "segfault at", lazily(r"(?P<process>[^\s\]]{1,32})\[(?P<pid>\d+)\]: segfault at ")),
    # An address that no process can have ends it with SIGSEGV, too; the kernel's own fault of the name has no "ip:".
    ("segfault", "general protection", lazily(r"traps: (?P<process>[^\]]{1,32})\[(?P<pid>\d+)\] general protection(?: fault)? ip:")),
    (
        "hung-task",
        "blocked for more than",
        lazily(r"INFO: task (?P<process>.{1,40}?):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds"),
    ),
    ("soft-lockup", "soft lockup - CPU#", lazily(r"soft lockup - CPU#\d+ stuck for \d+s! \[(?P<process>[^\]]{1,40}):(?P<pid>\d+)\]")),
    ("memory", "[Hardware Error]", lazily(r"\[Hardware Error\]: .{0,80}(?:[Uu]ncorrected|(?<![Nn]on-)(?<![Nn]on)fatal)")),
    ("memory", "EDAC ", lazily(r"EDAC .{0,40}\bUE\b")),
)
_NEEDLES = tuple(dict.fromkeys(needle for _, needle, _ in _PATTERNS))
_MAX_DIGITS = 9
# dmesg: seconds since the machine started.
SINCE_BOOT = lazily(r"^(?:<\d+>)?\[ *(?P<s>\d+\.\d+)\](?:\[[^\]]*\])? ?(?P<text>.*)")


@dataclass(frozen=True, kw_only=True)
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


def may_mean(line: str) -> bool:
    """Whether a line is worth being read: it is quick, and wrong only of lines that mean nothing."""
    return any(needle in line for needle in _NEEDLES)


def read(text: str) -> Meaning | None:
    """What a line means, without its time; None where that is nothing known here."""
    for kind, needle, pattern in _PATTERNS:
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
