"""What lines of a kernel's log mean, wherever they stand: in a living kernel's ring, in a journal, in a file that a run left.

A needle is what a line must hold before its pattern is tried. The groups: `device` is a PCI address as the driver writes it, `interface` that of a
NIC, `code` the number of an Xid or SXid, `pid` a process as the host counts it.
"""

from __future__ import annotations

import re
from typing import Literal

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

_BUS = r"(?P<device>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?)"
_INTERFACE = r"[\w.@-]{1,15}"
PATTERNS: tuple[tuple[Kind, str, re.Pattern[str]], ...] = (
    ("xid", "NVRM: Xid", re.compile(rf"NVRM: Xid \((?:PCI:)?{_BUS}\): (?P<code>\d+)")),
    ("sxid", "SXid", re.compile(rf"SXid \((?:PCI:)?{_BUS}\): (?P<code>\d+)(?:, (?P<severity>Fatal|Non-fatal))?")),
    ("gpu-lost", "fallen off the bus", re.compile(rf"NVRM: (?:.{{0,80}}?{_BUS})?.{{0,120}}?fallen off the bus")),
    ("gpu-start-failed", "RmInitAdapter failed", re.compile(rf"NVRM: GPU {_BUS}: RmInitAdapter failed")),
    ("driver-mismatch", "NVRM: API mismatch", re.compile(r"NVRM: API mismatch: ")),
    ("pcie-error", "PCIe Bus Error", re.compile(rf"{_BUS}: PCIe Bus Error: severity=(?P<severity>Correct(?:ed|able)|Uncorrected \([\w-]+\))")),
    ("pcie-error", "AER: ", re.compile(rf"AER: (?:Multiple )?(?P<severity>Uncorrected \([\w-]+\)) error (?:message )?received(?: from|:) {_BUS}")),
    ("iommu-fault", "IO_PAGE_FAULT", re.compile(rf"{_BUS}: AMD-Vi: .{{0,20}}IO_PAGE_FAULT ")),
    ("iommu-fault", "IO_PAGE_FAULT", re.compile(r"AMD-Vi: .{0,20}\[?IO_PAGE_FAULT device=(?P<device>[0-9a-f:.]{7,12})")),
    ("iommu-fault", "DMAR: [", re.compile(r"DMAR: \[.{0,60}?\] Request device \[(?P<device>[0-9a-f:.]{7,12})\]")),
    (
        "nic",
        "mlx5_core",
        re.compile(
            rf"mlx5_core {_BUS}.{{0,120}}?(?P<what>health compromised|[Ff]atal error|firmware assert|bad device here|TX timeout|[Hh]igh temperature"
            r"|Will cause a leak of a command resource|Command completion arrived after timeout)"
        ),
    ),
    (
        "nic",
        "bnxt_en",
        re.compile(rf"bnxt_en {_BUS}.{{0,60}}?(?P<what>Firmware not responding|(?:[Ff]irmware|FW) fatal|Error recovery is not supported)"),
    ),
    (
        "nic",
        "NETDEV WATCHDOG",
        re.compile(rf"(?:{_BUS} (?P<interface>{_INTERFACE}): )?(?P<what>NETDEV WATCHDOG).{{0,80}}?: transmit queue \d+ timed out"),
    ),
    ("nic", "hw csum failure", re.compile(rf"(?<![\w.@-])(?P<interface>{_INTERFACE}): (?P<what>hw csum failure)")),
    ("link-down", "ink down", re.compile(rf"{_BUS} (?P<interface>{_INTERFACE}): Link down\b")),
    ("link-down", "ink is ", re.compile(rf"(?<![\w.@-])(?P<interface>{_INTERFACE}): (?:NIC )?Link is [Dd]own\b")),
    ("oom-kill", "ut of memory", re.compile(r"[Oo]ut of memory.{0,200}?: Kill(?:ed)? process (?P<pid>\d+) \((?P<process>[^)]*)\)")),
    ("segfault", "segfault at", re.compile(r"(?P<process>[^\s\]]{1,32})\[(?P<pid>\d+)\]: segfault at ")),
    ("hung-task", "blocked for more than", re.compile(r"INFO: task (?P<process>.{1,40}?):(?P<pid>\d+) blocked for more than \d+ seconds")),
    ("soft-lockup", "soft lockup - CPU#", re.compile(r"soft lockup - CPU#\d+ stuck for \d+s! \[(?P<process>[^\]]{1,40}):(?P<pid>\d+)\]")),
    ("memory", "[Hardware Error]", re.compile(r"\[Hardware Error\]: .{0,80}(?:[Uu]ncorrected|fatal)")),
    ("memory", "EDAC ", re.compile(r"EDAC .{0,40}\bUE\b")),
)
NEEDLES = tuple(dict.fromkeys(needle for _, needle, _ in PATTERNS))
# dmesg: seconds since the machine started.
SINCE_BOOT = re.compile(r"^(?:<\d+>)?\[ *(?P<s>\d+\.\d+)\](?:\[[^\]]*\])? ?(?P<text>.*)")


def normal(address: str) -> str:
    """A PCI address as sysfs writes it: "0000:3b:00.0", from NVML's "00000000:3B:00.0" or a log's "0000:3b:00"."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" + ("" if "." in rest else ".0")


def device_of(address: str | None) -> str | None:
    """The same of what a line says, which may lack the domain; None for ""."""
    if not address:
        return None
    return normal(address if address.count(":") == 2 else f"0000:{address}")
