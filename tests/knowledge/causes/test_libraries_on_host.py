"""What is said of torch and its libraries beside the GPUs and the driver of a machine."""

from dataclasses import replace

import pytest
from tests.tables import for_each

from unhang.facts import container, gpu, libraries, nvml, python_env
from unhang.facts.container import Device
from unhang.facts.libraries import Copy, Libraries, Pin, Torch
from unhang.facts.snapshot import Part, Snapshot
from unhang.knowledge import catalogue

OURS = ("library-link", "version-mismatch", "driver-too-old", "arch-not-in-build", "gpu-newer-than-nccl")
SITE = "/env/lib/python3.11/site-packages"
TORCH = Torch(
    version="2.8.0+cu128",
    path=f"{SITE}/torch",
    cuda="12.8",
    hip=None,
    architectures=("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    nccl_inside=None,
    lacking=(),
)
OWN = Copy(name="nccl", path=f"{SITE}/torch/lib/../../nvidia/nccl/lib/libnccl.so.2", through="RPATH", version="2.27.3", cuda="12.9")
DRIVER = Copy(name="cuda", path="/usr/lib/x86_64-linux-gnu/libcuda.so.1", through="ld.so.cache", version="570.86.15")
SANE = Libraries(
    environment="/env",
    torch=TORCH,
    packages={"torch": "2.8.0", "nvidia-nccl-cu12": "2.27.3"},
    loaded=(OWN, DRIVER),
    others=(),
    broken_pins=(),
    net_plugins=(),
    net_plugin=None,
    net_plugin_lacking=False,
    preload=(),
    library_path=(),
)


def found(
    seen=SANE, *, capability="9.0", name="NVIDIA H100 80GB HBM3", count=8, driver="570.86.15", cuda="12.8", nvml_error=None, files=True, visible=None
):
    gpus = gpu.Gpus(
        driver=driver,
        open_module=False,
        nvml_driver=driver,
        nvml_error=nvml_error,
        cuda=cuda,
        gpus=tuple(nvml.Gpu(index=i, address=None, name=name, minor=i, compute_capability=capability) for i in range(count)),
        pairs=(),
        libraries=(),
        visible=visible,
        nvswitches=(),
        fabric_manager=None,
        kernel_drivers={},
    )
    around = container.Container(
        kind="bare",
        signs=(),
        capabilities=None,
        no_new_privileges=None,
        seccomp=None,
        devices=tuple(Device(path=f"/dev/nvidia{i}", usable=True) for i in range(count)) if files else (),
        nvidia_gpus_on_bus=count,
        infiniband_on_bus=0,
        nvidia_driver_capabilities=None,
        kernel=None,
    )
    facts = {libraries.SUBJECT.id: seen, gpu.SUBJECT.id: gpus, container.SUBJECT.id: around}
    snapshot = Snapshot(
        host="node7", taken="2026-11-21T00:00:00+00:00", parts={k: Part(state="read", facts=v) for k, v in facts.items() if v is not None}
    )
    assert snapshot.get(python_env.SUBJECT) is None
    return [f for id in OURS for f in catalogue.load()[id].on_host(snapshot)]


def only(*args, **more):
    (one,) = found(*args, **more)
    assert one.area == "libraries"
    return one.cause, one.severity, one.says


def torch(**changes):
    return replace(SANE, torch=replace(TORCH, **changes))


CPU = {"version": "2.8.0+cpu", "cuda": None, "architectures": None}


@for_each(
    "machine",
    [
        {},
        {"seen": None},
        {"capability": "12.0", "name": "NVIDIA GeForce RTX 5090", "count": 1},
        {"capability": "8.9", "name": "NVIDIA L40S"},
        {"capability": None, "cuda": None},
        {"driver": "525.60.13", "cuda": "12.0"},
        {"driver": "525.60.13", "cuda": None},
        {"driver": "540.4.0", "cuda": "12.6", "capability": "8.7", "name": "Orin"},
        {"driver": "35.4.1", "cuda": None, "capability": "8.7"},
        {"count": 0},
        {"seen": torch(**CPU), "count": 0},
        {"seen": torch(**CPU), "nvml_error": "no libnvidia-ml", "files": False},
        {"seen": torch(**CPU), "visible": ""},
        {"seen": torch(architectures=None)},
        {"seen": replace(SANE, loaded=(DRIVER,)), "capability": "10.0"},
        {"seen": torch(cuda="13.0"), "nvml_error": "no libnvidia-ml", "files": False, "driver": "470.57.02", "cuda": None},
    ],
)
def test_sane_machines(machine):
    assert found(machine.pop("seen", SANE), **machine) == []


@pytest.mark.parametrize("known", ["11.4", None])
def test_an_old_driver(known):
    cause, severity, says = only(driver="470.57.02", cuda=known)
    assert (cause, severity) == ("driver-too-old", "error")
    assert says == (
        f"the NVIDIA driver is 470.57.02{', which serves CUDA up to 11.4' if known else ''}; torch 2.8.0+cu128 was built for CUDA 12.8, "
        "which needs 525.60.13 or newer"
    )


def test_cuda_13_wants_its_own_driver():
    assert only(torch(cuda="13.0"), driver="575.51.03", cuda="12.9")[0] == "driver-too-old"
    assert found(torch(cuda="13.0"), driver="580.65.06", cuda="13.0") == []


def test_a_compat_package():
    compat = Copy(name="cuda", path="/usr/local/cuda/compat/libcuda.so.1", through="LD_LIBRARY_PATH", version="570.86.15")
    seen = replace(SANE, loaded=(OWN, compat))
    assert found(seen, driver="470.57.02", cuda="12.8") == []
    assert only(seen, driver="470.57.02", cuda=None, name="NVIDIA GeForce RTX 3090", capability="8.6")[:2] == ("driver-too-old", "error")
    cause, severity, says = only(seen, driver="580.65.06", cuda=None)
    assert (cause, severity) == ("library-link", "error")
    assert says == "LD_LIBRARY_PATH puts libcuda 570.86.15 (/usr/local/cuda/compat/libcuda.so.1) before the one of the driver, 580.65.06"


def test_a_stub_of_the_driver():
    stub = Copy(name="cuda", path="/usr/local/cuda/lib64/stubs/libcuda.so.1", through="LD_LIBRARY_PATH")
    assert only(replace(SANE, loaded=(OWN, stub)))[:2] == ("library-link", "error")
    assert found(replace(SANE, loaded=(OWN, stub)), count=0) == []


@pytest.mark.parametrize("through", ["LD_PRELOAD", "LD_LIBRARY_PATH"])
def test_an_older_nccl_in_front(through):
    def other(release):
        return replace(SANE, loaded=(Copy(name="nccl", path="/opt/libnccl.so.2", through=through, version=release), DRIVER), others=(OWN,))

    cause, severity, says = only(other("2.18.1"))
    assert (cause, severity) == ("library-link", "warning")
    assert says == f"{through} puts NCCL 2.18.1 (/opt/libnccl.so.2) before the NCCL 2.27.3 that torch 2.8.0+cu128 brought along"
    # A newer one is a choice, and one whose release is not known is nothing to speak of.
    assert found(other("2.28.9")) == found(other("2.27.3")) == found(other(None)) == []


def test_what_torch_lacks():
    cause, severity, says = only(torch(lacking=("libcudnn.so.9", "libcublas.so.12")))
    assert (cause, severity) == ("library-link", "error")
    assert says == "torch 2.8.0+cu128 needs libcudnn.so.9, libcublas.so.12, found neither beside it nor on the search path"


def test_a_network_plugin_that_is_not_there():
    assert only(replace(SANE, net_plugin="ofi", net_plugin_lacking=True))[:2] == ("library-link", "warning")
    assert found(replace(SANE, net_plugin="ofi")) == []


def test_pins():
    moved = Pin(package="torch", name="nvidia-nccl-cu12", wanted="2.27.3", installed="2.29.2")
    vision = Pin(package="torchvision", name="torch", wanted="2.4.0", installed="2.8.0+cu128")
    absent = Pin(package="torch", name="nvidia-nvtx-cu12", wanted="12.8.90", installed=None)
    assert found(replace(SANE, broken_pins=(absent,))) == []
    cause, severity, says = only(replace(SANE, broken_pins=(moved, absent)))
    assert (cause, severity) == ("version-mismatch", "warning")
    assert says == "torch 2.8.0 was built for other releases than the installed ones: nvidia-nccl-cu12 2.27.3, not 2.29.2"
    (one,) = found(replace(SANE, broken_pins=(vision,), packages=SANE.packages | {"torchvision": "0.19.0"}))
    assert one.says == "torchvision 0.19.0 was built for other releases than the installed ones: torch 2.4.0, not 2.8.0+cu128"


def test_a_wheel_whose_library_was_replaced():
    seen = replace(SANE, loaded=(replace(OWN, version="2.29.2"), DRIVER))
    assert only(seen)[2] == "nvidia-nccl-cu12 2.27.3 is recorded, and its library is NCCL 2.29.2"
    # Wheels are released anew under a fourth number.
    assert found(replace(SANE, packages={"nvidia-nccl-cu12": "2.27.3.1"})) == []


def test_a_cpu_build_beside_gpus():
    cause, severity, says = only(torch(**CPU))
    assert (cause, severity) == ("arch-not-in-build", "warning")
    assert says == "torch 2.8.0+cpu is a build without CUDA, and this machine has 8 NVIDIA H100 80GB HBM3"


@for_each(
    ("capability", "architectures", "runs"),
    [
        ("8.6", ("sm_80",), True),
        ("8.0", ("sm_86",), False),
        ("9.0", ("sm_80", "sm_86"), False),
        ("9.0", ("sm_80", "compute_80"), True),
        ("9.0", ("sm_90a",), True),
        ("10.0", ("sm_90a", "compute_90a"), False),
        ("10.3", ("sm_100",), True),
        ("12.1", ("sm_120",), True),
        ("12.0", ("sm_100f", "compute_100f"), False),
        ("7.0", ("sm_75", "compute_120"), False),
    ],
)
def test_code_for_the_gpu(capability, architectures, runs):
    told = [f for f in found(torch(architectures=architectures), capability=capability) if f.cause == "arch-not-in-build"]
    assert (told == []) == runs
    assert all(f.severity == "error" for f in told)


@pytest.mark.parametrize(
    ("capability", "release", "first"),
    [
        ("12.0", "2.25.1", "2.26.2"),
        ("10.0", "2.21.5", "2.25.1"),
        ("9.0", "2.14.3", "2.15"),
        ("8.0", "2.7.8", "2.8"),
        ("10.0", "2.25.1", None),
        ("8.9", "2.14.3", None),
    ],
)
def test_an_nccl_from_before_the_gpu(capability, release, first):
    seen = replace(SANE, loaded=(replace(OWN, version=release), DRIVER), packages={})
    told = found(seen, capability=capability)
    assert [(f.cause, f.severity) for f in told] == ([("gpu-newer-than-nccl", "error")] if first else [])
    assert all(f"{first} is the first release for it" in f.says for f in told)
    inside = replace(seen, loaded=(DRIVER,), torch=replace(TORCH, nccl_inside=release))
    assert [f.severity for f in found(inside, capability=capability, count=1)] == (["warning"] if first else [])
