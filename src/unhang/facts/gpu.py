"""NVIDIA's GPUs: what NVML says of each, how they are joined, and whether driver and libraries fit together.

Without NVML the kernel's own files tell which GPUs there are (/proc/driver/nvidia, the PCI bus), and little of their state.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations

from unhang.facts import nvml, pcie, processes
from unhang.facts.host import Asking, Host, NotHere, Subject
from unhang.facts.nvml import Gpu, Seen
from unhang.i18n import COMMA, NOTHING, Text, joined, listed, msg
from unhang.kernel_lines import normal
from unhang.model import frozen
from unhang.text import size

# A driver without persistence wakes every GPU first, a second or two each.
_NVML_S = 15.0
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
# Where the driver's libraries stand: distributions, WSL, and where container runtimes mount them.
_LIBRARY_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64/nvidia",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)
_LIBRARY = re.compile(r"(libnvidia-ml|libcuda)\.so\.(\d+\.\d+(?:\.\d+)?)")


@frozen
class Library:
    """A library of the driver on disk."""

    name: str
    version: str
    path: str


@frozen
class Pair:
    """Two GPUs by index. `link` as `nvidia-smi topo -m` draws it: "NV18" (so many NVLinks), else PIX, PXB, PHB, NODE or SYS.

    `p2p`: "ok" where one may read the other's memory, else why not; either is None where nothing tells.
    """

    first: int
    second: int
    link: str | None
    p2p: str | None


@frozen
class FabricManager:
    """NVIDIA's fabric manager: `running` is None where other processes are hidden, `version` where the program is not installed here."""

    running: bool | None
    version: str | None


@frozen
class Gpus:
    """`driver` is the version of the kernel module that is loaded, None where none is; `nvml_driver` what NVML answers.

    `nvml_error` is why NVML could not be asked. `cuda` is the newest CUDA that the driver serves. `visible` is CUDA_VISIBLE_DEVICES of this process.
    `nvswitches` are PCI addresses; `kernel_drivers` which driver holds each GPU on the bus (nvidia, nouveau, vfio-pci).
    """

    driver: str | None
    open_module: bool | None
    nvml_driver: str | None
    nvml_error: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    pairs: tuple[Pair, ...]
    libraries: tuple[Library, ...]
    visible: str | None
    nvswitches: tuple[str, ...]
    fabric_manager: FabricManager | None
    kernel_drivers: Mapping[str, str | None]
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Gpus:
    """Raises NotHere where neither the PCI bus nor the driver nor its library tells of a GPU."""
    on_bus = pcie.gpus(host)
    version, is_open = _module(host)
    unread: list[str] = []
    seen: Seen | None = None
    error: str | None = None
    try:
        # The driver hangs around a GPU that is gone: what else can be seen must not be lost.
        seen = Asking(partial(_ask_nvml, host), timeout_s=_NVML_S).answer()
    except FileNotFoundError as e:
        if not on_bus and version is None:
            if not host.path("/sys/class").exists():
                raise FileNotFoundError("/sys is not mounted, and there is no libnvidia-ml") from None
            raise NotHere("no NVIDIA GPU on the PCI bus, no NVIDIA driver in /proc and /sys, and no libnvidia-ml") from None
        error = str(e)
    except OSError as e:
        error = str(e)
    if seen is not None and not seen.gpus and not on_bus and version is None:
        raise NotHere("NVML counts no GPU")
    devices = {d.address: d for d in _devices(host)}
    if seen is None:
        unread.append(f"the state of the GPUs (NVML: {error})")
        gpus = tuple(_without_nvml(host, on_bus, devices))
    else:
        gpus = _addressed(seen.gpus, on_bus)
        unread += [f"GPU {g.index}: {g.error}" for g in gpus if g.error]
        unread += [
            f"GPU {g.index}: NVML tells neither its name nor its memory" for g in gpus if not g.error and not g.name and not g.memory_total_bytes
        ]
    switches = pcie.nvswitches(host)
    return Gpus(
        driver=version,
        open_module=is_open,
        nvml_driver=seen.driver if seen else None,
        nvml_error=error,
        cuda=seen.cuda if seen else None,
        gpus=gpus,
        pairs=tuple(_pairs(gpus, seen.p2p if seen else {}, devices)),
        libraries=tuple(_libraries(host)),
        visible=host.environ.get("CUDA_VISIBLE_DEVICES"),
        nvswitches=switches,
        fabric_manager=_fabric_manager(host) if switches else None,
        kernel_drivers={address: devices[address].driver for address in on_bus if address in devices},
        unread=tuple(unread),
    )


def label(gpu: Gpu) -> str:
    """ "GPU 3 (0000:3b:00.0)"."""
    return f"GPU {gpu.index}" + (f" ({gpu.address})" if gpu.address else "")


def named(numbers: Iterable[int]) -> Text:
    """ "GPU 1", "GPUs 1 and 3", "GPUs 0 to 7"."""
    found = sorted(set(numbers))
    if len(found) == 1:
        return msg("GPU {n}", n=found[0])
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return msg("GPUs {first} to {last}", first=found[0], last=found[-1])
    return msg("GPUs {numbers}", numbers=listed(map(str, found)))


def _ask_nvml(host: Host) -> Seen:
    library = host.nvml()
    try:
        return nvml.read(library)
    finally:
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()


def _module(host: Host) -> tuple[str | None, bool | None]:
    """The version of the loaded kernel module, and whether it is the open one."""
    for line in host.lines("/proc/driver/nvidia/version"):
        # "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ..."
        if line.startswith("NVRM version:") and (found := _VERSION.search(line.partition("Kernel Module")[2])):
            return found[0], "Open Kernel Module" in line
    for line in host.lines("/sys/module/nvidia/version"):
        if _VERSION.fullmatch(line.strip()):
            return line.strip(), None
    return None, None


def _without_nvml(host: Host, on_bus: tuple[str, ...], devices: Mapping[str, pcie.Device]) -> Iterator[Gpu]:
    listed = tuple(n for n in host.listed("/proc/driver/nvidia/gpus") if n.count(":") == 2)
    bare_metal = pcie.virtual(host) == ""
    for index, address in enumerate(listed or on_bus):
        said = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in host.lines(f"/proc/driver/nvidia/gpus/{address}/information"))}
        device = devices.get(normal(address))
        above = devices.get(device.path[-1]) if device and len(device.path) > 1 else None
        # In a virtual machine the widths of the bus are made up.
        width = device.width if device and bare_metal else None
        widths = [d.width_max for d in (device, above) if d and d.width_max] if width else []
        minor = said.get("Device Minor", "")
        yield Gpu(
            index=index,
            address=normal(address),
            name=said.get("Model"),
            uuid=said.get("GPU UUID"),
            minor=int(minor) if minor.isdecimal() else None,
            pcie_width=width,
            pcie_width_max=min(widths) if widths else None,
        )


def _addressed(gpus: tuple[Gpu, ...], on_bus: tuple[str, ...]) -> tuple[Gpu, ...]:
    """NVML counts in the order of the bus: a GPU that it cannot reach has the address at its place, where both count alike."""
    if len(gpus) != len(on_bus):
        return gpus
    return tuple(g if g.address else replace(g, address=address) for g, address in zip(gpus, on_bus, strict=True))


def _devices(host: Host) -> tuple[pcie.Device, ...]:
    try:
        return pcie.collect(host).devices
    except (NotHere, OSError):
        return ()


def _pairs(gpus: tuple[Gpu, ...], p2p: Mapping[tuple[int, int], str], devices: Mapping[str, pcie.Device]) -> Iterator[Pair]:
    for a, b in combinations(gpus, 2):
        first, second = devices.get(a.address or ""), devices.get(b.address or "")
        direct = sum(link.active and link.remote_kind == "gpu" and link.remote == b.address for link in a.nvlinks)
        # Every GPU at the switches reaches every other one with all its links.
        links = direct or min(sum(link.active and link.remote_kind == "switch" for link in g.nvlinks) for g in (a, b))
        apart = pcie.distance(first, second) if first and second else None
        yield Pair(first=a.index, second=b.index, link=f"NV{links}" if links else apart, p2p=p2p.get((a.index, b.index)))


def _libraries(host: Host) -> Iterator[Library]:
    seen = set()
    for directory in _LIBRARY_DIRECTORIES:
        for name in host.listed(directory):
            found = _LIBRARY.fullmatch(name)
            # /usr/lib64 is a link to another of them on some systems.
            if found and (name, real := os.path.realpath(host.path(f"{directory}/{name}"))) not in seen:
                seen.add((name, real))
                yield Library(name=found[1], version=found[2], path=f"{directory}/{name}")


def _fabric_manager(host: Host) -> FabricManager:
    version = None
    # It tells its version on its own; the driver's is the only one that it works with.
    if host.which("nv-fabricmanager"):
        with contextlib.suppress(OSError):
            ran = host.run(["nv-fabricmanager", "--version"], timeout_s=2)
            found = _VERSION.search(ran.out or ran.err)
            version = found[0] if found else None
    names = processes.names(host).values()
    # A name holds 15 characters. Without process 2 (kthreadd) this is a container, or /proc hides what is not ours.
    running = "nv-fabricmanage" in names or (False if "kthreadd" in names else None)
    return FabricManager(running=running, version=version)


def _summary(gpus: Gpus) -> Text:
    unloaded = msg("not loaded")
    if not gpus.gpus:
        return msg("no GPU; driver {driver}", driver=gpus.driver or unloaded)
    models: dict[str | None, int] = {}
    for g in gpus.gpus:
        models[g.name or None] = models.get(g.name or None, 0) + 1
    unnamed = msg("unknown GPU")
    cards = joined((msg("{n} x {name}", n=n, name=name or unnamed) for name, n in models.items()), COMMA)
    totals = {g.memory_total_bytes for g in gpus.gpus if g.memory_total_bytes}
    if totals:
        cards += msg(" ({sizes})", sizes=joined((size(t) for t in sorted(totals)), msg(" and ")))
    driver = msg("driver {driver}", driver=gpus.driver or gpus.nvml_driver or unloaded)
    said = [cards, driver + (msg(", CUDA {cuda}", cuda=gpus.cuda) if gpus.cuda else NOTHING)]
    links = {p.link for p in gpus.pairs}
    if links - {None}:
        said.append(msg("joined by {links}", links=", ".join(sorted(link for link in links if link))))
    lost = sum(g.error is not None for g in gpus.gpus)
    if lost:
        said.append(msg("{n} cannot be reached", n=lost))
    return joined(said)


def _details(gpus: Gpus) -> list[str]:
    """How they are joined, as `nvidia-smi topo -m` draws it."""
    if not gpus.pairs:
        return []
    links = {(a, b): p.link or "?" for p in gpus.pairs for a, b in ((p.first, p.second), (p.second, p.first))}
    indices = [g.index for g in gpus.gpus]
    rows = [["", *(f"GPU{b}" for b in indices)]]
    rows += [[f"GPU{a}", *("X" if a == b else links.get((a, b), "?") for b in indices)] for a in indices]
    return ["  ".join(f"{cell:5}" for cell in row).rstrip() for row in rows]


SUBJECT = Subject(
    id="gpu",
    title=msg("GPUs", "title"),
    facts=Gpus,
    collect=collect,
    summary=_summary,
    details=_details,
    timeout_s=20.0,
    volatile=(
        "memory_used_bytes",
        "utilization_percent",
        "temperature_c",
        "processes",
        "slowdowns",
    ),
)
