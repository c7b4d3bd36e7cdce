"""The kernel's own log (dmesg) as a run left it: processes that it ended, GPUs, NVSwitches, NICs and links that it tells of.

What may surprise: its pids are the host's, which a container counts otherwise; and it reaches back to the start of the machine, so that most of it
may be of other jobs. `KernelEvent.boot_s` tells when, in seconds since that start.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from unhang.errors import RecordError
from unhang.kernel_lines import SINCE_BOOT, Kind, may_mean, read
from unhang.model import frozen

# What befalls a device, whichever process uses it; of the first ones it is a GPU.
GPUS: tuple[Kind, ...] = ("xid", "gpu-lost", "gpu-start-failed")
DEVICES: tuple[Kind, ...] = (*GPUS, "sxid", "driver-mismatch", "pcie-error", "iommu-fault", "nic", "memory", "link-down")
_MAX_BYTES = 16 * 1024 * 1024
_MAX_LINE = 1000


@frozen
class KernelEvent:
    """One thing that the kernel told. `pid` and `name` are of a process as the host counts it, `device` is a PCI address as sysfs writes it."""

    kind: Kind
    text: str
    line: int
    pid: int | None = None
    name: str | None = None
    device: str | None = None
    boot_s: float | None = None


def events(path: Path) -> list[KernelEvent]:
    """What the file tells, oldest first. Raises RecordError where it cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError as e:
        raise RecordError(f"{path} cannot be read: {e.strerror or e}") from e
    return list(_events(text.split("\n")))


def _events(lines: list[str]) -> Iterator[KernelEvent]:
    for number, line in enumerate(lines, 1):
        if not may_mean(line):
            continue
        stamped = SINCE_BOOT.match(line[:_MAX_LINE])
        text = stamped["text"] if stamped else line[:_MAX_LINE]
        if (told := read(text)) is not None:
            yield KernelEvent(
                kind=told.kind,
                text=text,
                line=number,
                pid=told.pid,
                name=told.process,
                device=told.device,
                boot_s=float(stamped["s"]) if stamped else None,
            )
