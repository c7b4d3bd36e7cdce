"""Random numbers of every device that is in use go on behind an evaluation as if there had been none, and no device is begun for it."""

from __future__ import annotations

import random
import subprocess
import sys
from types import SimpleNamespace

import numpy
import pytest
import torch

from unhang.runtime.evaluation import state_guard
from unhang.runtime.evaluation.state_guard import as_it_was

pytestmark = pytest.mark.torch


def drawn() -> tuple:
    return random.random(), numpy.random.random(), torch.rand(1).item()


def test_the_generators_of_the_process_go_on():
    random.seed(3), numpy.random.seed(3), torch.manual_seed(3)
    expected = drawn()
    random.seed(3), numpy.random.seed(3), torch.manual_seed(3)
    with pytest.raises(KeyError), as_it_was():
        drawn(), random.seed(7), numpy.random.seed(7), torch.manual_seed(7)
        raise KeyError("label")
    assert drawn() == expected


def accelerator(begun: bool) -> SimpleNamespace:
    """A stand-in for one with two devices, which no machine of the tests has."""
    states, asked = [11, 22], []

    def get(device: int) -> int:
        asked.append(device)
        return states[device]

    def set_(state: int, device: int) -> None:
        states[device] = state

    asks = {"is_initialized": lambda: begun, "is_available": lambda: True, "device_count": lambda: 2}
    return SimpleNamespace(states=states, asked=asked, **asks, get_rng_state=get, set_rng_state=set_, get_rng_state_all=list)


@pytest.mark.parametrize("name", ["cuda", "xpu", "of_a_maker"])
def test_every_device_in_use_is_kept(monkeypatch, name):
    module = accelerator(begun=True)
    monkeypatch.setattr(torch, name, module, raising=False)
    monkeypatch.setattr(state_guard, "_accelerator", lambda: name)
    with as_it_was():
        module.states[:] = [5, 6]
    assert module.states == [11, 22]


def test_a_device_that_is_not_in_use_is_not_asked(monkeypatch):
    module = accelerator(begun=False)
    monkeypatch.setattr(torch, "xpu", module)
    with as_it_was():
        module.states[:] = [5, 6]
    assert module.asked == [] and module.states == [5, 6]


def test_what_the_training_does_not_use_is_not_imported():
    code = (
        "import sys, torch; [sys.modules.pop(m) for m in list(sys.modules) if m.partition('.')[0] == 'numpy']\n"
        "from unhang.runtime.evaluation.state_guard import as_it_was\n"
        "with as_it_was(): pass\n"
        "print('numpy.random' in sys.modules, torch.cuda.is_initialized())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == ["False", "False"], found.stderr


@pytest.mark.gpu
def test_cuda_goes_on():
    devices = range(torch.cuda.device_count())

    def numbers() -> list[float]:
        return [torch.rand(1, device=f"cuda:{device}").item() for device in devices]

    torch.cuda.manual_seed_all(3)
    expected = numbers()
    torch.cuda.manual_seed_all(3)
    with as_it_was():
        numbers(), torch.cuda.manual_seed_all(7)
    assert numbers() == expected
