"""NVML as nvidia-ml-py answers it: its own structures, constants and errors. What a GPU has no answer for is not supported."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pynvml
from tests.hosts.part import GIB

NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
LOST = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
Answers = Mapping[str, Any]


class Nvml:
    """In place of the module pynvml. A GPU is what its questions are answered with, or the error in place of its handle; `p2p` is asked of pairs."""

    def __init__(self, *gpus: Answers | Exception, p2p: int | Callable[[Answers, Answers], int] = 0, **system: Any) -> None:
        self.gpus = gpus
        self.p2p = p2p
        self.system = {"nvmlSystemGetDriverVersion": "570.86.15", "nvmlSystemGetCudaDriverVersion": 12080} | system
        self.shut = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or not callable(getattr(pynvml, name)) or isinstance(getattr(pynvml, name), type):
            return getattr(pynvml, name)
        return lambda *args: self.answer(name, *args)

    def answer(self, name: str, *args: Any) -> Any:
        if name == "nvmlDeviceGetCount":
            return len(self.gpus)
        if name == "nvmlShutdown":
            self.shut += 1
            return None
        if name == "nvmlDeviceGetHandleByIndex":
            found = self.gpus[args[0]]
            if isinstance(found, Exception):
                raise found
            return found
        if name == "nvmlDeviceGetP2PStatus":
            return self.p2p(args[0], args[1]) if callable(self.p2p) else self.p2p
        found = self.system.get(name, NOT_SUPPORTED) if name.startswith("nvmlSystem") else args[0].get(name, NOT_SUPPORTED)
        if isinstance(found, Exception):
            raise found
        return found(*args[1:]) if callable(found) else found


def pci(bus_id: str | bytes) -> types.SimpleNamespace:
    return types.SimpleNamespace(busId=bus_id)


def card(bus: int, name: str = "NVIDIA H100 80GB HBM3", *, memory_bytes: int = 80 * GIB, used_bytes: int = 4 << 20, **more: Any) -> dict[str, Any]:
    """What every GPU answers."""
    return {
        "nvmlDeviceGetPciInfo": pci(f"00000000:{bus:02X}:00.0"),
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetUUID": uuid(bus),
        "nvmlDeviceGetMemoryInfo": lambda version=None: types.SimpleNamespace(total=memory_bytes, used=used_bytes, free=memory_bytes - used_bytes),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetGraphicsRunningProcesses": [],
        "nvmlDeviceGetComputeMode": pynvml.NVML_COMPUTEMODE_DEFAULT,
        "nvmlDeviceGetTemperature": lambda sensor: 34,
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=0, memory=0),
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetCurrentClocksEventReasons": pynvml.nvmlClocksEventReasonGpuIdle,
    } | more


def data_center(bus: int, minor: int, **more: Any) -> dict[str, Any]:
    """An H100: ECC, remapped rows in place of retired pages, MIG (off), a link that falls to the first generation while it idles."""
    return card(
        bus,
        **{
            "nvmlDeviceGetMinorNumber": minor,
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetMaxMigDeviceCount": 0,
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetTotalEccErrors": lambda kind, counter: 0,
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetFieldValues": fields({pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: pynvml.NVML_GPU_RECOVERY_ACTION_NONE}),
        }
        | more,
    )


def uuid(bus: int) -> str:
    return f"GPU-{bus:08x}-0000-0000-0000-000000000000"


def fields(known: Mapping[int, int]) -> Callable[[list[tuple[int, int]]], Any]:
    def values(wanted: list[tuple[int, int]]) -> Any:
        found = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        for value, (field, scope) in zip(found, wanted, strict=True):
            value.fieldId, value.scopeId = field, scope
            value.nvmlReturn = 0 if field in known else pynvml.NVML_ERROR_NOT_SUPPORTED
            value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
            value.value.uiVal = known.get(field, 0)
        return found

    return values


def links(number: int, *, remote: str | bytes | None = None, kind: int = 2, down: Collection[int] = ()) -> dict[str, Any]:
    """NVLinks as Hopper has them: states, the device at the other end, and fields for speed and errors."""

    def state(link: int) -> int:
        if link >= number:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 0 if link in down else 1

    known = {
        pynvml.NVML_FI_DEV_NVLINK_GET_SPEED: 26562,
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: pynvml.NVML_GPU_RECOVERY_ACTION_NONE,
    }
    return {
        "nvmlDeviceGetNvLinkState": state,
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda link: kind,
        "nvmlDeviceGetNvLinkRemotePciInfo": lambda link: pci(remote or "00000000:05:00.0"),
        "nvmlDeviceGetFieldValues": fields(known),
    }


def fabric(state: int, status: int = 0, mask: int = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE) -> dict[str, Any]:
    def fill(reference: Any) -> int:
        info = reference._obj
        assert isinstance(info, ctypes.Structure)
        info.state, info.status, info.healthMask = state, status, mask
        return 0

    return {"nvmlDeviceGetGpuFabricInfoV": fill}


def sliced(instances: int) -> dict[str, Any]:
    """In MIG mode: no links, no use of the whole, and handles of the instances that were made."""

    def instance(index: int) -> object:
        if index >= instances:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return {}

    return links(18, down=range(18)) | {
        "nvmlDeviceGetMigMode": [1, 1],
        "nvmlDeviceGetMaxMigDeviceCount": 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": instance,
        "nvmlDeviceGetUtilizationRates": NOT_SUPPORTED,
    }
