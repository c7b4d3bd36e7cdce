"""GPU memory for onlookers: of this host alone, and whatever the driver does, nobody waits for it twice."""

from __future__ import annotations

import threading
import time

import pytest
from tests.hosts.nvml import LOST, Nvml, card, data_center
from tests.hosts.part import GIB

from unhang.facts.nvml import EVERY_S, FIRST_S, OLD_S, GpuMemory


class Clock:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def test_of_each_gpu_of_this_host(machine):
    here = machine()
    here.nvml_answers = Nvml(card(0x1B, used_bytes=3 * GIB), LOST, data_center(0x3B, 2, nvmlDeviceGetMigMode=[1, 1]))
    memory = GpuMemory(here)
    assert memory.of("node7", "0000:1b:00.0") == (3 * GIB, 80 * GIB)
    # One that is lost, one whose slices are counted otherwise, one that there is not; and another host's.
    assert [memory.of("node7", a) for a in ("0000:2b:00.0", "0000:3b:00.0", "0000:4b:00.0")] == [None, None, None]
    assert memory.of("node8", "0000:1b:00.0") is None


def test_where_there_is_no_library_it_is_asked_once(machine, monkeypatch):
    here, asked, clock = machine(), [], Clock()

    def no_library():
        asked.append(1)
        raise FileNotFoundError("libnvidia-ml.so.1")

    monkeypatch.setattr(here, "nvml", no_library)
    memory = GpuMemory(here, monotonic=clock)
    for _ in range(5):
        assert memory.of("node7", "0000:1b:00.0") is None
        clock.at += EVERY_S
    assert asked == [1]


@pytest.mark.timeout(30)
def test_a_driver_that_hangs_is_waited_for_once_and_old_answers_are_forgotten(machine):
    here, hangs, clock = machine(), threading.Event(), Clock()
    hangs.set()

    def info(version=None):
        hangs.wait()
        return card(0x1B)["nvmlDeviceGetMemoryInfo"]()

    here.nvml_answers = Nvml(card(0x1B, nvmlDeviceGetMemoryInfo=info))
    memory = GpuMemory(here, monotonic=clock)
    assert memory.of("node7", "0000:1b:00.0") == (4 << 20, 80 * GIB)
    hangs.clear()
    clock.at = EVERY_S + 0.1
    began = time.monotonic()
    assert memory.of("node7", "0000:1b:00.0") is not None
    clock.at = OLD_S + 0.1
    assert [memory.of("node7", "0000:1b:00.0") for _ in range(10)] == [None] * 10
    assert time.monotonic() - began < FIRST_S
    assert sum(t.name == "unhang gpu memory" for t in threading.enumerate()) == 1
    hangs.set()
