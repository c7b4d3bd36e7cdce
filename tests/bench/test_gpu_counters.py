"""Energy of GPUs over a part of a run, by an NVML that is none; topology of those that were used."""

from __future__ import annotations

import itertools
import threading
import types

import pytest
from tests.hosts.nvml import LOST, Nvml, card, data_center, links

from unhang.bench import gpu_counters
from unhang.bench.gpu_counters import GpuCounters

FIRST, SECOND = "0000:1b:00.0", "0000:3b:00.0"


def test_energy_between_two_readings(machine, monkeypatch):
    # A reading each second: 200 W.
    clock, done = itertools.count(), threading.Event()
    at = [0]

    def now():
        at[0] = next(clock)
        if at[0] > 30:
            done.set()
        return float(at[0])

    monkeypatch.setattr(gpu_counters, "time", types.SimpleNamespace(monotonic=now))
    monkeypatch.setattr(gpu_counters, "EVERY_S", 0.001)
    busy = card(
        0x1B,
        nvmlDeviceGetTotalEnergyConsumption=lambda: 1_000_000 + 200_000 * (at[0] + 1),
    )
    here = machine()
    here.nvml_answers = nvml = Nvml(busy, LOST, data_center(0x3B, 2, nvmlDeviceGetMigMode=[1, 1]), card(0x4B))
    with GpuCounters(here) as counters:
        assert done.wait(20)
    told = counters.over(5.5, 14.25)
    # One that is lost, and one in MIG mode, of which a process has a slice, are left out; an old one tells no energy.
    assert told == {FIRST: pytest.approx(1750.0)}
    # A part that was not seen to its end.
    assert counters.over(5.5, 1e6) == {} and nvml.shut == 1


def test_how_the_gpus_in_use_are_joined_and_nothing_without_nvml(machine):
    here = machine()
    with GpuCounters(here) as counters:
        pass
    assert counters.over(0.0, 1.0) == {} and gpu_counters.links(here, {FIRST, SECOND}) == ()
    here.nvml_answers = Nvml(*(data_center(bus, i, **links(18)) for i, bus in enumerate((0x1B, 0x3B))))
    assert gpu_counters.links(here, {FIRST, SECOND}) == ("NV18",)
    assert gpu_counters.links(here, {FIRST}) == ()
