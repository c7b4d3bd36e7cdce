"""Hosts as files and schedulers write them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess

import pytest

from unhang.errors import UnhangError
from unhang.hosts import hostlist

FILES = {
    "node1\nnode2\n": [("node1", None), ("node2", None)],
    "# ours\nnode1 slots=8   # DeepSpeed\nnode2 slots = 4 max_slots=8\n": [("node1", 8), ("node2", 4)],
    "node1:8\nnode2:4\n": [("node1", 8), ("node2", 4)],
    "ann@10.0.0.1\n\n10.0.0.2\r\n": [("10.0.0.1", None), ("10.0.0.2", None)],
    "node[08-10] slots=2": [("node08", 2), ("node09", 2), ("node10", 2)],
}
NAMES = {
    "a,b": ["a", "b"],
    "node[1-3,7],login": ["node1", "node2", "node3", "node7", "login"],
    "n[01-03]": ["n01", "n02", "n03"],
    "r[1-2]n[1-2].x": ["r1n1.x", "r1n2.x", "r2n1.x", "r2n2.x"],
    "gpu-a100-[9-11]": ["gpu-a100-9", "gpu-a100-10", "gpu-a100-11"],
}
WRONG = ["", ",", "a,a", "node[3-1]", "node[x]", "-oProxyCommand=x", "a;b", "a b", "$(x)", "n[1-200000]", "r[1-999]n[1-999]", "../nothere"]


@pytest.mark.parametrize("text", FILES)
def test_files(tmp_path, text):
    (tmp_path / "hosts").write_bytes(text.encode())
    assert [(h.name, h.slots) for h in hostlist.read(str(tmp_path / "hosts"), {})] == FILES[text]


def test_names():
    for text, names in NAMES.items():
        assert [h.name for h in hostlist.read(text, {})] == names
        assert [h.name for h in hostlist.read("slurm", {"SLURM_JOB_NODELIST": text})] == names


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("scontrol") is None, reason="there is no Slurm here")
def test_slurm_reads_them_in_the_same_way():
    for text, names in NAMES.items():
        told = subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True)
        assert told.returncode or told.stdout.split() == names


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_host_is_refused(text):
    with pytest.raises(UnhangError):
        hostlist.read(text, {})


@pytest.mark.parametrize("text", ["node1 what\n", "node1\nnode1\n", "# nobody\n", "node 1"])
def test_lines_that_are_not_understood(tmp_path, text):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UnhangError):
        hostlist.read(str(tmp_path / "hosts"), {})


@pytest.mark.parametrize(
    "text",
    [
        "a" + "," * 900_000,
        "n[0-99999]\n" * 90_000,
        "n[0-9" + ",0-9" * 200_000 + "]",
        "n" + "[1-2]" * 5000,
        "n[" + ",".join(["0-99999"] * 249) + "]",
        "[" * 900_000,
    ],
)
def test_hostile_files_take_no_time(tmp_path, text, cpu_seconds):
    (tmp_path / "hosts").write_text(text)
    cpu_seconds(2.0)
    with contextlib.suppress(UnhangError):
        assert len(hostlist.read(str(tmp_path / "hosts"), {})) == 1
