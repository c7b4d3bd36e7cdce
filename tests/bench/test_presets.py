"""Ready-made comparisons: their arms on one machine and another, and what a machine or a command lacks."""

import pytest
from tests.settings.test_choosing import CPU, GPUS, adapters, here, net

from unhang.bench.arms import READY_MADE, ready_made_arms
from unhang.errors import UnhangError
from unhang.settings import catalogue
from unhang.settings.setting import Installed


@pytest.fixture
def large(machine):
    """A host of InfiniBand and eight GPUs."""
    return here(infiniband=adapters(("mlx5_0", "ACTIVE", "InfiniBand")), network=net(machine, None))


@pytest.mark.parametrize("name", READY_MADE)
def test_its_arms_are_settings_that_there_are(name, large):
    baseline, *others = ready_made_arms(name, large, batch=8)
    assert others and baseline not in others
    for text in (baseline, *others):
        assert text == "none" or catalogue.parse(*text.split("=")) is not None


def test_arms_are_of_this_machine_and_command(large, machine):
    assert ready_made_arms("batch", large, batch=48) == ("batch=48", "batch=96", "batch=192")
    assert ready_made_arms("interface", large, batch=None) == ("none", "interface=lo", "interface=eth0", "interface=eth1")
    several = here(hosts=2, network=net(machine, None))
    assert ready_made_arms("interface", several, batch=None) == ("none", "interface=eth0", "interface=eth1")


@pytest.mark.parametrize(
    ("name", "installed", "says"),
    [
        ("ib", GPUS, "ib: no adapter here has an active InfiniBand or RoCE port"),
        ("shm", Installed(torch=(2, 9), nccl=(2, 27, 5), gpus=1), "shm: NCCL uses it between the GPUs of a host, and this one has 1"),
        ("p2p", CPU, "p2p: NCCL uses it between the GPUs of a host, and this one has 0"),
        ("cudnn", CPU, "cudnn: there is no GPU here"),
        ("backend", CPU, "backend: there is no GPU here"),
        ("batch", CPU, "batch: the command does not say how large the batch is now"),
        ("interface", CPU, "interface: there is nothing to choose between, this machine has none"),
    ],
)
def test_what_is_lacking_is_said(name, installed, says):
    down = adapters(("mlx5_0", "DOWN", "InfiniBand"))
    with pytest.raises(UnhangError) as refused:
        ready_made_arms(name, here(installed, infiniband=down), batch=None)
    assert str(refused.value).startswith(says)
