import subprocess
import threading
import types

import pynvml
import pytest
from tests.hosts.nvml import LOST, NOT_SUPPORTED, Nvml, card, fabric, links
from tests.hosts.part import GIB

from unhang.facts import gpu, snapshot, snapshot_file
from unhang.facts.host import Host, NotHere, Ran

METAL = {"/proc/cpuinfo": "flags\t\t: fpu sse2\n"}


def on_the_bus(*addresses, kind="0x030200", driver="nvidia"):
    files = {}
    for address in addresses:
        at = f"/sys/devices/pci0000:{address[5:7]}/{address}"
        files |= {f"{at}/class": f"{kind}\n", f"{at}/vendor": "0x10de\n", f"{at}/device": "0x2330\n", f"{at}/numa_node": "0\n"}
        files |= {f"{at}/driver": f"-> ../../../bus/pci/drivers/{driver}"} if driver else {}
        files[f"/sys/bus/pci/devices/{address}"] = f"-> ../../../devices/pci0000:{address[5:7]}/{address}"
    return files


MODULE = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n"}


def test_eight_gpus_at_nvswitches(machine):
    buses = (0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xBB, 0xCB, 0xDB)
    addresses = [f"0000:{b:02x}:00.0" for b in buses]
    switches = on_the_bus("0000:05:00.0", "0000:06:00.0", kind="0x068000", driver="nvidia-nvswitch")
    procs = {"/proc/2/comm": "kthreadd\n", "/proc/811/comm": "nv-fabricmanage\n", "/usr/bin/nv-fabricmanager": ""}
    host = machine(on_the_bus(*addresses) | switches | procs | MODULE, environ={"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "0,1"})
    host.path("/usr/bin/nv-fabricmanager").chmod(0o755)
    host.commands["nv-fabricmanager", "--version"] = Ran(exitcode=0, out="Fabric Manager version is : 570.86.15\n", err="")
    host.nvml_answers = Nvml(*(card(b, **links(18), **fabric(3)) for b in buses))
    seen = gpu.collect(host)
    assert [g.address for g in seen.gpus] == addresses
    assert {p.link for p in seen.pairs} == {"NV18"} and len(seen.pairs) == 28 and {p.p2p for p in seen.pairs} == {"ok"}
    one = seen.gpus[0]
    assert (one.compute_capability, one.memory_total_bytes, one.compute_mode, one.fabric, one.fabric_error, one.fabric_degraded, one.recovery) == (
        "9.0",
        80 * GIB,
        "default",
        "completed",
        None,
        False,
        "none",
    )
    assert len(one.nvlinks) == 18
    assert (one.nvlinks[0].remote_kind, one.nvlinks[0].speed_mb_per_s) == ("switch", 26562)
    assert (seen.driver, seen.open_module, seen.nvml_driver, seen.cuda, seen.visible) == ("570.86.15", True, "570.86.15", "12.8", "0,1")
    assert (seen.nvswitches, seen.fabric_manager) == (("0000:05:00.0", "0000:06:00.0"), gpu.FabricManager(running=True, version="570.86.15"))
    assert (seen.nvml_error, seen.unread, host.nvml_answers.shut) == (None, (), 1)
    assert gpu.SUBJECT.summary(seen) == "8 x NVIDIA H100 80GB HBM3 (80 GiB); driver 570.86.15, CUDA 12.8; joined by NV18"


def test_what_is_not_supported_is_unknown(machine):
    host = machine()
    host.nvml_answers = Nvml({"nvmlDeviceGetName": "NVIDIA GeForce GTX 1080"})
    (one,) = gpu.collect(host).gpus
    assert one.error is None
    assert (one.ecc, one.ecc_volatile_uncorrected, one.mig, one.remap_pending, one.slowdowns, one.processes, one.fabric, one.nvlinks) == (
        None,
    ) * 7 + ((),)
    assert snapshot.take(host, only=["gpu"]).parts["gpu"].state == "read"


def test_the_state_of_one(machine):
    counts = {(0, 0): 12, (1, 0): 2, (0, 1): 40, (1, 1): 5}
    process = types.SimpleNamespace(pid=4711, usedGpuMemory=None)
    host = machine()
    host.nvml_answers = Nvml(
        card(
            0x3B,
            nvmlDeviceGetMigMode=[1, 1],
            nvmlDeviceGetCurrentClocksEventReasons=NOT_SUPPORTED,
            nvmlDeviceGetEccMode=[1, 1],
            nvmlDeviceGetTotalEccErrors=lambda kind, counter: counts[kind, counter],
            nvmlDeviceGetRemappedRows=(3, 1, 1, 0),
            nvmlDeviceGetRetiredPagesPendingStatus=0,
            nvmlDeviceGetCurrentClocksThrottleReasons=0x40 | 0x4,
            nvmlDeviceGetComputeMode=3,
            nvmlDeviceGetComputeRunningProcesses=pynvml.NVMLLibraryMismatchError("older driver"),
            nvmlDeviceGetComputeRunningProcesses_v2=[process],
            nvmlDeviceGetUtilizationRates=types.SimpleNamespace(gpu=99, memory=1),
        ),
        nvmlSystemGetProcessName="/usr/bin/python3",
    )
    (one,) = gpu.collect(host).gpus
    assert (one.mig, one.ecc, one.compute_mode, one.utilization_percent, one.retirement_pending) == (
        True,
        True,
        "exclusive-process",
        99,
        False,
    )
    assert (one.ecc_volatile_uncorrected, one.ecc_aggregate_uncorrected) == (2, 5)
    assert (one.remapped_rows_corrected, one.remapped_rows_uncorrected, one.remap_pending, one.remap_failed) == (3, 1, True, False)
    assert one.slowdowns == ("power-cap", "heat")
    assert [(p.pid, p.kind, p.name, p.used_bytes) for p in one.processes] == [(4711, "compute", "/usr/bin/python3", None)]


@pytest.mark.parametrize(("refusal", "instances"), [(pynvml.NVML_ERROR_NOT_FOUND, 2), (pynvml.NVML_ERROR_NO_PERMISSION, None)])
def test_slices_are_counted_only_where_all_can_be_asked(machine, refusal, instances):
    def by_index(index):
        if index not in (0, 3):
            raise pynvml.NVMLError(refusal)
        return {}

    host = machine()
    mode = {"nvmlDeviceGetMigMode": [1, 1], "nvmlDeviceGetMaxMigDeviceCount": 7, "nvmlDeviceGetMigDeviceHandleByIndex": by_index}
    host.nvml_answers = Nvml(card(1, **mode), card(2, nvmlDeviceGetMigMode=[1, 1]), card(3, nvmlDeviceGetMigMode=[0, 0]))
    assert [g.mig_instances for g in gpu.collect(host).gpus] == [instances, None, None]


@pytest.mark.parametrize("gone", [LOST, card(0x5D, nvmlDeviceGetTemperature=LOST)])
def test_one_that_is_lost_hides_no_other(machine, gone):
    host = machine(on_the_bus("0000:3b:00.0", "0000:5d:00.0", "0000:9b:00.0") | MODULE)
    host.nvml_answers = Nvml(card(0x3B), gone, card(0x9B))
    seen = gpu.collect(host)
    assert [(g.index, g.address, g.error) for g in seen.gpus] == [
        (0, "0000:3b:00.0", None),
        (1, "0000:5d:00.0", "GPU is lost"),
        (2, "0000:9b:00.0", None),
    ]
    assert seen.unread == ("GPU 1: GPU is lost",)
    assert gpu.SUBJECT.summary(seen).endswith("1 cannot be reached")


def test_two_consumer_cards(machine):
    host = machine(on_the_bus("0000:01:00.0", "0000:01:00.1", kind="0x030000"))
    host.nvml_answers = Nvml(card(1, "NVIDIA GeForce RTX 4090"), card(2, "NVIDIA GeForce RTX 4090"), p2p=1)
    (pair,) = gpu.collect(host).pairs
    assert (pair.link, pair.p2p) == (None, "chipset not supported")


def test_direct_nvlinks_are_counted_by_their_other_end(machine):
    host = machine()
    host.nvml_answers = Nvml(
        card(0x3B, **links(4, kind=0, remote="00000000:5D:00.0", down=(3,))),
        card(0x5D, **links(4, kind=0, remote="00000000:3B:00.0", down=(3,))),
        card(0x9B),
    )
    seen = gpu.collect(host)
    assert [p.link for p in seen.pairs] == ["NV3", None, None]
    assert [line.split() for line in gpu.SUBJECT.details(seen)] == [
        ["GPU0", "GPU1", "GPU2"],
        ["GPU0", "X", "NV3", "?"],
        ["GPU1", "NV3", "X", "?"],
        ["GPU2", "?", "?", "X"],
    ]


def test_one_whose_links_to_the_switches_are_down_is_not_joined(machine):
    host = machine()
    host.nvml_answers = Nvml(card(0x3B, **links(18)), card(0x5D, **links(18, down=range(18))))
    assert [p.link for p in gpu.collect(host).pairs] == [None]


@pytest.mark.parametrize(
    ("state", "status", "fabric_state", "error"),
    [(0, 0, None, None), (1, 0, "not-started", None), (2, 0, "in-progress", None), (3, 999, "completed", "NVML error 999")],
)
def test_states_of_the_fabric(machine, state, status, fabric_state, error):
    host = machine()
    host.nvml_answers = Nvml(card(1, **fabric(state, status)))
    (one,) = gpu.collect(host).gpus
    assert (one.fabric, one.fabric_error) == (fabric_state, error)


class Refusing(Host):
    def nvml(self):
        raise OSError(str(pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)))


def test_libraries_of_another_version(machine):
    files = on_the_bus("0000:3b:00.0") | {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.183.01": "",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01": "",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1": "-> libcuda.so.535.183.01",
        "/usr/lib64": "-> lib/x86_64-linux-gnu",
    }
    seen = gpu.collect(Refusing(machine(files).root))
    assert (seen.driver, seen.open_module) == ("535.104.05", False)
    assert "version mismatch" in seen.nvml_error
    assert [(lib.name, lib.version) for lib in seen.libraries] == [("libcuda", "535.183.01"), ("libnvidia-ml", "535.183.01")]


def test_without_nvml_the_kernel_tells(machine):
    at = "/sys/devices/pci0000:3b/0000:3b:00.0"
    files = on_the_bus("0000:3b:00.0") | METAL | MODULE
    files |= {f"{at}/current_link_width": "4\n", f"{at}/max_link_width": "16\n"}
    files["/proc/driver/nvidia/gpus/0000:3b:00.0/information"] = (
        "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 40\nGPU UUID: \t GPU-aaaaaaaa-1111\nBus Location: \t 0000:3b:00.0\nDevice Minor: \t 3\n"
    )
    seen = gpu.collect(machine(files))
    (one,) = seen.gpus
    assert (one.name, one.uuid, one.minor, one.address, one.pcie_width, one.pcie_width_max, one.memory_total_bytes) == (
        "NVIDIA A100-SXM4-80GB",
        "GPU-aaaaaaaa-1111",
        3,
        "0000:3b:00.0",
        4,
        16,
        None,
    )
    assert seen.unread[0].startswith("the state of the GPUs (NVML:")
    assert seen.kernel_drivers == {"0000:3b:00.0": "nvidia"}


def test_a_driver_that_hangs_is_not_waited_for(machine, monkeypatch):
    over = threading.Event()

    class Hanging(Host):
        def nvml(self):
            over.wait(30)
            raise OSError("late")

    monkeypatch.setattr(gpu, "_NVML_S", 0.05)
    seen = gpu.collect(Hanging(machine(on_the_bus("0000:3b:00.0") | MODULE).root))
    over.set()
    assert seen.nvml_error == "no answer within 0.05 s"
    assert [g.address for g in seen.gpus] == ["0000:3b:00.0"]


def test_no_gpu(machine):
    with pytest.raises(NotHere, match="no NVIDIA GPU on the PCI bus, no NVIDIA driver in /proc and /sys, and no libnvidia-ml"):
        gpu.collect(machine({"/sys/class": None}))
    with pytest.raises(FileNotFoundError, match="/sys is not mounted"):
        gpu.collect(machine({"/proc/cpuinfo": ""}))


@pytest.mark.parametrize("text", ["", "NVRM version:\n", "\x00\xff Kernel Module", "NVRM version: Kernel Module one.two"])
def test_damaged_files_are_survived(machine, text):
    files = on_the_bus("0000:3b:00.0", driver=None) | {"/proc/driver/nvidia/version": text, "/proc/driver/nvidia/gpus/x/information": text}
    seen = gpu.collect(machine(files))
    assert seen.driver is None and seen.kernel_drivers == {"0000:3b:00.0": None}


def test_a_snapshot_of_it_is_read_back(machine):
    host = machine(on_the_bus("0000:3b:00.0", "0000:5d:00.0") | MODULE)
    host.nvml_answers = Nvml(card(0x3B, **links(18), **fabric(3)), card(0x5D, **links(18)))
    taken = snapshot.take(host, only=["gpu", "pcie"])
    assert snapshot_file.decode(snapshot_file.encode(taken), name="x") == taken


def test_this_machine():
    try:
        assert gpu.collect(Host()).gpus
    except NotHere as e:
        assert "no NVIDIA GPU" in str(e)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([1], "GPU 1"), ([3, 1], "GPUs 1 and 3"), (range(8), "GPUs 0 to 7"), ([0, 1, 4], "GPUs 0, 1 and 4"), ([1, 2, 2**62], f"GPUs 1, 2 and {2**62}")],
)
def test_numbers_in_words(numbers, said):
    assert gpu.named(numbers) == said


def test_a_program_whose_name_is_no_utf8(machine):
    host = machine(MODULE)
    odd = UnicodeDecodeError("utf-8", b"\xd5", 0, 1, "invalid continuation byte")
    process = types.SimpleNamespace(pid=811, usedGpuMemory=GIB)
    host.nvml_answers = Nvml(card(0x3B, nvmlDeviceGetComputeRunningProcesses=[process]), nvmlSystemGetProcessName=odd)
    (one,) = gpu.collect(host).gpus
    assert [(p.pid, p.name) for p in one.processes] == [(811, None)]


def test_one_of_which_nothing_is_told_is_not_called_healthy(machine):
    host = machine(MODULE)
    host.nvml_answers = Nvml({})
    assert gpu.collect(host).unread == ("GPU 0: NVML tells neither its name nor its memory",)


@pytest.mark.gpu
def test_real_ones_are_what_nvidia_smi_shows():
    asked = ["nvidia-smi", "--query-gpu=index,name,pci.bus_id,driver_version,memory.total,uuid", "--format=csv,noheader,nounits"]
    shown = [line.split(", ") for line in subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()]
    seen = gpu.collect(Host())
    assert seen.nvml_error is None
    assert [(str(g.index), g.name, g.uuid) for g in seen.gpus] == [(index, name, uuid) for index, name, _, _, _, uuid in shown]
    assert [g.address for g in seen.gpus] == [bus.lower()[-12:] for _, _, bus, _, _, _ in shown]
    assert {seen.nvml_driver} == {driver for _, _, _, driver, _, _ in shown}
    assert all(abs(g.memory_total_bytes // 1024**2 - int(total)) <= 1 for g, (_, _, _, _, total, _) in zip(seen.gpus, shown, strict=True))
    assert all(g.error is None and g.compute_capability and g.pcie_width for g in seen.gpus)
