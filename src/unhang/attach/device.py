"""The PCI address of the GPU that a process uses, by which the kernel log names it. Only asked once CUDA runs in the process."""

from __future__ import annotations

from typing import Any


def gpu(torch: Any, device: str | None) -> str | None:
    """ "0000:3b:00.0" of "cuda:3", as this process counts its devices; None where nothing tells."""
    try:
        kind, _, index = (device or "").split(" ")[0].partition(":")
        if kind != "cuda" or not torch.cuda.is_initialized():
            return None
        import ctypes

        driver = ctypes.CDLL("libcuda.so.1")
        handle, text = ctypes.c_int(), ctypes.create_string_buffer(32)
        if driver.cuDeviceGet(ctypes.byref(handle), int(index or 0)) or driver.cuDeviceGetPCIBusId(text, 32, handle):
            return None
        return text.value.decode("ascii").lower()
    except Exception:
        return None
