"""What containers, clocks and file systems are judged for: each fault is found, each look-alike is not."""

from __future__ import annotations

import pytest

from unhang.facts import snapshot
from unhang.facts.host import Ran, Space
from unhang.knowledge import catalogue

GIB = 1024**3
DOCKER = {"/.dockerenv": "", "/proc/self/status": "CapEff:\t00000000a80425fb\n"}
GPU = {"/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "/sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n"}
MOUNTS = {"/proc/mounts": "/dev/sda1 / ext4 rw 0 0\nnas:/home /home nfs4 ro,vers=4.2 0 0\n"}


def found(host, cause, *subjects):
    return list(catalogue.get(cause).on_host(snapshot.take(host, only=subjects)))


def test_a_container_without_its_gpus(machine):
    (one,) = found(machine(DOCKER | GPU), "container-capability", "container")
    assert one.says == "this container has no /dev/nvidiactl, and the machine has 1 NVIDIA GPU"
    assert one.remedies[0].command == "docker run --gpus all IMAGE"


def test_the_command_is_that_of_the_runtime(machine):
    host = machine(DOCKER | GPU, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    (one,) = found(host, "container-capability", "container")
    assert one.remedies[0].command == "kubectl set resources deployment NAME --limits=nvidia.com/gpu=8"


@pytest.mark.parametrize(
    ("files", "environ", "says"),
    [
        ({"/dev/nvidiactl": "", "/dev/nvidia0": ""}, {}, "/dev/nvidiactl is here and /dev/nvidia-uvm is not"),
        (
            {"/dev/nvidiactl": "", "/dev/nvidia-uvm": ""},
            {"NVIDIA_DRIVER_CAPABILITIES": "utility"},
            "NVIDIA_DRIVER_CAPABILITIES=utility leaves out compute",
        ),
        (
            {"/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/sys/class/infiniband/mlx5_0": None, "/sys/class/infiniband/mlx5_1": None},
            {},
            "no usable /dev/infiniband/uverbs* is in this container, and the machine has 2 RDMA adapters",
        ),
    ],
)
def test_what_a_container_lacks(machine, files, environ, says):
    assert [f.says for f in found(machine(DOCKER | GPU | files, environ=environ), "container-capability", "container")] == [says]


@pytest.mark.parametrize(
    "files",
    [
        # A container for the CPU on a machine without GPUs, a whole one, and a machine that is none.
        DOCKER,
        DOCKER | GPU | {"/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/dev/nvidia0": ""},
        GPU | {"/sys/class/infiniband/mlx5_0": None},
    ],
)
def test_what_is_right_is_not_told(machine, files):
    environ = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    assert found(machine(files, environ=environ), "container-capability", "container") == []


@pytest.mark.parametrize(("files", "reached"), [({"/dev/dxg": ""}, True), ({}, False)])
def test_wsl(machine, files, reached):
    host = machine({"/proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"} | files)
    (one,) = found(host, "wsl-limits", "container")
    assert (one.severity, "no GPU reaches it" not in one.says) == ("note", reached)
    assert found(machine({"/proc/sys/kernel/osrelease": "6.8.0-45-generic\n"}), "wsl-limits", "container") == []


def clocked(machine, status, *, ahead_s=0.0, now_s=1_800_000_000.0):
    host = machine({"/proc/700/comm": "chronyd\n"}, now_s=now_s)
    host.clock = (status, 0.01)
    said = f"System time     : {abs(ahead_s):.9f} seconds {'fast' if ahead_s > 0 else 'slow'} of NTP time\n"
    host.commands["chronyc", "-n", "tracking"] = Ran(exitcode=0, out=said, err="")
    return [(f.severity, f.says) for f in found(host, "clock-skew", "clock")]


def test_clocks(machine):
    assert clocked(machine, 0x2001, ahead_s=0.002) == []
    assert clocked(machine, 0x2001, ahead_s=-7.5) == [("warning", "the clock is 7.5 s behind, as chrony measures")]
    assert clocked(machine, 0x40) == [("note", "nothing keeps this machine's clock synchronised, although chronyd runs")]
    assert clocked(machine, 0x2001, now_s=86_400.0) == [("error", "this machine believes that it is 1970-01-02")]


def stored(machine, cause, *, free=100 * GIB, free_inodes=10**6, files=None, environ=None):
    here = {"PWD": "/work", "HOME": "/root", **(environ or {})}
    host = machine(MOUNTS | {"/work": None, "/tmp": None, "/root": None, "/home": None} | (files or {}), environ=here)
    host.space = lambda path: Space(total_bytes=1000 * GIB, free_bytes=free, inodes=10**7, free_inodes=free_inodes)
    return found(host, cause, "storage")


@pytest.mark.parametrize(("free", "severity"), [(100 * 1024**2, "error"), (GIB, "warning")])
def test_a_full_disk_is_told_once(machine, free, severity):
    (one,) = stored(machine, "disk-full", free=free)
    assert one.severity == severity
    assert one.says.startswith("/work (working directory, on /) has ")
    assert one.remedies[0].command.startswith("df -h /work; df -i /work; du -xh --max-depth=2 /")


def test_a_disk_without_inodes(machine):
    (one,) = stored(machine, "disk-full", free_inodes=3)
    assert "3 of 10000000 inodes free" in one.says


def test_a_disk_with_room(machine):
    assert stored(machine, "disk-full", free=50 * GIB) == []
    assert stored(machine, "filesystem-shared") == []


def test_caches_that_hosts_share(machine):
    (one,) = stored(machine, "filesystem-shared", environ={"TRITON_CACHE_DIR": "/home/u/triton"})
    assert (one.severity, one.says) == ("note", "/home/u/triton (Triton cache, nfs4 nas:/home) is on a network file system")


def test_a_file_system_that_is_gone(machine):
    def space(path):
        if path.startswith("/home"):
            raise OSError(116, "Stale file handle")
        return Space(total_bytes=1000 * GIB, free_bytes=100 * GIB, inodes=0, free_inodes=0)

    host = machine(MOUNTS | {"/home/u": None, "/tmp": None}, environ={"PWD": "/home/u", "HOME": "/tmp"})
    host.space = space
    (one,) = found(host, "filesystem-shared", "storage")
    assert (one.severity, one.says) == ("error", "/home/u (working directory, nfs4 nas:/home): a stale file handle")
    assert one.remedies[0].command == "timeout 10 stat -f /home/u || echo dead; findmnt -T /home/u"
