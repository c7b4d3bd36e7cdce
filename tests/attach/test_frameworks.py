"""Frameworks that keep a word of their own about the backend are told that it is Gloo."""

import importlib.util
import sys
from types import ModuleType

import pytest

from unhang.attach import frameworks, overrides, protocol


@pytest.fixture(autouse=True)
def wish(monkeypatch):
    monkeypatch.setenv(protocol.ENV_BACKEND, "gloo")
    monkeypatch.setattr(overrides, "_said", set())
    monkeypatch.setattr(overrides, "_unsent", [])


def module(name, **members):
    made = ModuleType(name)
    for member in members.values():
        member.__module__ = name
    vars(made).update(members)
    return made


class PartialState:
    """As in accelerate: what is assigned must be what is found."""

    def __init__(self, cpu=False, **kwargs):
        assigned = kwargs.pop("backend", None)
        backend, self.kind = self._prepare_backend(cpu, False, assigned)
        assert assigned is None or assigned == backend
        self.backend = backend

    def _prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
        return ("gloo" if cpu else backend or "nccl"), "MULTI_GPU"


def told():
    return [(kind, fields["was"], fields["now"]) for kind, fields in overrides._unsent]


@pytest.mark.parametrize("assigned", [{}, {"backend": "nccl"}, {"backend": "gloo"}, {"backend": "cpu:gloo,cuda:nccl"}])
@pytest.mark.parametrize("cpu", [False, True])
def test_accelerate(assigned, cpu):
    state = type("PartialState", (PartialState,), dict(vars(PartialState)))
    frameworks.patch_accelerate(module("accelerate.state", PartialState=state))
    made = state(cpu, **assigned)
    assert (made.backend, made.kind) == ("gloo", "MULTI_GPU")
    # What was found without it is told as well: torch.distributed is never asked for it.
    was = assigned.get("backend", "gloo" if cpu else "nccl")
    assert told() == ([] if was == "gloo" else [("overridden", was, "gloo")])


def test_other_backends_stay_what_they_are():
    state = type("PartialState", (PartialState,), dict(vars(PartialState)))
    frameworks.patch_accelerate(module("accelerate.state", PartialState=state))
    assert state(backend="xccl").backend == "xccl"


def test_lightning():
    class DDPStrategy:
        def __init__(self, backend=None):
            self._process_group_backend = backend

        def _get_process_group_backend(self):
            return self._process_group_backend or "nccl"

    class Derived(DDPStrategy):
        pass

    frameworks.patch_lightning(module("lightning.pytorch.strategies.ddp", DDPStrategy=DDPStrategy, DerivedStrategy=Derived))
    assert [kind(given)._get_process_group_backend() for kind in (DDPStrategy, Derived) for given in (None, "nccl", "xccl")] == [
        "gloo",
        "gloo",
        "xccl",
    ] * 2
    assert told() == [("overridden", "nccl", "gloo")]


def test_deepspeed():
    class CUDA_Accelerator:
        def communication_backend_name(self):
            return "nccl"

    frameworks.patch_deepspeed(module("deepspeed.accelerator.cuda_accelerator", CUDA_Accelerator=CUDA_Accelerator))
    assert CUDA_Accelerator().communication_backend_name() == "gloo"
    assert told() == [("overridden", "nccl", "gloo")]


@pytest.mark.parametrize("patch", [frameworks.patch_accelerate, frameworks.patch_deepspeed, frameworks.patch_lightning])
def test_a_version_that_looks_otherwise_goes_on_and_is_reported(patch):
    class NewStrategy:
        pass

    patch(module("of.the.future", NewStrategy=NewStrategy))
    ((kind, fields),) = overrides._unsent
    assert kind == "ignored" and fields["why"] == "unknown"


def test_without_the_wish_nothing_is_patched(monkeypatch):
    monkeypatch.delenv(protocol.ENV_BACKEND)
    state = type("PartialState", (PartialState,), dict(vars(PartialState)))
    frameworks.patch_accelerate(module("accelerate.state", PartialState=state))
    assert state().backend == "nccl"


WITH_ACCELERATE = """
import sys, torch
# As on a host with GPUs, up to the device itself.
torch.cuda.is_available = lambda: True
from datetime import timedelta
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import InitProcessGroupKwargs, gather
accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=900))])
state = PartialState()
timeout = torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()
gathered = gather(torch.tensor([state.process_index + 1.0])).tolist()
with open(f"{sys.argv[1]}.{state.process_index}", "w") as file:
    print(state.distributed_type.name, state.backend, torch.distributed.get_backend(), timeout, gathered, file=file)
torch.distributed.destroy_process_group()
"""


@pytest.mark.integration
@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_that_finds_gpus(listener):
    script = listener.directory / "train.py"
    script.write_text(WITH_ACCELERATE)
    env = listener.env(**{protocol.ENV_BACKEND: "gloo", protocol.ENV_TIMEOUT: "70", "ACCELERATE_TORCH_DEVICE": "cpu"})
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    code, _, err = listener.finish(listener.run([*torchrun, str(script), str(listener.directory / "seen")], env=env))
    assert code == 0, err[-3000:]
    for rank in (0, 1):
        assert (listener.directory / f"seen.{rank}").read_text() == "MULTI_GPU gloo gloo 70.0 [1.0, 2.0]\n"
        assert listener.peer(rank=rank).of("ignored") == []
