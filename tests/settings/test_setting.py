"""How a choice becomes variables and arguments, for one release after another; and what is refused, with its reason."""

from __future__ import annotations

import pytest
from tests.chinese import zh
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.settings.catalogue import SETTINGS, of_value, parse
from unhang.settings.setting import Installed, Refused, Spelled, applied, flag

GPUS = Installed(torch=(2, 9), nccl=(2, 27, 5), packages={"accelerate": "1.15.0", "deepspeed": "0.19.8", "llamafactory": "0.9.5"}, gpus=8)
CPU = Installed(torch=(2, 13), nccl=None)
NOTHING = Installed(torch=None, nccl=None)


def env(installed=GPUS, launcher="torchrun", **choice):
    found = applied({k.replace("_", "-"): v for k, v in choice.items()}, installed, launcher=launcher)
    assert not found.refused
    return found.env


def why(installed, launcher="torchrun", **choice):
    (refused,) = applied({k.replace("_", "-"): v for k, v in choice.items()}, installed, launcher=launcher).refused
    assert refused.why and zh(refused.why)
    return refused.why


@for_each(
    ("choice", "expected"),
    [
        ({"shm": False}, {"NCCL_SHM_DISABLE": "1"}),
        ({"shm": True}, {"NCCL_SHM_DISABLE": "0"}),
        ({"p2p": False}, {"NCCL_P2P_DISABLE": "1"}),
        ({"ib": False}, {"NCCL_IB_DISABLE": "1"}),
        ({"cumem_host": False}, {"NCCL_CUMEM_HOST_ENABLE": "0"}),
        ({"nvls": False}, {"NCCL_NVLS_ENABLE": "0"}),
        ({"nvls": True}, {"NCCL_NVLS_ENABLE": "2"}),
        ({"interface": "eth0"}, {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"}),
        ({"interface": "auto"}, {"NCCL_SOCKET_IFNAME": "", "GLOO_SOCKET_IFNAME": ""}),
        ({"hca": "mlx5_0,mlx5_1"}, {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}),
        ({"hca": "^mlx5_2"}, {"NCCL_IB_HCA": "^=mlx5_2"}),
        ({"hca": "^=mlx5_2,mlx5_3"}, {"NCCL_IB_HCA": "^=mlx5_2,mlx5_3"}),
        ({"buffer": 8388608}, {"NCCL_BUFFSIZE": "8388608"}),
        ({"debug": "info"}, {"NCCL_DEBUG": "INFO"}),
        ({"algorithm": "Ring"}, {"NCCL_ALGO": "Ring"}),
        ({"protocol": "Simple"}, {"NCCL_PROTO": "Simple"}),
        ({"ib_timeout": 22}, {"NCCL_IB_TIMEOUT": "22"}),
        ({"backend": "gloo"}, {"UNHANG_BACKEND": "gloo"}),
        ({"launch_blocking": True}, {"CUDA_LAUNCH_BLOCKING": "1"}),
        ({"detail": True}, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
        ({"loader_workers": 0}, {"UNHANG_LOADER_WORKERS": "0"}),
        ({"pin_memory": False}, {"UNHANG_PIN_MEMORY": "0"}),
        ({"persistent_workers": True}, {"UNHANG_PERSISTENT_WORKERS": "1"}),
        ({"prefetch": 2}, {"UNHANG_PREFETCH": "2"}),
    ],
)
def test_each_is_spelt_as_it_is_read(choice, expected):
    assert env(**choice) == expected


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        (Installed(torch=(2, 13), nccl=None), "INFO"),
        (Installed(torch=(2, 13), nccl=(2, 28, 3), gpus=0), "INFO"),
        (Installed(torch=(2, 13), nccl=(2, 28, 3), gpus=2), "DETAIL"),
        (Installed(torch=(2, 12), nccl=None), "DETAIL"),
    ],
)
def test_detail_is_info_where_it_crashes_ddp(installed, expected):
    assert env(installed, detail=True) == {"TORCH_DISTRIBUTED_DEBUG": expected}


def test_detail_is_info_where_gloo_is_chosen_in_place_of_nccl():
    """The same crash, on a machine with GPUs."""
    installed = Installed(torch=(2, 13), nccl=(2, 28, 3), gpus=2)
    assert env(installed, detail=True, backend="gloo")["TORCH_DISTRIBUTED_DEBUG"] == "INFO"


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ((2, 4), "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        ((2, 7), "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        ((2, 8), "TORCH_FR_BUFFER_SIZE"),
        ((2, 15), "TORCH_FR_BUFFER_SIZE"),
    ],
)
def test_the_recorder_has_another_name_since_torch_2_8(torch, expected):
    assert env(Installed(torch=torch, nccl=(2, 27, 5)), trace_entries=16384) == {expected: "16384"}


@pytest.mark.parametrize(
    ("nccl", "reads"),
    [((2, 18, 3), False), ((2, 22, 3), False), ((2, 23, 4), True), ((2, 27, 7), True), ((2, 32, 3), True), ((2, 40, 1), True), ((), True)],
)
def test_host_memory_by_cumem_came_with_nccl_2_23(nccl, reads):
    installed = Installed(torch=(2, 9), nccl=nccl, gpus=8)
    if reads:
        assert env(installed, cumem_host=False) == {"NCCL_CUMEM_HOST_ENABLE": "0"}
    else:
        assert "2.23.4 and later do" in why(installed, cumem_host=False)


def test_nvlink_sharp_is_unknown_to_old_releases():
    assert "does not read NCCL_NVLS_ENABLE" in why(Installed(torch=(2, 4), nccl=(2, 16, 5)), nvls=False)


def test_nothing_reads_settings_of_nccl_where_there_is_none():
    for key in ("shm", "p2p", "ib", "nvls"):
        assert "without NCCL" in why(CPU, **{key: False})
    assert "no torch" in why(NOTHING, shm=False)
    assert "without NCCL" in why(CPU, backend="nccl")
    assert "leave backend out" in why(GPUS, backend="nccl")
    assert "no GPU" in why(Installed(torch=(2, 9), nccl=(2, 27, 5), gpus=0), backend="nccl")
    assert "without CUDA" in why(CPU, launch_blocking=True)


def test_without_nccl_the_interface_is_still_gloos():
    assert env(CPU, interface="eth0") == {"GLOO_SOCKET_IFNAME": "eth0"}


def test_one_timeout_for_all_layers():
    assert env(timeout=1800) == {
        "UNHANG_TIMEOUT_S": "1800",
        "DEEPSPEED_TIMEOUT": "30",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1800",
        "PET_RDZV_CONF": "join_timeout=1800,timeout=1800",
    }
    # Whole minutes, never shorter than what was asked for; what ends only longer things is left at its default.
    assert env(timeout=90) == {"UNHANG_TIMEOUT_S": "90", "DEEPSPEED_TIMEOUT": "2"}
    assert env(CPU, timeout=1800, launcher="python") == {"UNHANG_TIMEOUT_S": "1800"}


def test_the_timeout_of_the_launchers():
    found = applied({"timeout": 1800}, GPUS, launcher="accelerate")
    assert found.options == (("--rdzv_conf", "join_timeout=1800,timeout=1800"),) and "PET_RDZV_CONF" not in found.env
    llama = Installed(torch=(2, 9), nccl=None, packages={"llamafactory": "0.9.5"})
    assert applied({"timeout": 60}, llama, launcher="llamafactory").arguments == ("ddp_timeout=60",)
    old = Installed(torch=(2, 4), nccl=None, packages={"llamafactory": "0.9.1"})
    assert applied({"timeout": 60}, old, launcher="llamafactory").arguments == ()


@pytest.mark.parametrize(
    ("launcher", "key", "value", "expected"),
    [
        ("torchrun", "processes", 2, Spelled(options=(("--nproc-per-node", "2"),), read_by="torchrun")),
        ("accelerate", "processes", 2, Spelled(options=(("--num_processes", "2"),), read_by="accelerate")),
        ("deepspeed", "processes", 2, Spelled(options=(("--num_gpus", "2"),), read_by="deepspeed")),
        ("llamafactory", "processes", 2, Spelled(env={"NPROC_PER_NODE": "2"}, read_by="llamafactory 0.9.5")),
        ("accelerate", "precision", "bf16", Spelled(options=(("--mixed_precision", "bf16"),), read_by="accelerate 1.15.0")),
        ("accelerate", "accumulation", 4, Spelled(env={"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, read_by="accelerate 1.15.0")),
    ],
)
def test_what_the_launcher_has_a_flag_for(launcher, key, value, expected):
    assert SETTINGS[key].spell(value, GPUS, launcher) == expected


@pytest.mark.parametrize("key", ["batch", "accumulation", "precision", "gpu-cache"])
def test_what_only_the_script_can_do_needs_its_flag(key):
    value = parse(key, SETTINGS[key].example)
    assert isinstance(SETTINGS[key].spell(value, GPUS, "torchrun"), Refused)
    found = applied({key: value}, GPUS, arguments={key: "--its-flag"})
    assert found.arguments == ("--its-flag", str(value)) and not found.refused and found.read_by[key] == "the script (--its-flag)"


def test_fields_of_llama_factory_go_behind_its_file():
    llama = Installed(torch=(2, 9), nccl=None, packages={"llamafactory": "0.9.3"})
    found = applied({"batch": 4, "accumulation": 2, "precision": "bf16"}, llama, launcher="llamafactory")
    assert found.arguments == ("per_device_train_batch_size=4", "gradient_accumulation_steps=2", "bf16=true", "fp16=false")


def test_without_workers_there_is_nothing_to_prefetch():
    found = applied({"loader-workers": 0, "prefetch": 2, "persistent-workers": True}, CPU)
    assert [r.key for r in found.refused] == ["prefetch", "persistent-workers"]
    assert not applied({"loader-workers": 0, "persistent-workers": False}, CPU).refused


@pytest.mark.parametrize(
    ("template", "value", "expected"),
    [
        ("--batch-size", 8, ("--batch-size", "8")),
        ("--batch-size=", 8, ("--batch-size=8",)),
        ("train.batch=", 8, ("train.batch=8",)),
        ("--opt batch:{value}", 8, ("--opt", "batch:8")),
        ("--pin", True, ("--pin", "true")),
        ("--pin|--no-pin", False, ("--no-pin",)),
        ("--pin|", False, ()),
    ],
)
def test_flags_of_a_script(template, value, expected):
    assert flag(template, value) == expected


@for_each(
    ("key", "text", "value"),
    [
        ("shm", "Off", False),
        ("shm", "1", True),
        ("timeout", "30m", 1800),
        ("timeout", "2h", 7200),
        ("timeout", "1.5", 2),
        ("buffer", "8MiB", 8388608),
        ("buffer", "8388608", 8388608),
        ("interface", "=eth0,eth1.100", "eth0,eth1.100"),
        ("hca", "mlx5_0:1", "mlx5_0:1"),
        ("algorithm", "^NVLS", "^NVLS"),
        ("loader_workers", "4", 4),
        ("debug", "WARN", "warn"),
    ],
)
def test_values_as_they_are_typed(key, text, value):
    assert parse(key, text) == value


@for_each(
    ("key", "text"),
    [
        ("shm", "maybe"),
        ("timeout", "soon"),
        ("timeout", "0"),
        ("timeout", "-5"),
        ("timeout", "1e9"),
        ("timeout", "40d"),
        ("buffer", "0"),
        ("buffer", "many"),
        ("interface", "^docker0"),
        ("interface", "eth0 eth1"),
        ("interface", "$(id)"),
        ("ib-timeout", "0"),
        ("ib-timeout", "32"),
        ("loader-workers", "-1"),
        ("loader-workers", "٣"),
        ("algorithm", "Rnig"),
        ("algorithm", ""),
        ("prefetch", "0"),
        ("backend", "mpi"),
        ("precision", "fp64"),
    ],
)
def test_what_is_no_value_says_what_would_be_one(key, text):
    with pytest.raises(UnhangError, match=r": it is ") as e:
        parse(key, text)
    assert f"{key}={text}" in str(e.value) and e.value.hint


def test_a_wrong_name_lists_the_right_ones():
    with pytest.raises(UnhangError, match="no setting 'interfce'") as e:
        parse("interfce", "eth0")
    assert e.value.cause == "did you mean interface?" and "cumem-host" in str(e.value.hint)


def test_values_of_toml():
    assert of_value("shm", False) is False and of_value("batch", 512) == 512 and of_value("timeout", 1.5) == 2
    with pytest.raises(UnhangError, match="a word, a number"):
        of_value("shm", [1])
