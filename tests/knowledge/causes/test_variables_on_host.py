"""Variables of a machine that do nothing, that no program takes, or that contradict one another; and machines that are in order."""

import pytest
from tests.tables import for_each

from unhang.facts import snapshot, variables
from unhang.knowledge import catalogue
from unhang.variables import examine

SITE = "/opt/venv/lib/python3.11/site-packages"
LIBRARIES = {
    f"{SITE}/{name}.dist-info": None for name in ("torch-2.9.1+cu128", "nvidia_nccl_cu12-2.27.5", "accelerate-1.15.0", "transformers-5.23.0")
}


def found(machine, environ, cause, files=None):
    host = machine(LIBRARIES | (files or {}), environ={"VIRTUAL_ENV": "/opt/venv", **environ})
    return list(catalogue.load()[cause].on_host(snapshot.take(host, only=["variables"])))


@pytest.mark.parametrize(
    ("environ", "severity", "remedy"),
    [
        ({"NCCL_TIMEOUT": "1800"}, "warning", "timeout-as-argument"),
        ({"ACCELERATE_USE_GLOO": "1"}, "warning", "gloo-as-argument"),
        ({"NCCL_SOCKET_IFNMAE": "eth0"}, "warning", "see-who-reads"),
        ({"TORCH_NCCL_TEARDOWN_ON_TIMEOUT": "1"}, "warning", "see-who-reads"),
        ({"NCCL_COMPLETELY_MADE_UP_THING": "1"}, "note", "see-who-reads"),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, "warning", "unset-blocking-wait"),
    ],
)
def test_settings_without_effect(machine, environ, severity, remedy):
    (one,) = found(machine, environ, "ineffective-setting")
    assert (one.severity, one.area, one.remedies[0].id) == (severity, "variables", remedy)
    name = next(n for n in reversed(environ))
    assert (
        one.says.startswith(
            tuple(f"{name}={environ[name]}{how}" for how in (" has no effect", ": neither NCCL, torch nor", ": no such", ": nccl 2.27.5"))
        )
        and one.evidence[0].text == f"{name}={environ[name]}"
    )


@for_each(
    ("environ", "severity"),
    [
        ({"TORCH_FR_BUFFER_SIZE": "abc"}, "error"),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "on"}, "error"),
        ({"NCCL_IB_DISABLE": "true"}, "warning"),
        ({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "error"),
        ({"TORCH_DISTRIBUTED_DEBUG": "abc"}, "error"),
        ({"MASTER_PORT": "99999"}, "error"),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, "error"),
        ({"OMP_NUM_THREADS": "0"}, "warning"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "warning"),
        ({"MASTER_ADDR": "0.0.0.0"}, "error"),
        ({"RANK": "0", "WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "note"),
    ],
)
def test_settings_that_are_wrong(machine, environ, severity):
    (one,) = found(machine, environ, "config-error")
    assert (one.severity, one.area) == (severity, "variables")
    assert one.remedies[0].command.startswith("unset ")


@for_each(
    "environ",
    [
        {},
        {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET",
            "NCCL_SOCKET_IFNAME": "eth0",
            "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
            "NCCL_VERSION": "2.27.5",
        },
        {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
        {"WORLD_SIZE": "16", "RANK": "0", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "MASTER_ADDR": "job-master-0"},
        {"UCX_TLS": "rc", "FI_PROVIDER": "efa", "OMPI_MCA_btl": "tcp", "NCCL_FASTRAK_IFNAME": "eth1", "OFI_NCCL_PROTOCOL": "rdma"},
        {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "4,2", "CUDA_MODULE_LOADING": "LAZY", "TORCH_NCCL_USE_COMM_NONBLOCKING": "0"},
        {"TORCH_DIST_SOMETHING_NEW": "1", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"},
        {
            "LORA_RANK": "64",
            "MIN_NODES": "1",
            "MASTER_HOST": "a",
            "GLOBAL_RANK": "0",
            "PROC_PER_NODE": "8",
            "NCCL_ROOT": "/opt/nccl",
            "CUDA_HOME": "/x",
        },
        {"LD_LIBRARY_PATH": "/usr/lib", "SLURM_NTASKS": "16", "SLURM_PROCID": "3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    ],
)
def test_machines_in_order(machine, environ):
    assert found(machine, environ, "ineffective-setting") == [] == found(machine, environ, "config-error")


def test_contradictions_beside_what_a_value_does(machine):
    seen = [f.severity for f in found(machine, {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, "config-error")]
    assert sorted(seen) == ["error", "warning"]


@pytest.mark.parametrize("name", ["NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_old_names_are_told_and_not_called_ineffective(machine, name):
    (one,) = found(machine, {name: "1"}, "ineffective-setting")
    assert one.severity == "warning" and one.says.startswith(f"{name}=1: the old name of TORCH_") and "no effect" not in one.says
    assert found(machine, {name: "1"}, "config-error") == []


# flags and state of the kernel.
OFF = {"/sys/class/net/off/flags": "0x1002", "/sys/class/net/off/operstate": "down"}


@pytest.mark.parametrize(
    ("name", "value", "words", "area"),
    [
        ("GLOO_SOCKET_IFNAME", "off", "no interface off that is up with an address", "network"),
        ("NCCL_SOCKET_IFNAME", "off", "no interface off that is up with an address", "network"),
        ("NCCL_IB_HCA", "mlx5_9", "no RDMA adapter, and so no mlx5_9", "infiniband"),
    ],
)
def test_what_the_host_has_not_is_told_once(machine, name, value, words, area):
    host = machine(LIBRARIES | OFF, environ={"VIRTUAL_ENV": "/opt/venv", name: value})
    host.interfaces = {"lo": ("127.0.0.1/8",), "off": ("10.0.0.7/24",)}
    (one,) = catalogue.load()["config-error"].on_host(snapshot.take(host, only=["variables"]))
    assert words in one.says
    both = snapshot.take(host, only=["variables", area])
    told = [f for cause in ("config-error", "interface-selection") for f in catalogue.load()[cause].on_host(both) if value in f.says]
    assert len(told) == 1


@pytest.mark.parametrize(
    "environ",
    [
        {"NCCL_ASYNC_ERROR_HANDLING": "1"},
        {"TORCH_NCCL_TRACE_BUFFER_SIZE": "5"},
        {"NCCL_IB_HCA": "mlx5_9"},
        {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1"},
        {"GLOO_SOCKET_IFNAME": "off", "OMP_NUM_THREADS": "abc", "TORCHELASTIC_MAX_RESTART": "3"},
        {"NCCL_TIMEOUT": "5", "NCCL_SOCKET_IFNMAE": "a", "OMP_NUM_THREAD": "4", "CUDA_LAUNCH_BLOCKING": "1", "RANK": "5", "WORLD_SIZE": "2"},
    ],
)
def test_doctor_finds_fault_with_what_vars_does(machine, environ):
    host = machine(LIBRARIES | OFF, environ={"VIRTUAL_ENV": "/opt/venv", **environ})
    seen = snapshot.take(host, only=["variables"])
    judged = examine.of_environment(seen.get(variables.SUBJECT), examine.nothing_to_scan)
    findings = [f for cause in ("config-error", "ineffective-setting") for f in catalogue.load()[cause].on_host(seen)]
    for one in judged:
        worst = {r.severity for r in one.remarks} - {"note"}
        assert {f.severity for f in findings if f.evidence[0].text.partition("=")[0] == one.name} - {"note"} == worst


def test_what_may_be_misspelt_is_a_note(machine):
    (one,) = found(machine, {"WOLRD_SIZE": "8"}, "ineffective-setting")
    assert one.severity == "note" and one.says == "WOLRD_SIZE=8: a program of your own may read it; if WORLD_SIZE was meant, it is misspelt"


def test_without_libraries_only_what_nothing_ever_read_is_named(machine):
    host = machine({}, environ={"NCCL_IB_DISABLE": "1", "TORCH_NCCL_SOMETHING": "1", "NCCL_TIMEOUT": "1"})
    seen = snapshot.take(host, only=["variables"])
    assert [f.evidence[0].text for f in catalogue.load()["ineffective-setting"].on_host(seen)] == ["NCCL_TIMEOUT=1"]
