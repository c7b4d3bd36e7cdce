"""NVIDIA's GPUs: on the bus, in the driver's files, as NVML tells of them; and a torch that fits them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pynvml
from tests.hosts import nvml, pci
from tests.hosts.elf import library
from tests.hosts.linux import process
from tests.hosts.part import GIB, Part, all_of, ran

DRIVER = "570.86.15"
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def nvlink_gpus(
    number: int,
    *,
    rails: Callable[..., Part] | None = None,
    acs: bool = False,
    down: Mapping[int, Collection[int]] | None = None,
    lost: Collection[int] = (),
    registered: bool = True,
    switches: int = 4,
    instances: Mapping[int, int] | None = None,
) -> Part:
    """H100s at NVSwitches, each behind a PCIe switch, which it shares with an adapter where there are `rails`.

    `switches` are those that can be seen: a hypervisor may keep them. `down` are links by GPU, `lost` the GPUs that fell off the bus; `registered`
    with the fabric, which the fabric manager does; `instances` are those of GPUs in MIG mode.
    """
    sliced = instances or {}
    state = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED if registered else pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS
    parts, cards, addresses = [], [], []
    for i in range(number):
        node, bus = 2 * i // number, 0x10 + 0x18 * i
        above, (way, *others) = pci.switch(bus, 2 if rails else 1, node=node, acs=acs)
        parts += [above, _gpu(way, "0x2330", node, i in lost), *(rails(i, other, node=node) for other in others if rails)]
        addresses.append(way.rpartition("/")[2])
        own = nvml.sliced(sliced[i]) if i in sliced else nvml.links(18, down=(down or {}).get(i, ()))
        cards.append(nvml.LOST if i in lost else nvml.data_center(bus + 3, i, **own, **nvml.fabric(state)))
    for n in range(switches):
        root = f"pci0000:00/0000:00:{n + 4:02x}.0"
        parts.append(pci.function(root, pci.BRIDGE, vendor=pci.INTEL, device="0x352a", driver="pcieport"))
        switch = f"{root}/0000:{n + 4:02x}:00.0"
        parts.append(pci.function(switch, pci.NVSWITCH, vendor=pci.NVIDIA, device="0x22a3", driver="nvidia-nvswitch"))
    return all_of(*parts, driver(addresses, "NVIDIA H100 80GB HBM3"), _answers(cards))


def fabric_manager(*, version: str = DRIVER, running: bool = True) -> Part:
    """The program, and its process."""
    installed = Part(
        programs={"/usr/bin/nv-fabricmanager": "\x7fELF"},
        commands={("nv-fabricmanager", "--version"): ran(f"Fabric Manager version is : {version}\n")},
    )
    return installed | process(1201, "nv-fabricmanager", threads=9) if running else installed


def pcie_gpus(
    number: int,
    *,
    acs: bool = False,
    iommu: str = "identity",
    instances: Mapping[int, int] | None = None,
    lanes: Mapping[int, int] | None = None,
    across_sockets: bool = True,
) -> Part:
    """H100s of the PCIe kind, two at each PCIe switch, without bridges of NVLink between them.

    `lanes` are those of GPUs that have fewer than 16, `across_sockets` is whether the chipset lets a GPU reach one at the other socket.
    """
    parts, cards, addresses = [], [], []
    for first in range(0, number, 2):
        node, bus = 2 * first // number, 0x10 + 0x18 * (first // 2)
        above, ways = pci.switch(bus, 2, node=node, acs=acs)
        parts.append(above)
        for i, way in zip(range(first, number), ways, strict=False):
            width = (lanes or {}).get(i, 16)
            parts.append(_gpu(way, "0x2331", node, False, iommu=iommu, lanes=width))
            addresses.append(way.rpartition("/")[2])
            own = nvml.sliced((instances or {})[i]) if i in (instances or {}) else {}
            cards.append(
                nvml.data_center(int(addresses[-1][5:7], 16), i, nvmlDeviceGetName="NVIDIA H100 PCIe", nvmlDeviceGetCurrPcieLinkWidth=width, **own)
            )
    sockets = {nvml.uuid(int(a[5:7], 16)): 2 * i // number for i, a in enumerate(addresses)} if not across_sockets else {}
    return all_of(*parts, driver(addresses, "NVIDIA H100 PCIe"), _answers(cards, sockets))


def one_gpu(at: str, name: str, *, device: str, kind: str = pci.GPU_3D, lanes: int = 16, memory_gib: int, **answers: Any) -> Part:
    """A single GPU that is not of the largest kind."""
    address = at.rpartition("/")[2]
    own = nvml.card(
        int(address[5:7], 16),
        name,
        memory_bytes=memory_gib * GIB,
        nvmlDeviceGetPciInfo=nvml.pci(f"0000{address.upper()}"),
        nvmlDeviceGetCurrPcieLinkWidth=lanes,
        **answers,
    )
    on_bus = pci.function(at, kind, vendor=pci.NVIDIA, device=device, driver="nvidia", lanes=lanes)
    return all_of(on_bus, driver([address], name), Part(nvml={"gpus": (own,)}))


def driver(addresses: Collection[str], model: str) -> Part:
    """The open kernel module, its files and its libraries."""
    files: dict[str, str | None] = {
        "/proc/driver/nvidia/version": (
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (dvs-builder@U16-I3-B03-4-3)\n"
            "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
        ),
        "/sys/module/nvidia/version": f"{DRIVER}\n",
        "/sys/module/nvidia_peermem/version": f"{DRIVER}\n",
        f"{_LIBRARIES}/libcuda.so.{DRIVER}": "\x7fELF",
        f"{_LIBRARIES}/libcuda.so.1": f"-> libcuda.so.{DRIVER}",
        f"{_LIBRARIES}/libnvidia-ml.so.{DRIVER}": "\x7fELF",
        f"{_LIBRARIES}/libnvidia-ml.so.1": f"-> libnvidia-ml.so.{DRIVER}",
        **dict.fromkeys(("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"), ""),
    }
    for minor, address in enumerate(addresses):
        files[f"/dev/nvidia{minor}"] = ""
        files[f"/proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t {model}\nIRQ:   \t\t {40 + minor}\nGPU UUID: \t {nvml.uuid(int(address[5:7], 16))}\nVideo BIOS: \t 96.00.74.00.1c\n"
            f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
            f"GPU Firmware: \t {DRIVER}\nGPU Excluded:\t No\n"
        )
    return Part(files=files)


def torch(release: str = "2.8.0", *, cuda: str = "12.8", nccl: str = "2.27.3") -> Part:
    """A virtual environment with torch as its wheel is, first on the PATH; libraries hold what is asked of them, and no code."""
    env, wheel = "/opt/env", f"cu{cuda.replace('.', '')}"
    site, cu = f"{env}/lib/python3.11/site-packages", f"cu{cuda.partition('.')[0]}"
    needed = ("libnccl.so.2", f"libcudart.so.{cuda.partition('.')[0]}", "libcudnn.so.9", "libc.so.6")
    beside = "$ORIGIN/../../nvidia/{}/lib"
    architectures = b"\0sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120\0"
    return Part(
        files={
            f"{env}/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.9\n",
            f"{env}/bin/python": "-> /usr/bin/python3.11",
            f"{env}/bin/python3": "-> python",
            f"{env}/bin/activate": f'VIRTUAL_ENV="{env}"\nexport VIRTUAL_ENV\n',
            f"{site}/torch/version.py": f"__version__ = '{release}+{wheel}'\ncuda: Optional[str] = '{cuda}'\nhip: Optional[str] = None\n",
            f"{site}/torch-{release}.dist-info/METADATA": f'Name: torch\nRequires-Dist: nvidia-nccl-{cu}=={nccl}; platform_system == "Linux"\n',
            f"{site}/torch/lib/libtorch_cuda.so": library(
                needed=needed, rpath=":".join(beside.format(n) for n in ("nccl", "cuda_runtime", "cudnn")) + ":$ORIGIN"
            ),
            f"{site}/torch/lib/libtorch_python.so": library(constants=architectures),
            f"{site}/nvidia_nccl_{cu}-{nccl}.dist-info/METADATA": f"Name: nvidia-nccl-{cu}\n",
            f"{site}/nvidia/nccl/lib/libnccl.so.2": library(constants=f"\0NCCL version {nccl}+cuda{cuda}\0".encode()),
            f"{site}/nvidia/cuda_runtime/lib/libcudart.so.{cuda.partition('.')[0]}": library(),
            f"{site}/nvidia/cudnn/lib/libcudnn.so.9": library(),
        },
        programs={
            f"{env}/bin/torchrun": f"#!{env}/bin/python\nfrom torch.distributed.run import main\n",
            f"{env}/bin/pip": f"#!{env}/bin/python\nfrom pip import main\n",
        },
        environ={"PATH": f"{env}/bin:/usr/bin:/bin", "VIRTUAL_ENV": env},
    )


def _gpu(way: str, device: str, node: int, gone: bool, *, iommu: str = "identity", lanes: int = 16) -> Part:
    return pci.function(way, pci.GPU_3D, vendor=pci.NVIDIA, device=device, node=node, driver="nvidia", iommu=iommu, lanes=lanes, gone=gone)


def _answers(cards: Collection[Any], sockets: Mapping[str, int] | None = None) -> Part:
    """`sockets` by UUID, where no GPU reaches one at the other."""

    def p2p(a: nvml.Answers, b: nvml.Answers) -> int:
        # In MIG mode no GPU reaches another one.
        if a["nvmlDeviceGetMigMode"][0] or b["nvmlDeviceGetMigMode"][0]:
            return int(pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)
        first, second = ((sockets or {}).get(c["nvmlDeviceGetUUID"]) for c in (a, b))
        return int(pynvml.NVML_P2P_STATUS_OK if first == second else pynvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED)

    return Part(nvml={"gpus": tuple(cards), "p2p": p2p})
