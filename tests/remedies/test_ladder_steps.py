import psutil
import pytest

from unhang.knowledge.catalogue import load
from unhang.launch.supervise import DETERMINISTIC
from unhang.model import Evidence, Finding, Verdict
from unhang.remedies import ladder_steps
from unhang.settings.setting import Installed


def verdict(cause, text=""):
    return Verdict(primary=Finding(cause=cause, standing="likely", says="", evidence=(Evidence(source="log", text=text),)))


def test_causes_that_settings_can_answer_exist_and_are_none_of_the_code():
    assert set(load()) >= ladder_steps.ANSWERABLE
    assert not ladder_steps.ANSWERABLE & DETERMINISTIC


@pytest.mark.parametrize("cause", ["rank-exception", "collective-mismatch", "gpu-oom", "host-oom-or-killed", "gpu-hardware", "disk-full"])
def test_settings_are_no_answer_to_the_code_or_the_hardware(cause):
    assert not ladder_steps.answerable(verdict(cause))


def test_nothing_answers_nothing():
    assert not ladder_steps.answerable(None) and not ladder_steps.answerable(Verdict(primary=None))


@pytest.mark.parametrize(
    ("cause", "text", "loaders"),
    [
        ("shm-exhausted", "DataLoader worker (pid 12) is killed by signal: Bus error", True),
        ("shm-exhausted", "unable to open shared memory object </torch_12_3> in read-write mode", True),
        ("shm-exhausted", "Error while creating shared memory segment /dev/shm/nccl-qA3 (size 9637888)", False),
        ("dataloader-deadlock", "", False),
        ("p2p-broken", "DataLoader", False),
    ],
)
def test_whose_shared_memory_it_was(cause, text, loaders):
    assert ladder_steps.of_loaders(verdict(cause, text)) is loaders


def test_fewer_processes_end_with_one(bench):
    found = ladder_steps.rungs(verdict=None, installed=bench.installed(), backend="nccl", world_size=12)
    assert [r.adds["processes"] for r in found if "processes" in r.adds] == [6, 3, 1]
    assert [r.id for r in found][:5] == ["as-is", "cumem-host-off", "shm-off", "p2p-off", "ib-off"]
    assert all(r.title.of("zh") and r.cost.of("zh") for r in found)


def test_the_interface_is_the_one_on_the_way():
    name = ladder_steps.interface_to("127.0.0.1")
    assert name in psutil.net_if_addrs() and name == "lo"
    assert ladder_steps.interface_to("127.0.1.1") == "lo"
    assert ladder_steps.interface_to("no-such-host.invalid") is None


def test_the_ladder_changes_no_batch():
    installed = Installed(torch=(2, 9), nccl=(2, 27, 5), gpus=8)
    found = ladder_steps.rungs(verdict=None, installed=installed, backend="nccl", world_size=2, conservative={"batch": 512, "ib": False})
    assert next(r.adds for r in found if r.id == "conservative") == {"ib": False}


@pytest.mark.parametrize(
    ("cause", "text", "lacks"),
    [
        ("backend-unavailable", "RuntimeError: Distributed package doesn't have NCCL built in", True),
        ("backend-unavailable", "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", True),
        ("backend-unavailable", "RuntimeError: Distributed package doesn't have MPI built in", False),
        ("device-mapping", "RuntimeError: No CUDA GPUs are available", False),
    ],
)
def test_where_nccl_cannot_be_gloo_comes_first_and_nothing_is_tried_as_it_is(bench, cause, text, lacks):
    said = verdict(cause, text)
    found = [r.id for r in ladder_steps.rungs(verdict=said, installed=bench.no_gpu, backend="nccl", world_size=2)]
    assert ladder_steps.answerable(said) is lacks
    assert found[0] == ("prescribed-gloo" if lacks else "as-is") and ("as-is" in found) is not lacks


def ended_by(text, cause="unknown"):
    found = verdict(cause, text).primary
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        "usage: train.py [-h]",
        "train.py: error: unrecognized arguments: --no",
        "t.py: error: the following arguments are required: x",
        "No such option: --y",
    ],
)
def test_a_command_line_that_is_refused_is_mended_by_no_setting(text):
    assert ladder_steps.beyond_settings(ended_by(text), {"backend": "gloo"}) and ladder_steps.beyond_settings(
        ended_by(text, "config-error"), {"backend": "gloo"}
    )


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("srun: error: Unable to create step for job 12: Requested nodes are busy", "unknown"),
        ("[rank0]: error: socket eth7: no such interface", "unknown"),
        ("nccl_net.cc:44:5: error: connect to 10.0.0.1: Connection refused", "unknown"),
        ("mpirun was to start 8 processes, more than its hosts have slots for", "config-error"),
    ],
)
def test_what_a_setting_or_another_time_may_mend_is_not_beyond_them(text, cause):
    assert not ladder_steps.beyond_settings(ended_by(text, cause), {})
