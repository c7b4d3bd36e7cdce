"""The settings that are passed on from thread to thread, each with its verdict; and what a name, a value or several together bring about."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from tests.tables import for_each

from unhang.facts import variables
from unhang.files.opening import parse
from unhang.variables.examine import all_names, in_file, place
from unhang.variables.judge import Place, Setting, judge, typo_outside
from unhang.variables.known import entries
from unhang.variables.readers import table

HERE = {"nccl": "2.27.7", "torch": "2.9.1+cu128", "accelerate": "1.15.0", "transformers": "5.23.0", "deepspeed": "0.19.8", "llamafactory": "0.9.5"}


def nothing(library, name):
    return None


def look(settings, place=None, scan=nothing, options=()):
    pairs = settings.items() if isinstance(settings, dict) else settings
    return {j.name: j for j in judge([Setting(name=n, value=v, source="train.sh") for n, v in pairs], place or Place(libraries=HERE), scan, options)}


def said(judged, severity=None):
    return " | ".join(r.says for r in judged.remarks if severity in (None, r.severity))


# What is set, who reads it, the severities in their order, and words that must be said.
VERDICTS = [
    ("NCCL_TIMEOUT", "1800", "not-read", None, "warning", "init_process_group(timeout=...)"),
    ("NCCL_TIMEOUT", "1800", "not-read", None, "warning", "a training script may"),
    ("NCCL_BLOCKING_WAIT", "1", "read", "torch", "warning", "no watchdog"),
    ("NCCL_BLOCKING_WAIT", "1", "read", "torch", "warning", "old name of TORCH_NCCL_BLOCKING_WAIT"),
    ("NCCL_ASYNC_ERROR_HANDLING", "1", "read", "torch", "warning", "old name of TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ("NCCL_ASYNC_ERROR_HANDLING", "1", "read", "torch", "note", "torchrun and torch.distributed.launch set"),
    ("NCCL_IB_DISABLE", "1", "read", "nccl", "warning", "TCP"),
    ("NCCL_IB_DISABLE", "0", "read", "nccl", "note", "the default"),
    ("NCCL_P2P_DISABLE", "1", "read", "nccl", "warning", "NCCL_P2P_LEVEL"),
    ("NCCL_P2P_DISABLE", "0", "read", "nccl", "note", "the default"),
    ("CUDA_LAUNCH_BLOCKING", "1", "read", "cuda", "warning", "no optimisation"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "read", "torch", "warning", "every collective"),
    ("NCCL_SOCKET_IFNAME", "eth0", "read", "nccl", "note", "list of prefixes"),
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "16384", "read", "torch", "warning", "old name of TORCH_FR_BUFFER_SIZE"),
    ("NCCL_DEBUG_SUBSYS", "ALL", "read", "nccl", "warning", "gigabytes"),
    ("NCCL_IB_HCA", "mlx5_0", "read", "nccl", "warning", "other adapters are left unused"),
    ("NCCL_IB_TIMEOUT", "22", "read", "nccl", "note", "no timeout of collectives"),
    ("NCCL_BUFFSIZE", "8388608", "read", "nccl", "note", "GPU's memory"),
    ("ACCELERATE_USE_GLOO", "1", "not-read", None, "warning", "ddp_backend='gloo'"),
    ("NCCL_SHM_DISABLE", "1", "read", "nccl", "warning", "only as a probe"),
    ("NCCL_SHM_DISABLE", "1", "read", "nccl", "warning", "that cannot copy directly (P2P)"),
    ("NCCL_MAX_NCHANNELS", "4", "read", "nccl", "warning", "where both are set NCCL takes the smaller of both"),
    ("NCCL_MIN_NCHANNELS", "4", "read", "nccl", "warning", "where both are set NCCL takes the larger of both"),
]


@for_each(("name", "value", "state", "reader", "severity", "words"), VERDICTS, ids=[f"{v[0]}={v[1]}-{i}" for i, v in enumerate(VERDICTS)])
def test_settings_of_the_source_documents(name, value, state, reader, severity, words):
    judged = look({name: value, "NCCL_DEBUG": "INFO"})[name]
    assert judged.state == state
    assert (reader in {r.library for r in judged.readers if r.answer == "reads"}) if reader else not judged.readers
    assert words in said(judged, severity)
    assert all(r.says.of("zh") and r.says.of("zh") != r.says for r in judged.remarks)


def test_plain_debugging_is_no_fault():
    assert look({"NCCL_DEBUG": "INFO", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"})["NCCL_DEBUG"].remarks == ()


def test_both_waits_contradict_each_other():
    both = look({"NCCL_BLOCKING_WAIT": "1", "NCCL_ASYNC_ERROR_HANDLING": "1"})
    assert "only, and this one has no effect" in said(both["NCCL_ASYNC_ERROR_HANDLING"])
    one = look({"NCCL_BLOCKING_WAIT": "0", "NCCL_ASYNC_ERROR_HANDLING": "1"})
    assert "no effect" not in said(one["NCCL_ASYNC_ERROR_HANDLING"])


def test_a_new_name_is_only_named_where_it_exists():
    old = Place(libraries={"torch": "2.1.2"})
    assert look({"NCCL_BLOCKING_WAIT": "1"}, old)["NCCL_BLOCKING_WAIT"].now == ""
    assert look({"TORCH_NCCL_BLOCKING_WAIT": "1"}, old)["TORCH_NCCL_BLOCKING_WAIT"].state == "not-read"
    assert look({"TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}, Place(libraries={"torch": "2.7.1"}))["TORCH_NCCL_TRACE_BUFFER_SIZE"].now == ""


@for_each(
    ("name", "value", "severity", "words"),
    [
        ("NCCL_IB_DISABLE", "true", "warning", "it makes 0, the opposite"),
        ("NCCL_IB_TIMEOUT", "22s", "warning", "passes over the rest"),
        ("NCCL_IB_TIMEOUT", "0x16", None, ""),
        ("NCCL_IB_TIMEOUT", "40", "warning", "outside"),
        ("NCCL_BUFFSIZE", "99999999999999999999", "warning", "default"),
        ("TORCH_FR_BUFFER_SIZE", "abc", "error", "hangs"),
        ("TORCH_FR_BUFFER_SIZE", "", "error", "hangs"),
        ("TORCH_FR_BUFFER_SIZE", "$SIZE", None, ""),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "on", "error", "raises"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TRUE", None, ""),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "7", "warning", "outside"),
        ("DEEPSPEED_TIMEOUT", "0.5", "error", "no whole number"),
        ("DEEPSPEED_TIMEOUT", "1800", "warning", "minutes, not seconds"),
        ("TORCH_DISTRIBUTED_DEBUG", "verbose", "error", "ValueError"),
        ("TORCH_DISTRIBUTED_DEBUG", "", "error", "ValueError"),
        ("TORCH_DISTRIBUTED_DEBUG", "info", None, ""),
        ("NCCL_DEBUG", "info", None, ""),
        ("NCCL_DEBUG_SUBSYS", "^INIT,NETT", "warning", "NETT"),
        ("NCCL_CONF_FILE", "~/nccl.conf", "error", "not expanded"),
        ("MASTER_PORT", "99999", "error", "outside of its range, 0…65535: torch raises ValueError"),
        ("MASTER_PORT", "-1", "error", "outside"),
        ("MASTER_PORT", "0", None, ""),
        ("LOCAL_RANK", "-1", "warning", "outside"),
        *(("OMP_NUM_THREADS", v, "warning", "takes all cores") for v in ("abc", "0", "-1", "", "4,", "4,0", "4x", "9" * 20)),
        *(("OMP_NUM_THREADS", v, None, "") for v in ("4", " 4", "+4", "4,2", "4 , 2")),
        ("CUDA_VISIBLE_DEVICES", "abc", "error", "'abc' names no GPU: CUDA shows none at all"),
        ("CUDA_VISIBLE_DEVICES", "0,0", "error", "twice"),
        ("CUDA_VISIBLE_DEVICES", "GPU-1f,GPU-1f", "error", "twice"),
        ("CUDA_VISIBLE_DEVICES", "1,x,0", "warning", "before it only (1)"),
        ("CUDA_VISIBLE_DEVICES", "GPU-1f,0", "warning", "before it only (GPU-1f)"),
        ("CUDA_VISIBLE_DEVICES", "0-3", "warning", "CUDA reads 0 of '0-3' and drops '-3': it shows 0;"),
        ("CUDA_VISIBLE_DEVICES", "0 1 2 3", "warning", "drops '1 2 3'"),
        ("CUDA_VISIBLE_DEVICES", "0;1", "warning", "drops ';1'"),
        ("CUDA_VISIBLE_DEVICES", "1,0:3", "warning", "reads 0 of '0:3' and drops ':3': it shows 1, 0;"),
        ("CUDA_VISIBLE_DEVICES", "2x,-1", "warning", "drops 'x'"),
        ("CUDA_VISIBLE_DEVICES", "1-2,1", "error", "twice"),
        *(
            ("CUDA_VISIBLE_DEVICES", v, None, "")
            for v in (
                "",
                "-1",
                "0, 1 ,2",
                "+1",
                "MIG-GPU-1f/0/0",
                "GPU-1f-2e",
                "none",
                "0,1",
                " 2, 1",
                "0,2,-1,1",
                "GPU-1f,GPU-2e",
                "MIG-1f",
                "0,",
                "$GPUS",
            )
        ),
    ],
)
def test_values(name, value, severity, words):
    judged = look({name: value})[name]
    if severity is None:
        assert not [r for r in judged.remarks if r.kind == "value"], said(judged)
    else:
        assert words in said(judged, severity)


def test_names_that_do_not_exist():
    judged = look({"NCCL_SOCKET_IFNMAE": "eth0"})["NCCL_SOCKET_IFNMAE"]
    assert judged.state == "unknown" and said(judged, "warning").endswith("the nearest real name is NCCL_SOCKET_IFNAME")
    slip = typo_outside(Setting(name="NCLL_DEBUG", value=None, source="environment"))
    assert slip.state == "unknown" and "if NCCL_DEBUG was meant" in said(slip, "note")
    assert said(typo_outside(Setting(name="CUDA_VISIBLE_DEVICE", value=None, source="environment")), "warning").endswith("CUDA_VISIBLE_DEVICES")
    assert typo_outside(Setting(name="LD_LIBRARY_PATH", value=None, source="environment")) is None


@pytest.mark.parametrize(("name", "severities"), [("LORA_RANK", []), ("MASTER_HOST", []), ("HF_HOME", []), ("WOLRD_SIZE", ["note"])])
def test_what_other_programs_read_is_not_known(name, severities):
    for scan in (nothing, lambda library, name: ""):
        judged = look({name: "1"}, scan=scan)[name]
        assert judged.state == "unknown" and [r.severity for r in judged.remarks] == severities


OF_BUILDS = [
    "NCCL_ROOT",
    "NCCL_HOME",
    "NCCL_VERSION",
    "NCCL_VER",
    "NCCL_INCLUDE_DIR",
    "NCCL_INCLUDE_PATH",
    "NCCL_LIBRARY",
    "NCCL_LIBRARY_DIR",
    "NCCL_LIBRARY_DIRS",
    "NCCL_LIBRARY_PATH",
    "NCCL_LIB_DIR",
    "NCCL_LIB_PATH",
    "NCCL_LIBDIR",
    "NCCL_LIBS",
    "NCCL_INSTALL_PATH",
    "NCCL_HDR_PATH",
]


def test_what_builds_set_is_no_fault():
    assert not [j for j in look(dict.fromkeys(OF_BUILDS, "x")).values() if j.remarks]


def test_what_is_not_installed_is_not_called_unread():
    bare = Place(libraries={})
    assert look({"NCCL_IB_DISABLE": "1"}, bare)["NCCL_IB_DISABLE"].state == "not-here"
    assert look({"NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0"})["NCCL_GPUDIRECTTCPX_CTRL_DEV"].state == "foreign"
    assert look({"UCX_TLS": "rc", "FI_PROVIDER": "efa", "OMPI_MCA_btl": "tcp"}).keys() == {"UCX_TLS", "FI_PROVIDER", "OMPI_MCA_btl"}
    assert not any(j.remarks for j in look({"UCX_TLS": "rc", "FI_PROVIDER": "efa", "OMPI_MCA_btl": "tcp"}).values())


def test_names_that_are_put_together_at_run_time_are_read():
    judged = look({"FSDP_SHARDING_STRATEGY": "FULL_SHARD", "PET_NNODES": "2", "PET_LOG_DIR": "x"})
    assert {j.state for j in judged.values()} == {"read"}


def test_unknown_releases_are_searched():
    new = Place(libraries={"nccl": "2.99.1", "torch": "2.99.0"})
    files = {"nccl": {"NCCL_DEBUG", "NCCL_BRAND_NEW"}, "torch": set()}

    def scan(library, name):
        return "libnccl.so" if name in files.get(library, ()) else ""

    judged = look({"NCCL_DEBUG": "INFO", "NCCL_BRAND_NEW": "1", "NCCL_NEVER_WAS_HERE": "1", "NCCL_TIMEOUT": "1"}, new, scan)
    assert {n: j.state for n, j in judged.items()} == {
        "NCCL_DEBUG": "read",
        "NCCL_BRAND_NEW": "in-binary",
        "NCCL_NEVER_WAS_HERE": "unknown",
        "NCCL_TIMEOUT": "not-read",
    }
    assert judged["NCCL_DEBUG"].readers[0].how == "scan"
    assert look({"NCCL_BRAND_NEW": "1"}, new)["NCCL_BRAND_NEW"].state == "unknown"


OF_PLUGINS = (
    "NCCL_IBEXT_DISABLE NCCL_SHARP_DISABLE NCCL_UCX_TLS NCCL_PLUGIN_P2P NCCL_SPCX_COLL_ENABLE NCCL_FASTRAK_IFNAME NCCL_GPUDIRECTTCPX_CTRL_DEV "
    "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE NCCL_TUNER_CONFIG_PATH NCCL_TUNER_CONFIG_FILE NCCL_PROFILE_EVENT_MASK NCCL_PROFILER_CE_TIMING "
    "NCCL_INSPECTOR_DUMP_DIR NCCL_CTRAN_ENABLE OFI_NCCL_PROTOCOL SHARP_COLL_LOG_LEVEL RCCL_MSCCL_ENABLE MSCCL_ALGO_FILE_PATH MSCCLPP_READ_ALLRED "
    "HCCL_CONNECT_TIMEOUT CCL_WORKER_COUNT MCCL_IB_GID_INDEX BKCL_RDMA_NICS"
)


@for_each("name", OF_PLUGINS.split())
@for_each("scan", [nothing, lambda library, name: ""], ids=["table", "scan"])
def test_what_plugins_and_other_builds_read_is_left_alone(name, scan):
    one = look({name: "1"}, scan=scan)[name]
    assert one.state == "foreign" and one.remarks == ()


@pytest.mark.parametrize("name", ["NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"])
def test_what_nccl_reads_to_find_its_plugins_is_its_own(name):
    assert look({name: "x"})[name].readers[0].library == "nccl"


@for_each(
    ("name", "found", "plugins", "state"),
    [
        ("NCCL_NEW_IN_A_PLUGIN", "/opt/libnccl-net.so", ("/opt/libnccl-net.so",), "in-binary"),
        ("NCCL_NEW_IN_A_PLUGIN", "", ("/opt/libnccl-net.so",), "unknown"),  # names are put together at run time, too
        ("NCCL_NEW_IN_A_PLUGIN", None, (), "unknown"),
        ("NCCL_MNNVL", "/opt/libnccl-net.so", ("/opt/libnccl-net.so",), "in-binary"),  # NCCL read it until 2.21
        ("NCCL_MNNVL", "", ("/opt/libnccl-net.so",), "not-read"),
        ("NCCL_MNNVL", None, ("/opt/libnccl-net.so",), "unknown"),
        ("NCCL_MNNVL", None, (), "not-read"),
        ("NCCL_TIMEOUT", None, ("/opt/libnccl-net.so",), "not-read"),
        ("NCCL_TIMEOUT", "/opt/libnccl-net.so", ("/opt/libnccl-net.so",), "in-binary"),
    ],
)
def test_plugins_are_asked_before_a_name_is_called_unread(name, found, plugins, state):
    one = look({name: "1"}, Place(libraries=HERE, plugins=plugins), lambda library, n: found if library == "plugins" else None)[name]
    assert one.state == state
    if state == "in-binary":
        assert one.remarks == () and (one.readers[-1].library, one.readers[-1].where) == ("plugin", found)
    if state == "unknown":
        assert {r.severity for r in one.remarks} <= {"note"}


def test_a_name_in_no_table_is_never_called_unread():
    one = look({"NCCL_IBX_DISABLE_NOW": "1"})["NCCL_IBX_DISABLE_NOW"]
    assert one.state == "unknown" and said(one, "note") == "nccl 2.27.7 does not read it, a plugin or another build of NCCL may"


ROCM = Place(libraries={"torch": "2.9.1+rocm6.4", "rccl": ""})


@for_each(
    ("name", "state"),
    [
        *((n, "read") for n in ("NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_MIN_NCHANNELS", "NCCL_GDR_FLUSH_DISABLE")),
        ("NCCL_RINGS", "in-binary"),
        ("NCCL_TIMEOUT", "in-binary"),
    ],
)
@for_each("where", ["librccl.so", None])
def test_rccl_reads_what_stands_in_it(name, state, where):
    one = look({name: "200"}, ROCM, lambda library, n: where if library == "rccl" else None)[name]
    assert one.state == (state if where else "not-read" if name == "NCCL_TIMEOUT" else "unknown") and one.now == ""
    if one.state == "not-read":
        return
    # Its defaults, ranges and releases are not NCCL's.
    assert not [r for r in one.remarks if r.kind in ("value", "renamed", "not-read", "typo") and r.severity != "note"]


def test_an_nccl_that_is_not_known_is_no_nccl_that_does_not_read():
    place = Place(libraries={"torch": "2.5.1", "nccl": ""})
    judged = look({"NCCL_DEBUG": "INFO", "NCCL_MNNVL": "1", "NCCL_GIN_TYPE": "3", "NCCL_ANYTHING": "1", "NCCL_TIMEOUT": "1"}, place)
    assert {n: j.state for n, j in judged.items()} == {
        "NCCL_DEBUG": "unknown", "NCCL_MNNVL": "unknown", "NCCL_GIN_TYPE": "unknown", "NCCL_ANYTHING": "unknown", "NCCL_TIMEOUT": "not-read",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "libraries", "now", "severity"),
    [
        ("NCCL_MIN_NCHANNELS", "16", HERE, "NCCL_MIN_CTAS", "warning"),
        ("NCCL_MIN_NCHANNELS", "128", HERE, "", "warning"),
        ("NCCL_MAX_NRINGS", "$N", HERE, "", "warning"),
        ("NCCL_MIN_NCHANNELS", "16", {"torch": "2.5.1", "nccl": ""}, "", "note"),
        ("NCCL_MIN_NCHANNELS", "16", {"torch": "2.13.0+cpu"}, "", "note"),
        ("NCCL_MIN_NCHANNELS", "16", {"torch": "2.9.1+rocm6.4", "rccl": ""}, "", None),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "$N", HERE, "TORCH_FR_BUFFER_SIZE", "warning"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "16", {}, "", "note"),
    ],
)
def test_a_new_name_is_only_given_where_it_is_read_and_takes_the_value(name, value, libraries, now, severity):
    one = look({name: value}, Place(libraries=libraries), lambda library, n: "librccl.so" if library == "rccl" else None)[name]
    assert one.now == now
    assert [r.severity for r in one.remarks if r.kind == "renamed"] == ([severity] if severity else [])
    if value == "128":
        assert "the new name takes 1…64, and not '128'" in said(one)


@for_each(
    ("settings", "errors"),
    [
        ({"NNODES": "1:4"}, ()),
        ({"NNODES": "1:4", "NODE_RANK": "2"}, ()),
        ({"NNODES": "1:4", "NODE_RANK": "4"}, ("NODE_RANK",)),
        ({"NNODES": "4", "NODE_RANK": "4"}, ("NODE_RANK",)),
        ({"NNODES": "2", "NODE_RANK": "5x"}, ()),
        ({"NNODES": "abc"}, ()),
        ({"PET_NNODES": "1:4"}, ()),
        ({"PET_NNODES": "4:1"}, ("PET_NNODES",)),
        ({"PET_NNODES": "abc"}, ("PET_NNODES",)),
    ],
)
def test_elastic_ranges_of_hosts(settings, errors):
    judged = look(settings, Place(libraries={"torch": "2.9.1"}), lambda library, n: "x.py")
    assert tuple(n for n, j in judged.items() if said(j, "error")) == errors


def test_llamafactory_takes_no_range():
    assert "LLaMA-Factory since 0.9.3 wants a number" in said(look({"NNODES": "1:4"})["NNODES"], "note")
    assert said(look({"NNODES": "abc"})["NNODES"], "error")


def test_torch_names_some_of_nccls_only_to_log_them():
    judged = look({"NCCL_IB_TIMEOUT": "22"}, Place(libraries={"torch": "2.13.0+cpu"}))["NCCL_IB_TIMEOUT"]
    assert judged.state == "not-here" and [r.answer for r in judged.readers] == ["logs"]


BEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
HOST = Place(
    libraries=HERE,
    interfaces=("bond0", "eth0", "lo", "unplugged"),
    running=("bond0", "eth0", "lo"),
    adapters=("mlx5_0", "mlx5_1", "mlx5_10"),
    gpus=8,
    installed=8,
)


@for_each(
    ("settings", "name", "words"),
    [
        ({"NCCL_SOCKET_IFNAME": "ens5"}, "NCCL_SOCKET_IFNAME", "no interface ens5"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "NCCL_SOCKET_IFNAME", "no interface eth"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, "NCCL_SOCKET_IFNAME", ""),
        ({"NCCL_SOCKET_IFNAME": "^docker"}, "NCCL_SOCKET_IFNAME", ""),
        ({"GLOO_SOCKET_IFNAME": "eth"}, "GLOO_SOCKET_IFNAME", "no interface eth"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, "GLOO_SOCKET_IFNAME", ""),
        ({"GLOO_SOCKET_IFNAME": "unplugged"}, "GLOO_SOCKET_IFNAME", ""),
        ({"NCCL_SOCKET_IFNAME": "unplugged"}, "NCCL_SOCKET_IFNAME", "no interface unplugged that is up with an address"),
        ({"NCCL_IB_HCA": "mlx5_1"}, "NCCL_IB_HCA", "takes mlx5_1, mlx5_10 and leaves mlx5_0 unused"),
        ({"NCCL_IB_HCA": "=mlx5_0:1"}, "NCCL_IB_HCA", "leaves mlx5_1, mlx5_10 unused"),
        ({"NCCL_IB_HCA": "mlx5"}, "NCCL_IB_HCA", ""),
        ({"NCCL_IB_HCA": "^mlx5_1"}, "NCCL_IB_HCA", ""),
        ({"NCCL_IB_HCA": "roce"}, "NCCL_IB_HCA", "none of the adapters"),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_9,mlx5_10"}, "NCCL_IB_HCA", "there is no mlx5_9 here: mlx5_0, mlx5_1, mlx5_10"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,9,2"}, "CUDA_VISIBLE_DEVICES", "no GPU 9 among the 8 of this host: CUDA shows the 2 before it"),
        ({"CUDA_VISIBLE_DEVICES": "0,7"}, "CUDA_VISIBLE_DEVICES", ""),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1f"}, "CUDA_VISIBLE_DEVICES", ""),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES", "hides all 8"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE", "counts hosts"),
        ({"WORLD_SIZE": "16", "RANK": "0", "LOCAL_RANK": "0"}, "WORLD_SIZE", ""),
        ({"WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0"}, "RANK", "the start fails, or ends when the store's timeout"),
        ({"FORCE_TORCHRUN": "1", "NNODES": "2", "RANK": "0", "MASTER_PORT": "29500"}, "RANK", "NODE_RANK"),
        ({"FORCE_TORCHRUN": "1", "NNODES": "2", "NODE_RANK": "0"}, "NNODES", "random port"),
        ({"NCCL_IB_DISABLE": "1", "NCCL_NET": "IB"}, "NCCL_NET", "fails"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, "NCCL_P2P_LEVEL", "no effect"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, "NCCL_SHM_DISABLE", "over the network"),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "NET"}, "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG=INFO"),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "NET"}, "NCCL_DEBUG_SUBSYS", ""),
        ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}, "NCCL_NSOCKS_PERTHREAD", "more than 64"),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "0"}, "TORCH_NCCL_DUMP_ON_TIMEOUT", "nothing to write"),
        ({"TORCH_FR_BUFFER_SIZE": "5", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, "TORCH_NCCL_TRACE_BUFFER_SIZE", "set as well"),
        ({"NCCL_MAX_CTAS": "8", "NCCL_MAX_NCHANNELS": "4"}, "NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS=8 is set as well: NCCL takes the smaller"),
        ({BEAT: "10", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "60000"}, BEAT, "before it is written"),
        ({BEAT: "480", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "60000"}, BEAT, ""),
        ({"WORLD_SIZE": "16", "RANK": "0"}, "WORLD_SIZE", ""),
        ({"WORLD_SIZE": "8", "RANK": "0", "NNODES": "8"}, "WORLD_SIZE", "counts hosts"),
        ({"NCCL_IB_TIMEOUT": "25"}, "NCCL_IB_TIMEOUT", "given up after 600 s"),
        ({"NCCL_IB_TIMEOUT": "22"}, "NCCL_IB_TIMEOUT", ""),
    ],
)  # fmt: skip
def test_several_together(settings, name, words):
    found = [r.says for r in look(settings, HOST)[name].remarks if r.kind in ("contradiction", "host")]
    assert (any(words in f for f in found)) if words else not found


@pytest.mark.parametrize("settings", [{"NCCL_SOCKET_IFNAME": "ens5"}, {"GLOO_SOCKET_IFNAME": "ib7"}, {"CUDA_VISIBLE_DEVICES": "0,9"}])
def test_what_another_host_may_have_is_a_note(settings):
    """A file is meant for a host that need not be the one it is looked at on."""
    for host, severity in ((HOST, "error"), (replace(HOST, is_this_host=False), "note")):
        (judged,) = look(settings, host).values()
        assert [r.severity for r in judged.remarks if r.kind == "host"] == [severity]


@pytest.mark.parametrize(
    ("place", "severities"),
    [
        (Place(libraries=HERE, adapters=()), ["warning"]),  # none on this host
        (Place(libraries=HERE, adapters=("mlx5_9",)), []),  # all that there are
        (Place(libraries=HERE), ["warning"]),  # not known: one prefix takes a part of several
    ],
)
def test_adapters_are_told_by_what_the_host_has(place, severities):
    remarks = look({"NCCL_IB_HCA": "mlx5_9"}, place)["NCCL_IB_HCA"].remarks
    assert [r.severity for r in remarks] == severities
    assert not remarks or ("no RDMA adapter, and so no mlx5_9" if place.adapters == () else "one prefix") in remarks[0].says


def test_without_adapters_nothing_is_lost_without_infiniband():
    assert look({"NCCL_IB_DISABLE": "1"}, Place(libraries=HERE, adapters=()))["NCCL_IB_DISABLE"].remarks == ()


def test_a_script_that_names_adapters_is_not_for_a_host_without_any():
    seen = variables.Variables(settings=(), names=(), libraries=HERE, interfaces=None, adapters=(), gpus=None)
    assert (place(seen).adapters, place(seen, is_this_host=False).adapters) == ((), None)


def test_nothing_is_held_against_variables_of_libraries_that_are_not_installed():
    here = Place(libraries={"torch": "2.13.0+cpu", "transformers": "5.23.0"})
    judged = look(dict.fromkeys(all_names()), here, scan=lambda library, name: "")
    others = {n: j for n, j in judged.items() if n not in entries() and table().readers(n) - here.libraries.keys()}
    assert "ACCELERATE_ALLOW_CP_STANDALONE" in others
    assert {j.state for j in others.values()} <= {"not-here", "read", "logged", "in-binary", "foreign"}
    assert not [r for j in others.values() for r in j.remarks]


@pytest.mark.parametrize(("name", "value", "shown"), [("OMP_NUM_THREAD", "4", "4"), ("NCCL_PKS", "abc", None), ("WOLRD_SIZE", None, None)])
def test_the_value_of_a_misspelt_name_is_shown_unless_it_may_be_a_credential(name, value, shown):
    assert typo_outside(Setting(name=name, value=value, source="environment")).value == shown


def test_torchruns_names_have_a_nearest_one():
    for scan in (nothing, lambda library, name: ""):
        one = look({"TORCHELASTIC_MAX_RESTART": "3"}, Place(libraries={"torch": "2.13.0+cpu"}), scan)["TORCHELASTIC_MAX_RESTART"]
        assert said(one, "warning").endswith("TORCHELASTIC_MAX_RESTARTS")


def test_a_timeout_of_the_trainer_beats_deepspeeds():
    option = (("ddp_timeout", "7200"),)
    assert "ddp_timeout is 7200 s" in said(look({"DEEPSPEED_TIMEOUT": "30"}, options=option)["DEEPSPEED_TIMEOUT"])
    assert "ddp_timeout" not in said(look({"DEEPSPEED_TIMEOUT": "120"}, options=option)["DEEPSPEED_TIMEOUT"])


def test_variables_of_torch_in_nccls_own_file_come_too_late():
    settings = [Setting(name=n, value="1", source="/etc/nccl.conf", line=1) for n in ("TORCH_NCCL_DESYNC_DEBUG", "NCCL_IB_MERGE_NICS")]
    late, fine = judge(settings, Place(libraries=HERE), nothing)
    assert "before" in said(late) and fine.remarks == ()


def test_thousands_of_unknown_names_take_no_time():
    begin = time.process_time()
    look({f"NCCL_IB_UNKNOWN_{i}": "1" for i in range(3000)} | {"NCCL_IB_DISABLE": "1"})
    assert time.process_time() - begin < 10


def test_secrets_have_no_value():
    assert look({"NCCL_PSK": "0123456789abcdef"})["NCCL_PSK"].value is None


@for_each(
    ("name", "value", "words"),
    [
        ("NCCL_ALGO", "Ring", ""),
        ("NCCL_ALGO", "^nvlstree,PAT", ""),
        ("NCCL_ALGO", "ring;allreduce:tree,ring;broadcast:^collnetdirect", ""),
        ("NCCL_ALGO", "Rnig", "'Rnig' is none of Tree, Ring"),
        ("NCCL_ALGO", "Ring, Tree", "' Tree' is none of"),
        ("NCCL_ALGO", "allreduce:tree;ring", "names no collective"),
        ("NCCL_ALGO", "allgather:nvls,reducescatter:nvls", "'reducescatter:nvls' is none of"),
        ("NCCL_ALGO", "all_reduce:tree", "'all_reduce' is none of Broadcast"),
        ("NCCL_ALGO", "LL128", "is none of"),
        ("NCCL_PROTO", "Simple", ""),
        ("NCCL_PROTO", "^LL128", ""),
        ("NCCL_PROTO", "allreduce:^ll128,ll", ""),
        ("NCCL_PROTO", "LL64", "'LL64' is none of LL, LL128, Simple"),
        ("NCCL_PROTO", "$P", ""),
    ],
)
def test_what_nccl_is_left_to_choose_from(name, value, words):
    errors = said(look({name: value})[name], "error")
    assert (words in errors) if words else not errors
    assert ("corrupts data" in said(look({"NCCL_PROTO": value})["NCCL_PROTO"])) is False or "128" in value


@pytest.mark.parametrize(
    ("value", "corrupts"), [("LL128", True), ("LL,LL128", True), ("allreduce:LL128", True), ("^LL128", False), ("reduce:^LL128", False)]
)
def test_a_protocol_that_is_forced(value, corrupts):
    assert ("corrupts data" in said(look({"NCCL_PROTO": value})["NCCL_PROTO"], "warning")) is corrupts


# Each tried with torch 2.13.
@for_each(
    ("value", "words"),
    [
        ("expandable_segments:True", ""),
        ("max_split_size_mb:128, expandable_segments: False", ""),
        ("garbage_collection_threshold:0.8,max_split_size_mb:20,", ""),
        ("roundup_power2_divisions:[256:1,512:2,>:8],backend:native", ""),
        ("backend:cudaMallocAsync", ""),
        ("per_process_memory_fraction:1,pinned_num_register_threads:8", ""),
        ("$CONF", ""),
        ("expandable_segments:true", "takes True or False, written so, and not 'true'"),
        ("expandable_segment:True", "no option 'expandable_segment'; the nearest is expandable_segments"),
        ("expandable_segments", "'expandable_segments' is no key:value"),
        ("max_split_size_mb=128", "is no key:value"),
        ("max_split_size_mb:128;expandable_segments:True", "is no key:value"),
        ("max_split_size_mb:10", "has to be 20 or more"),
        ("max_split_size_mb:big", "takes a whole number"),
        ("garbage_collection_threshold:80", "a share between 0 and 1"),
        ("garbage_collection_threshold:1.0", "a share between 0 and 1"),
        ("backend:cudamallocasync", "backend is one of native"),
        ("roundup_power2_divisions:3", "powers of 2, and not '3'"),
        ("roundup_power2_divisions:[256:1,512:3]", "powers of 2, and not '3'"),
    ],
)
@for_each("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_options_of_the_allocator(name, value, words):
    judged = look({name: value})[name]
    errors = said(judged, "error")
    assert judged.state == "read" and ((words in errors) if words else not errors), errors


def test_the_new_name_of_the_allocators_options():
    old = Place(libraries={"torch": "2.8.0"})
    judged = look({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, old)["PYTORCH_ALLOC_CONF"]
    assert judged.state == "not-read" and "it has it since 2.9; instead: PYTORCH_CUDA_ALLOC_CONF" in said(judged, "warning")
    assert look({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, old)["PYTORCH_CUDA_ALLOC_CONF"].state == "read"


@for_each("host_has", [None, (), ("mlx5_0", "mlx5_1", "mlx5_10")])
@for_each(("value", "words"), [("mlx5_0,mlx5_1", "prefixes"), ("mlx5_1", "prefix"), ("=mlx5_0,mlx5_1", ""), ("^mlx5_0", "")])
def test_a_list_of_adapters_in_a_pod_is_one_of_prefixes(value, words, host_has):
    text = f'spec:\n  containers:\n  - name: a\n    env:\n    - name: NCCL_IB_HCA\n      value: "{value}"\n'
    seen = variables.Variables(settings=(), names=(), libraries=HERE, interfaces=None, adapters=host_has, gpus=None)
    (judged,) = in_file(parse("pod.yaml", text), "pod.yaml", seen, nothing)
    assert (words in said(judged)) if words else "prefix" not in said(judged), said(judged)


@pytest.mark.parametrize(
    ("head", "value", "command", "hosts"),
    [
        ("#SBATCH --ntasks-per-node=8", "$SLURM_NNODES", "srun python a.py", True),
        ("#SBATCH --gpus-per-node=h100:8", "${SLURM_JOB_NUM_NODES}", "srun python a.py", True),
        ("#SBATCH -N 2 --gres=gpu:4", '"$SLURM_JOB_NUM_NODES"', "srun python a.py", True),
        ("#SBATCH --ntasks-per-node=1", "$SLURM_NNODES", "srun python a.py", False),
        ("#SBATCH --ntasks-per-node=8", "$SLURM_NTASKS", "srun python a.py", False),
        ("#SBATCH --gres=gpu:8", "$SLURM_NNODES", "torchrun --nnodes=$WORLD_SIZE --nproc-per-node 8 a.py", False),
    ],
)
def test_a_world_size_that_slurm_counts_hosts_for(head, value, command, hosts):
    parsed = parse("a.sbatch", f"#!/bin/bash\n{head}\nexport WORLD_SIZE={value}\n{command}\n")
    seen = variables.Variables(settings=(), names=(), libraries=HERE, interfaces=None, adapters=None, gpus=None)
    (judged,) = in_file(parsed, "a.sbatch", seen, nothing)
    assert ("it counts hosts" in said(judged, "error")) is hosts


NEWEST = Place(libraries={"torch": "2.15.0", "nccl": "2.30.7"})


def test_what_nccl2_does_not_read_is_said_from_torch_2_15_on():
    settings = {"TORCH_NCCL_DESYNC_DEBUG": "1", "TORCH_NCCL_BLOCKING_WAIT": "0"}
    found = look(settings, NEWEST)
    assert "nccl2, which torch 2.15.0 takes" in said(found["TORCH_NCCL_DESYNC_DEBUG"], "note")
    assert "nccl2" not in said(found["TORCH_NCCL_BLOCKING_WAIT"])
    assert "nccl2" not in said(look(settings)["TORCH_NCCL_DESYNC_DEBUG"])
    assert "nccl2" not in said(look(settings | {"TORCH_DIST_USE_NCCL2": "0"}, NEWEST)["TORCH_NCCL_DESYNC_DEBUG"])


@pytest.mark.parametrize(
    ("script", "hangs"),
    [
        ("module load rocm/7.0\nexport NCCL_NET_GDR_LEVEL=PHB\n", True),
        ("module load PrgEnv-amd rocm/7.1.1\nexport NCCL_NET_GDR_LEVEL=SYS\n", True),
        ("ml rocm\nexport NCCL_NET_GDR_LEVEL=PHB\n", True),
        ("export FI_CXI_ATS=0 NCCL_NET_GDR_LEVEL=phb\n", True),
        ("module load rocm/6.2.4\nexport NCCL_NET_GDR_LEVEL=PHB FI_CXI_ATS=0\n", False),
        ("module load rocm/7.0\nexport NCCL_NET_GDR_LEVEL=PIX\n", False),
        ("module load cuda/12.8\nexport NCCL_NET_GDR_LEVEL=PHB\n", False),
        ("# module load rocm/7.0\nexport NCCL_NET_GDR_LEVEL=PHB\n", False),
    ],
)
def test_a_distance_for_gpudirect_that_hangs_with_rocm_7(script, hangs):
    parsed = parse("train.sh", script)
    options = [(o.name, o.value) for o in parsed.options]
    found = look([(s.name, s.value) for s in parsed.settings], options=options)["NCCL_NET_GDR_LEVEL"]
    assert ("seen to hang" in said(found, "note")) == hangs
