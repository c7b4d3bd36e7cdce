"""What NVIDIA's management library (NVML) says of each GPU. One GPU that is lost, or one question that it does not support, hides nothing else."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, TypeVar

from unhang.facts.host import Host
from unhang.kernel_lines import normal
from unhang.model import frozen

T = TypeVar("T")

COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by registry key",
    5: "not supported",
}
_RECOVERIES = {
    0: "none",
    1: "reset the GPU",
    2: "reboot",
    3: "drain peer-to-peer traffic",
    4: "drain and reset",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot",
}
_FABRIC = {0: None, 1: "not-started", 2: "in-progress", 3: "completed"}
_REMOTES = {0: "gpu", 1: "cpu", 2: "switch"}
# Bits of nvmlClocksEventReasons; idle, application clocks and the power cap are everyday states.
_SLOWDOWNS = {0x4: "power-cap", 0x8: "hardware", 0x20: "heat-software", 0x40: "heat", 0x80: "power-brake"}


@frozen
class Process:
    """A process on a GPU: "compute" or "graphics". `used_bytes` is None where the driver does not say, `name` where it is hidden from us."""

    pid: int
    kind: str
    name: str | None
    used_bytes: int | None


@frozen
class NvLink:
    """One NVLink of a GPU. `remote_kind`: "gpu", "switch" or "cpu"; `remote` is its PCI address."""

    link: int
    active: bool
    remote_kind: str | None = None
    remote: str | None = None
    speed_mb_per_s: int | None = None


@frozen
class Gpu:
    """One GPU. `error` is why the driver cannot reach it: then little else is known. `index` is NVML's; without NVML the order of the bus.

    ECC counts are "volatile" since the driver was loaded and "aggregate" over the card's life. `recovery` is what the driver asks for, or "none".
    `mig_instances` are the slices that can be used from here, None where it is not in MIG mode. `fabric` is its registration with the NVLink fabric,
    None where it has none to register with; `fabric_error` is why it was refused.
    `slowdowns` hold its clocks down: "heat", "heat-software", "power-brake", "hardware", "power-cap".
    """

    index: int
    address: str | None
    error: str | None = None
    name: str | None = None
    uuid: str | None = None
    minor: int | None = None
    compute_capability: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_percent: int | None = None
    temperature_c: int | None = None
    processes: tuple[Process, ...] | None = None
    compute_mode: str | None = None
    persistence: bool | None = None
    mig: bool | None = None
    mig_instances: int | None = None
    ecc: bool | None = None
    ecc_volatile_uncorrected: int | None = None
    ecc_aggregate_uncorrected: int | None = None
    retirement_pending: bool | None = None
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: str | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    slowdowns: tuple[str, ...] | None = None
    fabric: str | None = None
    fabric_error: str | None = None
    fabric_degraded: bool | None = None
    nvlinks: tuple[NvLink, ...] = ()


@frozen
class Seen:
    """All that NVML says. `p2p` are pairs of indices to whether one may read the other's memory ("ok", or why not)."""

    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    p2p: Mapping[tuple[int, int], str]


def read(nvml: Any) -> Seen:
    """Look at all GPUs. Raises OSError where not even their number can be had."""
    ask = _Asking(nvml)
    number = ask("nvmlDeviceGetCount")
    if number is None:
        raise OSError(f"NVML does not count the GPUs: {ask.last}")
    handles: dict[int, Any] = {}
    gpus = []
    for index in range(number):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            gpus.append(Gpu(index=index, address=None, error=ask.last))
            continue
        handles[index] = handle
        gpus.append(_gpu(ask, index, handle))
    p2p = {}
    for a, b in combinations(handles, 2):
        status = ask("nvmlDeviceGetP2PStatus", handles[a], handles[b], nvml.NVML_P2P_CAPS_INDEX_READ)
        if status is not None:
            p2p[a, b] = P2P.get(status, "unknown")
    cuda = ask("nvmlSystemGetCudaDriverVersion")
    return Seen(
        driver=ask("nvmlSystemGetDriverVersion"),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        gpus=tuple(gpus),
        p2p=p2p,
    )


def memory(nvml: Any) -> dict[str, tuple[int, int]]:
    """Bytes used and in all of each GPU, by its PCI address. Nothing of one in MIG mode, of which each process has a slice."""
    ask = _Asking(nvml)
    found = {}
    for address, handle in _handles(ask):
        if (told := _memory(ask, handle)) is not None:
            found[address] = (int(told.used), int(told.total))
    return found


def energies(nvml: Any) -> dict[str, float | None]:
    """Joules of each GPU since the driver was loaded, by its PCI address; None if NVML does not say. Nothing of one in MIG mode."""
    ask = _Asking(nvml)
    return {address: _maybe(lambda mj: mj / 1000, ask("nvmlDeviceGetTotalEnergyConsumption", handle)) for address, handle in _handles(ask)}


def _handles(ask: _Asking) -> Iterator[tuple[str, Any]]:
    """The GPUs that can be reached and are whole, by their PCI addresses."""
    for index in range(ask("nvmlDeviceGetCount") or 0):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        if handle is not None and not (ask("nvmlDeviceGetMigMode", handle) or (0,))[0] and (pci := ask("nvmlDeviceGetPciInfo", handle)) is not None:
            yield normal(pci.busId), handle


class _Asking:
    """Asks NVML; None where it refuses, with the reason in `last`."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        # What a driver older than nvidia-ml-py raises for some questions is no NVMLError; names of processes need not be UTF-8.
        self.refusals = (nvml.NVMLError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError), UnicodeDecodeError)
        self.last = ""
        self.lost: str | None = None

    def __call__(self, name: str, *args: Any) -> Any:
        function = getattr(self.nvml, name, None)
        if function is None:
            self.last = f"this nvidia-ml-py has no {name}"
            return None
        try:
            return function(*args)
        except self.refusals as e:
            self.last = str(e)
            if getattr(e, "value", None) in (self.nvml.NVML_ERROR_GPU_IS_LOST, self.nvml.NVML_ERROR_RESET_REQUIRED):
                self.lost = self.last
            return None


def _gpu(ask: _Asking, index: int, handle: Any) -> Gpu:
    nvml = ask.nvml
    ask.lost = None
    pci = ask("nvmlDeviceGetPciInfo", handle)
    memory = _memory(ask, handle)
    capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
    mig = ask("nvmlDeviceGetMigMode", handle)
    ecc = ask("nvmlDeviceGetEccMode", handle)
    remapped = ask("nvmlDeviceGetRemappedRows", handle)
    recovery = _field(ask, handle, getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", 230), 0)
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    rates = ask("nvmlDeviceGetUtilizationRates", handle)

    def uncorrected(counter: int) -> int | None:
        found: int | None = ask("nvmlDeviceGetTotalEccErrors", handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter)
        return found

    fabric, fabric_error, degraded = _fabric(ask, handle)
    return Gpu(
        index=index,
        address=_maybe(lambda p: normal(p.busId), pci),
        name=ask("nvmlDeviceGetName", handle),
        uuid=ask("nvmlDeviceGetUUID", handle),
        minor=ask("nvmlDeviceGetMinorNumber", handle),
        compute_capability=_maybe(lambda c: f"{c[0]}.{c[1]}", capability),
        memory_total_bytes=_maybe(lambda m: int(m.total), memory),
        memory_used_bytes=_maybe(lambda m: int(m.used), memory),
        utilization_percent=_maybe(lambda r: int(r.gpu), rates),
        temperature_c=ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        processes=_processes(ask, handle),
        compute_mode=_maybe(lambda m: COMPUTE_MODES.get(m, str(m)), ask("nvmlDeviceGetComputeMode", handle)),
        persistence=_maybe(bool, ask("nvmlDeviceGetPersistenceMode", handle)),
        mig=_maybe(lambda m: bool(m[0]), mig),
        mig_instances=_mig_instances(ask, handle) if mig is not None and mig[0] else None,
        ecc=_maybe(lambda e: bool(e[0]), ecc),
        ecc_volatile_uncorrected=uncorrected(nvml.NVML_VOLATILE_ECC),
        ecc_aggregate_uncorrected=uncorrected(nvml.NVML_AGGREGATE_ECC),
        retirement_pending=_maybe(bool, ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)),
        remapped_rows_corrected=_maybe(lambda r: int(r[0]), remapped),
        remapped_rows_uncorrected=_maybe(lambda r: int(r[1]), remapped),
        remap_pending=_maybe(lambda r: bool(r[2]), remapped),
        remap_failed=_maybe(lambda r: bool(r[3]), remapped),
        recovery=_maybe(lambda a: _RECOVERIES.get(a, f"action {a}"), recovery),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        slowdowns=_maybe(lambda r: tuple(name for bit, name in _SLOWDOWNS.items() if r & bit), reasons),
        fabric=fabric,
        fabric_error=fabric_error,
        fabric_degraded=degraded,
        nvlinks=_nvlinks(ask, handle),
        # Most questions are still answered, from what the driver remembers, by a GPU that is lost.
        error=ask.lost,
    )


def _memory(ask: _Asking, handle: Any) -> Any:
    return ask("nvmlDeviceGetMemoryInfo", handle, ask.nvml.nvmlMemory_v2) or ask("nvmlDeviceGetMemoryInfo", handle)


def _mig_instances(ask: _Asking, handle: Any) -> int | None:
    most = ask("nvmlDeviceGetMaxMigDeviceCount", handle)
    none = str(ask.nvml.NVMLError(ask.nvml.NVML_ERROR_NOT_FOUND))
    found = 0
    for index in range(most or 0):
        if ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index) is not None:
            found += 1
        elif ask.last != none:
            return None
    return found if most else None


def _processes(ask: _Asking, handle: Any) -> tuple[Process, ...] | None:
    found: dict[int, Process] = {}
    known = False
    for kind, name in (("compute", "nvmlDeviceGetComputeRunningProcesses"), ("graphics", "nvmlDeviceGetGraphicsRunningProcesses")):
        processes = ask(name, handle)
        if processes is None:
            processes = ask(f"{name}_v2", handle)
        if processes is None:
            continue
        known = True
        for p in processes:
            pid, used = int(p.pid), _maybe(int, p.usedGpuMemory)
            found.setdefault(pid, Process(pid=pid, kind=kind, name=ask("nvmlSystemGetProcessName", pid), used_bytes=used))
    return tuple(found.values()) if known else None


def _nvlinks(ask: _Asking, handle: Any) -> tuple[NvLink, ...]:
    nvml = ask.nvml
    links = []
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        active = ask("nvmlDeviceGetNvLinkState", handle, link)
        if active is None:
            # Links are numbered without gaps: this GPU has no more.
            break
        if not active:
            links.append(NvLink(link=link, active=False))
            continue
        kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        speed = _field(ask, handle, getattr(nvml, "NVML_FI_DEV_NVLINK_GET_SPEED", 0), link)
        if speed is None:
            speed = _field(ask, handle, getattr(nvml, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", 90), 0)
        links.append(
            NvLink(
                link=link,
                active=True,
                remote_kind=_REMOTES.get(kind),
                remote=_maybe(lambda p: normal(p.busId) if p.busId else None, remote),
                speed_mb_per_s=speed,
            )
        )
    return tuple(links)


def _field(ask: _Asking, handle: Any, field: int, scope: int) -> int | None:
    values = ask("nvmlDeviceGetFieldValues", handle, [(field, scope)]) if field else None
    # The types are those of nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, long long, int, unsigned short.
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    for value in values or ():
        if value.nvmlReturn == 0 and 0 <= value.valueType < len(names):
            return int(getattr(value.value, names[value.valueType]))
    return None


def _fabric(ask: _Asking, handle: Any) -> tuple[str | None, str | None, bool | None]:
    nvml = ask.nvml
    info: Any = None
    for function, structure in (("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"), ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t")):
        make: Callable[[], Any] | None = getattr(nvml, structure, None)
        if make is None:
            continue
        info = make()
        if ask(function, handle, ctypes.byref(info)) is not None:
            break
    else:
        return None, None, None
    state = _FABRIC.get(info.state)
    # The status means something only once it is completed; the lowest two bits of the mask tell of bandwidth (1: degraded).
    error = f"NVML error {info.status}" if state == "completed" and info.status else None
    mask = getattr(info, "healthMask", 0)
    return state, error, {1: True, 2: False}.get(mask & 0x3)


def _maybe(make: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else make(value)


# The memory of this host's GPUs, asked again and again beside everything else: a driver that hangs around a lost GPU keeps nobody waiting.
EVERY_S = 2.0
# An older answer says nothing about now.
OLD_S = 10.0
# The first answer is waited for; a driver without persistence wakes its GPUs first, but here they are in use.
FIRST_S = 1.0


class GpuMemory:
    """`of` answers at once, from the second time on. Where there is no NVML it is asked once."""

    def __init__(self, host: Host, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._monotonic = monotonic
        self._name = host.hostname()
        self._told: dict[str, tuple[int, int]] = {}
        self._told_at: float | None = None
        self._asked_at: float | None = None
        self._asking: threading.Thread | None = None
        self._library: object | None = None
        self._gives_up = False

    def of(self, host: str, address: str) -> tuple[int, int] | None:
        """Bytes used and in all of a GPU, whoever uses them; None where that is not known."""
        if host != self._name:
            return None
        self._ask()
        if self._told_at is None or self._monotonic() - self._told_at > OLD_S:
            return None
        return self._told.get(address)

    def _ask(self) -> None:
        now = self._monotonic()
        under_way = self._asking is not None and self._asking.is_alive()
        if self._gives_up or under_way or (self._asked_at is not None and now - self._asked_at < EVERY_S):
            return
        first, self._asked_at = self._asked_at is None, now
        self._asking = threading.Thread(target=self._look, name="unhang gpu memory", daemon=True)
        self._asking.start()
        if first:
            self._asking.join(FIRST_S)

    def _look(self) -> None:
        try:
            self._library = self._library or self._host.nvml()
            told = memory(self._library)
        except Exception:  # no library, or one that refuses; what it raises is nobody's promise
            self._gives_up = True
            return
        self._told, self._told_at = told, self._monotonic()
