"""The PCIe bus: functions with their files in /sys and their configuration space, the switches above them."""

from __future__ import annotations

import struct

from tests.hosts.part import Part, all_of

BRIDGE, GPU_3D, VGA, ETHERNET, INFINIBAND, NVSWITCH = "0x060400", "0x030200", "0x030000", "0x020000", "0x020700", "0x068000"
INTEL, NVIDIA, MELLANOX, BROADCOM = "0x8086", "0x10de", "0x15b3", "0x1000"
# What the kernel's pci_enable_acs turns on where an IOMMU is in use: source validation, request and completion redirect, upstream forwarding.
ACS_ON, ACS_OFF = 0x1D, 0x00
_CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
_FATAL = ("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC", "UnsupReq")


def function(
    path: str,
    kind: str,
    *,
    vendor: str,
    device: str,
    node: int = 0,
    driver: str = "",
    acs: int | None = None,
    iommu: str = "identity",
    lanes: int = 16,
    speed: str = "32.0 GT/s PCIe",
    gone: bool = False,
) -> Part:
    """`path` leads to it from the host bridge ("pci0000:10/0000:10:01.0/0000:11:00.0"). One that is `gone` reads as all ones."""
    address = path.rpartition("/")[2]
    at, up = f"/sys/devices/{path}", "../" * (path.count("/") + 2)
    files: dict[str, str | bytes | None] = {
        f"/sys/bus/pci/devices/{address}": f"-> ../../../devices/{path}",
        f"{at}/class": f"{kind}\n",
        f"{at}/vendor": f"{vendor}\n",
        f"{at}/device": f"{device}\n",
        f"{at}/numa_node": f"{node}\n",
        f"{at}/current_link_width": f"{63 if gone else lanes}\n",
        f"{at}/max_link_width": f"{63 if gone else 16}\n",
        f"{at}/config": b"\xff" * 4096 if gone else _config(kind, vendor, device, acs),
        f"{at}/aer_dev_fatal": "".join(f"{error} 0\n" for error in _FATAL) + "TOTAL_ERR_FATAL 0\n",
    }
    # Of bridges nobody asks the rest.
    if kind != BRIDGE:
        # One group for each: the bridges above keep them apart. Their numbers do not matter.
        group = int(address[5:7], 16)
        files |= {
            f"{at}/power_state": f"{'unknown' if gone else 'D0'}\n",
            f"{at}/current_link_speed": f"{'Unknown' if gone else speed}\n",
            f"{at}/max_link_speed": f"{'Unknown' if gone else '32.0 GT/s PCIe'}\n",
            f"{at}/aer_dev_correctable": "".join(f"{error} 0\n" for error in _CORRECTABLE) + "TOTAL_ERR_COR 0\n",
            f"{at}/iommu_group": f"-> {up}kernel/iommu_groups/{group}",
            f"/sys/kernel/iommu_groups/{group}/type": f"{iommu}\n",
        }
    if driver:
        files[f"{at}/driver"] = f"-> {up}bus/pci/drivers/{driver}"
    return Part(files=files)


def unprivileged(part: Part) -> Part:
    """As anybody but root sees it: of configuration spaces the first 64 bytes."""
    cut = {name: text[:64] for name, text in part.files.items() if isinstance(text, bytes) and name.endswith("/config")}
    return part | Part(files=cut)


def _config(kind: str, vendor: str, device: str, acs: int | None) -> bytes:
    """4096 bytes, as root reads them: the header, then advanced error reporting at 0x100 and, in bridges that have it, access control at 0x148."""
    config = bytearray(4096)
    bridge = kind == BRIDGE
    struct.pack_into("<HH", config, 0x00, int(vendor, 16), int(device, 16))
    config[0x09:0x0C] = int(kind, 16).to_bytes(3, "little")
    config[0x0E] = 1 if bridge else 0
    struct.pack_into("<I", config, 0x100, 0x0001 | 2 << 16 | (0x148 << 20 if acs is not None else 0))
    if acs is not None:
        struct.pack_into("<IHH", config, 0x148, 0x000D | 1 << 16, 0x5F, acs)
    return bytes(config)


def slot(bus: int, *, node: int = 0) -> tuple[Part, str]:
    """A root port, and the way to what is plugged in there."""
    root = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0"
    return function(root, BRIDGE, vendor=INTEL, device="0x352a", node=node, acs=ACS_OFF, driver="pcieport"), f"{root}/0000:{bus + 1:02x}:00.0"


def switch(bus: int, ports: int, *, node: int, acs: bool) -> tuple[Part, tuple[str, ...]]:
    """A root port, the upstream port of a switch, and its downstream ports; with the way to what is plugged in at each of these."""
    root = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0"
    control = ACS_ON if acs else ACS_OFF
    upstream = f"{root}/0000:{bus + 1:02x}:00.0"
    ways = [f"{upstream}/0000:{bus + 2:02x}:{n:02x}.0" for n in range(ports)]
    return (
        all_of(
            function(root, BRIDGE, vendor=INTEL, device="0x352a", node=node, acs=control, driver="pcieport"),
            # Access control is for downstream ports.
            function(upstream, BRIDGE, vendor=BROADCOM, device="0xc030", node=node, driver="pcieport"),
            *(function(way, BRIDGE, vendor=BROADCOM, device="0xc030", node=node, acs=control, driver="pcieport") for way in ways),
        ),
        tuple(f"{way}/0000:{bus + 3 + n:02x}:00.0" for n, way in enumerate(ways)),
    )
