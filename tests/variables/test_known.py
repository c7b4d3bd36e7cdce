"""Entries: complete, each once, in two languages; the nearest name; the table of releases."""

from __future__ import annotations

import re

import pytest
from tests.tables import for_each

from unhang import data
from unhang.facts import variables
from unhang.i18n import chinese
from unhang.variables.examine import all_names
from unhang.variables.known import entries, nearest
from unhang.variables.readers import Reader, table

ALL = tuple(entries().values())


def nothing(library, name):
    return None


def test_each_name_has_one_entry():
    rows = [row for name in ("nccl", "pytorch", "launchers") for row in data.table(f"variables/{name}").items()]
    assert len(entries()) == sum(1 + len(known.get("also", ())) for _, known in rows)


@for_each("variable", ALL, ids=lambda v: v.name)
def test_entry(variable):
    assert variable.what and re.search("[\u4e00-\u9fff]|^torchrun|RDMA|SHARP", variable.what.of("zh"))
    assert variables.touches(variable.name)
    for trap in variable.traps:
        re.compile(trap.when)
        assert trap.says and re.search("[\u4e00-\u9fff]", trap.says.of("zh"))
    assert not variable.now or (variable.now in entries() and variable.now_since)
    assert variable.owner != "nobody" or variable.instead


def test_every_name_of_process_groups_has_an_entry():
    """What torch reads for its groups and the flight recorder, and gloo."""
    wanted = {n for n in table().names() if re.match(r"TORCH_(?:NCCL|FR|GLOO|INCLUDE)_|GLOO_", n)}
    assert wanted - entries().keys() == set()


def test_entries_that_no_release_reads_say_so():
    for v in ALL:
        if v.owner in ("nccl", "torch") and not table().ever(v.name):
            assert v.removed or v.name in ("NCCL_PSK", "TORCH_DIST_NAN_CHECK") or not v.name.startswith(("NCCL_", "TORCH_NCCL_")), v.name
        assert v.owner != "nobody" or not table().ever(v.name), v.name


@for_each(
    ("library", "version", "name", "reads"),
    [
        ("nccl", "2.27.6", "NCCL_SOCKET_IFNAME", True),  # between two that were looked at
        ("nccl", "2.29.0", "NCCL_CHECK_MODE", None),  # its neighbours differ
        ("nccl", "2.12.0", "NCCL_DEBUG", None),  # older than all
        ("nccl", "2.33.1", "NCCL_DEBUG", None),
        ("nccl", "2.32.9", "NCCL_DEBUG", True),  # a patch of the newest
        ("nccl", "2.27.7", "NCCL_MNNVL", False),
        ("nccl", "2.27.7", "TORCH_NCCL_BLOCKING_WAIT", False),
        ("torch", "2.9.1+cu128", "NCCL_TIMEOUT", False),
        ("torch", "2.13.0+cpu", "NCCL_BLOCKING_WAIT", True),
        ("torch", "2.8.0a0+5228986c39.nv25.6", "TORCH_FR_BUFFER_SIZE", None),  # built before its release
        ("torch", "2.9.0a0+git1", "TORCH_FR_BUFFER_SIZE", True),
        ("torch", "2.15.0", "TORCH_NCCL_AVOID_RECORD_STREAMS", False),
        ("torch", "2.14.0", "TORCH_NCCL_AVOID_RECORD_STREAMS", True),
        ("accelerate", "1.2.0", "ACCELERATE_USE_GLOO", False),
        ("accelerate", "1.2.0", "ACCELERATE_USE_CPU", True),
        ("deepspeed", "0.19.8", "DEEPSPEED_TIMEOUT", True),
    ],
)
def test_releases(library, version, name, reads):
    found = table().decide(library, version, name, nothing)
    assert found is None if reads is None else isinstance(found, Reader) is reads


def test_nearest_name():
    assert nearest("NCCL_SOCKET_IFNMAE") == "NCCL_SOCKET_IFNAME"
    assert nearest("TORCH_NCCL_BLOCKING_WIAT") == "TORCH_NCCL_BLOCKING_WAIT"
    # The real one of another release is no slip.
    assert [nearest(n) for n in ("NCCL_COMPLETELY_MADE_UP_THING", "OMP_NUM_TEAMS", "NCCL_IB_DISABLE", "NCCL_MNNVL")] == [None] * 4


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCLL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("WOLRD_SIZE", "WORLD_SIZE"),
        ("MASTER_PROT", "MASTER_PORT"),
        ("MASTER_ADR", "MASTER_ADDR"),
        ("MASTER_ADDDR", "MASTER_ADDR"),
        ("LOCAL_RNAK", "LOCAL_RANK"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("CUDA_VISBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_slips_of_the_finger(name, meant):
    assert nearest(name) == meant


ORDINARY = """
LORA_RANK MIN_NODES MAX_NODES NUM_NODES MASTER_HOST MASTER_NODE MASTER_IP GLOBAL_RANK POD_RANK LOCAL_RANKS WORLD_SIZES GROUP_SIZE PROC_PER_NODE
PROCS_PER_NODE GPUS_PER_NODE MY_DEBUG HTTP_PROXY NCCL_ROOT NCCL_HOME NCCL_DIR NCCL_INCLUDE_DIR NCCL_LIB_DIR NCCL_LIBRARY NCCL_VERSION CUDA_HOME
CUDA_PATH TORCH_HOME TORCH_LOGS TORCH_CUDA_ARCH_LIST OMP_PLACES OMP_PROC_BIND PYTORCH_CUDA_ALLOC_CONF
"""


@for_each("name", ORDINARY.split())
def test_what_programs_batch_systems_and_builds_call_theirs_is_no_slip(name):
    assert nearest(name) is None


def test_all_names_touch_communication():
    assert {"NCCL_DEBUG", "NCCL_TIMEOUT", "RANK"} <= set(all_names())


def test_defaults_and_kinds_stand_in_chinese():
    """But for numbers, files, options and values."""
    same = re.compile(r"\S*[\d/.:,~]\S*|[A-Z][A-Z0-9_,]*|stdout|static|true|no|localhost|\[.*|4194304 \(4 MiB\)|(?:\S+, )+\S+|≥ -?\d+|-?\d+…\d+|")
    for v in ALL:
        for text in (v.default, v.kind.text()):
            assert same.fullmatch(text) or chinese(text, "variable"), (v.name, text)
