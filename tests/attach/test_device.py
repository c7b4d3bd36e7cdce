"""The PCI address of the GPU that a process uses, from the driver that is loaded in it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from unhang.attach.session import gpu


class Driver:
    """Two devices, as this process counts them."""

    buses = (b"0000:1B:00.0", b"0000:3B:00.0")

    def cuDeviceGet(self, handle, index):
        handle._obj.value = index + 40
        return 0 if index < len(self.buses) else 101

    def cuDeviceGetPCIBusId(self, text, size, handle):
        text.value = self.buses[handle.value - 40]
        return 0


def torch(*, initialised=True):
    return SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: initialised))


@pytest.mark.parametrize(("device", "address"), [("cuda:1", "0000:3b:00.0"), ("cuda:0 (NVIDIA H100)", "0000:1b:00.0"), ("cuda", "0000:1b:00.0")])
def test_the_address_of_a_device(monkeypatch, device, address):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver() if name == "libcuda.so.1" else None)
    assert gpu(torch(), device) == address


@pytest.mark.parametrize("device", ["cpu", None, "cuda:7", "cuda:x"])
def test_what_is_no_gpu_has_none(monkeypatch, device):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    assert gpu(torch(), device) is None


def test_cuda_is_not_started_to_ask(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("the driver was loaded"))
    assert gpu(torch(initialised=False), "cuda:0") is None


def test_a_driver_that_is_not_there(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert gpu(torch(), "cuda:0") is None
