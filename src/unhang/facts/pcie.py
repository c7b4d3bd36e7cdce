"""The PCIe bus between GPUs and NICs: bridges, link widths, error counts, access control (ACS), IOMMU; and whether this is a virtual machine.

Only bridges on the way from the processor to a GPU, a NIC or an NVSwitch are looked at. In a virtual machine the bus is drawn by the hypervisor.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Literal

from unhang.facts.host import Host, NotHere, Subject
from unhang.i18n import COMMA, NOTHING, Text, joined, msg
from unhang.model import frozen

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
# The bits of the ACS control register, lowest first (PCI Express Base Specification, Access Control Services).
ACS_BITS = (
    "source-validation",
    "translation-blocking",
    "request-redirect",
    "completion-redirect",
    "upstream-forwarding",
    "egress-control",
    "direct-translated",
)
_ACS = 0x000D
_HYPERVISORS = ("QEMU", "VMware", "innotek", "Xen", "Google", "Virtual Machine", "OpenStack", "KVM", "Bochs", "Amazon EC2", "Alibaba Cloud")

Kind = Literal["gpu", "nic", "nvswitch", "bridge"]
Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]


@frozen
class Device:
    """A GPU, NIC or NVSwitch, or a bridge above one. `path` leads to it: the host bridge ("pci0000:3a"), then the bridges, the nearest last.

    Widths are in lanes, speeds in GT/s. `acs` are the controls that are on: () where the bridge has none, None where that could not be read.
    `aer_fatal` counts those since boot. `answers` is False where its configuration space reads as all ones: nothing is there any more.
    """

    address: str
    kind: Kind
    vendor: str
    device: str
    driver: str | None
    path: tuple[str, ...]
    numa_node: int | None
    width: int | None
    width_max: int | None
    speed_max_gt_s: float | None
    iommu_type: str | None
    acs: tuple[str, ...] | None
    aer_fatal: int | None
    answers: bool | None


@frozen
class Between:
    """How far two devices are from each other, in the words of `nvidia-smi topo -m`."""

    first: str
    second: str
    distance: Distance


@frozen
class Pcie:
    """`between` holds GPU to GPU and GPU to NIC. `iommus` counts those in use; `iommu_options` are the kernel's own (intel_iommu=, iommu=, ...).

    `virtual` names the virtual machine, "" on bare metal, None where nothing tells.
    """

    devices: tuple[Device, ...]
    between: tuple[Between, ...]
    iommus: int
    iommu_options: tuple[str, ...]
    virtual: str | None
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Pcie:
    """Raises NotHere where there is no PCI bus, or nothing on it that a training would use."""
    try:
        names = host.names(DEVICES)
    except FileNotFoundError:
        # Without /sys nothing is known.
        if not host.path("/sys/class").exists():
            raise
        raise NotHere(f"there is no PCI bus ({DEVICES})") from None
    unread: list[str] = []
    found = [d for name in names if (its_kind := kind(host, name)) is not None for d in _device(host, name, its_kind, unread)]
    if not found:
        raise NotHere(f"no GPU, NIC or NVSwitch on the PCI bus ({DEVICES})")
    above = sorted({b for d in found for b in d.path[1:]})
    bridges = [d for b in above for d in _device(host, b, "bridge", unread)]
    named = {d.address: d for d in (*found, *bridges)}
    between = tuple(_between(found))
    if any(named[p].acs is None for b in between for p in ports_between(named[b.first], named[b.second]) if p in named):
        unread.append("access control (ACS) of the PCIe bridges between GPUs and NICs (needs root)")
    return Pcie(
        devices=(*found, *bridges),
        between=between,
        iommus=len(host.listed("/sys/class/iommu")),
        iommu_options=_options(host),
        virtual=virtual(host),
        unread=tuple(dict.fromkeys(unread)),
    )


def gpus(host: Host) -> tuple[str, ...]:
    """The addresses of NVIDIA's GPUs on the bus, in its order; () without a bus."""
    return tuple(name for name in host.listed(DEVICES) if kind(host, name) == "gpu")


def nvswitches(host: Host) -> tuple[str, ...]:
    return tuple(name for name in host.listed(DEVICES) if kind(host, name) == "nvswitch")


def distance(first: Device, second: Device) -> Distance:
    """As `nvidia-smi topo -m`: one switch, several, one host bridge, one NUMA node, or the link between processors."""
    common = 0
    while common < min(len(first.path), len(second.path)) and first.path[common] == second.path[common]:
        common += 1
    if common == 0:
        return "NODE" if first.numa_node == second.numa_node else "SYS"
    if common == 1:
        return "PHB"
    # One downstream port of the common switch on either side, at most.
    return "PIX" if max(len(first.path), len(second.path)) - common <= 1 else "PXB"


def ports_between(first: Device, second: Device) -> tuple[str, ...]:
    """The bridges below the switch that two devices share: what a packet from one to the other passes; () where they share none."""
    if distance(first, second) not in ("PIX", "PXB"):
        return ()
    common = sum(1 for a, b in zip(first.path, second.path, strict=False) if a == b)
    return (*first.path[common:], *second.path[common:])


# What /proc/cpuinfo alone tells of one.
_UNNAMED = "a virtual machine"


def virtual(host: Host) -> str | None:
    """The name of the virtual machine that this is; "" on bare metal; None where nothing tells."""
    vendor = " ".join(text for name in ("sys_vendor", "product_name") if (text := host.text(f"/sys/class/dmi/id/{name}")))
    flags = next((line.split() for line in host.lines("/proc/cpuinfo") if line.startswith("flags")), None)
    if flags is not None:
        return (vendor or _UNNAMED) if "hypervisor" in flags else ""
    # ARM has no such flag.
    return None if not vendor else vendor if any(known in vendor for known in _HYPERVISORS) and "metal" not in vendor else ""


def kind(host: Host, name: str) -> Kind | None:
    """What a device on the bus is; None for what no training uses."""
    code, vendor = host.text(f"{DEVICES}/{name}/class") or "", host.text(f"{DEVICES}/{name}/vendor")
    # 0x0300 is a VGA controller, 0x0302 a 3D controller: NVIDIA's data centre GPUs are the latter.
    if vendor == NVIDIA and code.startswith(("0x0300", "0x0302")):
        return "gpu"
    if vendor == NVIDIA and code.startswith("0x0680"):
        return "nvswitch"
    return "nic" if code.startswith(("0x0200", "0x0207")) else None


def _device(host: Host, name: str, kind: Kind, unread: list[str]) -> Iterator[Device]:
    at = f"{DEVICES}/{name}"
    try:
        where = host.link(at).split("/")
    except OSError:
        unread.append(f"where {name} is on the PCI bus")
        return
    group = host.link_name(f"{at}/iommu_group")
    config = _config(host, f"{at}/config")
    yield Device(
        address=name,
        kind=kind,
        vendor=host.text(f"{at}/vendor") or "",
        device=host.text(f"{at}/device") or "",
        driver=host.link_name(f"{at}/driver"),
        path=(*[p for p in where if _HOST_BRIDGE.fullmatch(p)][:1], *[p for p in where[:-1] if _ADDRESS.fullmatch(p)]),
        numa_node=_number(host, f"{at}/numa_node", least=0),
        # A device that sleeps or is gone reads as 0 or 255 lanes.
        width=_number(host, f"{at}/current_link_width", least=1, most=32),
        width_max=_number(host, f"{at}/max_link_width", least=1, most=32),
        speed_max_gt_s=_speed(host, f"{at}/max_link_speed"),
        iommu_type=host.text(f"/sys/kernel/iommu_groups/{group}/type") if group else None,
        acs=_acs(config) if kind == "bridge" else (),
        aer_fatal=_errors(host, f"{at}/aer_dev_fatal"),
        # A sleeping device may read so, too.
        answers=None if not config or host.text(f"{at}/power_state") == "D3cold" else config[:4] != b"\xff\xff\xff\xff",
    )


def _acs(config: bytes) -> tuple[str, ...] | None:
    """From the extended capabilities, which begin at 0x100 and are hidden from all but root."""
    if len(config) <= 0x100:
        return None
    offset, seen = 0x100, set()
    while 0x100 <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header in (0, 0xFFFFFFFF):
            break
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, offset + 6)
            return tuple(name for bit, name in enumerate(ACS_BITS) if control >> bit & 1)
        offset = header >> 20 & 0xFFC
    return ()


def _config(host: Host, path: str) -> bytes:
    try:
        with host.path(path).open("rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def _between(devices: list[Device]) -> Iterator[Between]:
    for a, b in combinations(sorted(devices, key=lambda d: (d.kind != "gpu", d.address)), 2):
        if a.kind == "gpu" and b.kind in ("gpu", "nic"):
            yield Between(first=a.address, second=b.address, distance=distance(a, b))


def _options(host: Host) -> tuple[str, ...]:
    return tuple(o for o in (host.text("/proc/cmdline") or "").split() if "iommu" in o.partition("=")[0])


def _errors(host: Host, path: str) -> int | None:
    """The kinds of one file added up: the total in it counts messages, not errors."""
    text = host.text(path)
    if text is None:
        return None
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("TOTAL_")]
    return sum(int(count) for _, _, count in rows if count.isdecimal())


def _speed(host: Host, path: str) -> float | None:
    found = re.match(r"(\d+(?:\.\d+)?) GT/s", host.text(path) or "")
    return float(found[1]) if found else None


def _number(host: Host, path: str, *, least: int, most: int = 1 << 20) -> int | None:
    number = host.number(path)
    return number if number is not None and least <= number <= most else None


def _summary(pcie: Pcie) -> Text:
    kinds: Mapping[str, int] = {k: sum(d.kind == k for d in pcie.devices) for k in ("gpu", "nic", "nvswitch")}
    names = {"gpu": "GPU", "nic": "NIC", "nvswitch": "NVSwitch"}
    many = {"gpu": "GPUs", "nic": "NICs", "nvswitch": "NVSwitches"}
    told = [joined((msg("{n} {devices}", n=n, devices=(names if n == 1 else many)[k], one=names[k]) for k, n in kinds.items() if n), COMMA)]
    redirecting = sum("request-redirect" in (d.acs or ()) for d in pcie.devices)
    if redirecting:
        told.append(msg("ACS redirects on {n} bridges", n=redirecting))
    told.append(msg("IOMMU in use") if pcie.iommus else msg("IOMMU off"))
    if pcie.virtual:
        named = NOTHING if pcie.virtual == _UNNAMED else msg(" ({name})", name=pcie.virtual)
        told.append(msg("in a virtual machine") + named)
    return joined(told)


SUBJECT = Subject(
    id="pcie",
    title=msg("PCIe", "title"),
    facts=Pcie,
    collect=collect,
    summary=_summary,
    volatile=("aer_fatal",),
)
