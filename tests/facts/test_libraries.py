"""Machines with torch builds laid out as their wheels are; libraries are small ELF files with what is asked of them."""

import re
import sys

import pytest
from tests.hosts.elf import library

from unhang.facts import elf, libraries, snapshot, snapshot_file
from unhang.facts.host import Host, NotHere

SITE = "/env/lib/python3.11/site-packages"
RPATH = "$ORIGIN/../../nvidia/nccl/lib:$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN"
NEEDED = ("libnccl.so.2", "libcudart.so.12", "libc.so.6")


def nccl(release, cuda="12.8"):
    return library(constants=f"\0NCCL version {release}+cuda{cuda}\0".encode())


ARCHITECTURES = library(constants=b"std::string ipc_hsm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120\0\0")


@pytest.fixture
def gpu_machine(machine):
    """torch 2.8 for CUDA 12.8 with its NCCL 2.27.3; what is given comes on top, bytes too."""

    def lay_out(files=(), *, environ=None, cuda=NEEDED, rpath=RPATH, runpath="", metadata=""):
        told = {
            "/env/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.9\n",
            "/env/bin/python": "-> /usr/bin/python3.11",
            "/usr/bin/python3.11": "\x7fELF",
            f"{SITE}/torch/version.py": "__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\nhip = None\n",
            f"{SITE}/torch-2.8.0.dist-info/METADATA": "Requires-Dist: nvidia-nccl-cu12==2.27.3; platform_system == 'Linux'\n" + metadata,
            f"{SITE}/torch/lib/libtorch_cuda.so": library(needed=cuda, rpath=rpath, runpath=runpath),
            f"{SITE}/torch/lib/libtorch_python.so": ARCHITECTURES,
            f"{SITE}/nvidia_nccl_cu12-2.27.3.dist-info": None,
            f"{SITE}/nvidia/nccl/lib/libnccl.so.2": nccl("2.27.3"),
            f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12": library(),
        } | dict(files)
        host = machine({k: v for k, v in told.items() if not isinstance(v, bytes)}, environ={"PATH": "/env/bin"} | (environ or {}))
        for name, content in told.items():
            if isinstance(content, bytes):
                host.path(name).parent.mkdir(parents=True, exist_ok=True)
                host.path(name).write_bytes(content)
        host.path("/usr/bin/python3.11").chmod(0o755)
        return host

    return lay_out


def test_a_wheel_as_it_should_be(gpu_machine):
    seen = libraries.collect(gpu_machine())
    assert (seen.torch.version, seen.torch.cuda, seen.torch.hip) == ("2.8.0+cu128", "12.8", None)
    assert seen.torch.architectures == ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
    assert (seen.copy("nccl").version, seen.copy("nccl").cuda, seen.copy("nccl").through) == ("2.27.3", "12.8", "RPATH")
    assert (seen.torch.lacking, seen.broken_pins, seen.others, seen.unread, seen.torch.nccl_inside) == ((), (), (), (), None)
    assert libraries.SUBJECT.summary(seen) == "torch 2.8.0+cu128 (for CUDA 12.8) in /env; NCCL 2.27.3 through RPATH"


@pytest.mark.parametrize(
    ("environ", "linked", "through", "release"),
    [
        ({"LD_LIBRARY_PATH": "/opt/nccl/lib"}, {"rpath": RPATH}, "RPATH", "2.27.3"),
        ({"LD_LIBRARY_PATH": "/no:/opt/nccl/lib"}, {"rpath": "", "runpath": RPATH}, "LD_LIBRARY_PATH", "2.18.1"),
        ({"LD_PRELOAD": "/opt/nccl/lib/libnccl.so.2", "LD_LIBRARY_PATH": "/opt/nccl/lib"}, {"rpath": RPATH}, "LD_PRELOAD", "2.18.1"),
        ({}, {"rpath": "", "runpath": RPATH}, "RUNPATH", "2.27.3"),
        ({}, {"rpath": ""}, "ld.so.cache", "2.18.1"),
    ],
)
def test_which_nccl_would_be_loaded(gpu_machine, environ, linked, through, release):
    files = {
        "/opt/nccl/lib/libnccl.so.2": nccl("2.18.1", "12.1"),
        "/etc/ld.so.cache": b"glibc-ld.so.cache1.1\0libnccl.so.2\0/opt/nccl/lib/libnccl.so.2\0",
    }
    seen = libraries.collect(gpu_machine(files, environ=environ, **linked))
    assert (seen.copy("nccl").through, seen.copy("nccl").version) == (through, release)
    assert {c.version for c in seen.others if c.name == "nccl"} == {"2.27.3", "2.18.1"} - {release}


def test_what_torch_lacks(gpu_machine):
    seen = libraries.collect(gpu_machine(cuda=(*NEEDED, "libcudnn.so.9", "libcuda.so.1", "libstdc++.so.6")))
    assert seen.torch.lacking == ("libcudnn.so.9",)
    # torch itself looks into the packages where the linker finds nothing.
    assert libraries.collect(gpu_machine({f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9": b""}, cuda=(*NEEDED, "libcudnn.so.9"))).torch.lacking == ()
    assert (
        libraries.collect(
            gpu_machine({"/opt/cuda/libcudnn.so.9": b""}, cuda=("libcudnn.so.9",), environ={"LD_LIBRARY_PATH": "/opt/cuda"})
        ).torch.lacking
        == ()
    )


def test_an_nccl_inside_torch(gpu_machine):
    files = {f"{SITE}/torch/lib/libtorch_cuda.so": library(needed=("libcudart.so.12",), rpath=RPATH, constants=b"\0NCCL version 2.14.3+cuda11.7\0")}
    seen = libraries.collect(gpu_machine(files, environ={"LD_PRELOAD": "/opt/libnccl.so.2"}))
    assert (seen.copy("nccl"), seen.torch.nccl_inside) == (None, "2.14.3")


def test_the_drivers_library(gpu_machine):
    files = {
        "/usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01": "",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1": "-> libcuda.so.535.183.01",
        "/usr/local/cuda/compat/libcuda.so.1": "-> libcuda.so.570.86.15",
        "/usr/local/cuda/compat/libcuda.so.570.86.15": "",
    }
    seen = libraries.collect(gpu_machine(files)).copy("cuda")
    assert (seen.version, seen.through) == ("535.183.01", "system")
    seen = libraries.collect(gpu_machine(files, environ={"LD_LIBRARY_PATH": "/usr/local/cuda/compat"})).copy("cuda")
    assert (seen.version, seen.through) == ("570.86.15", "LD_LIBRARY_PATH")


def test_pins(gpu_machine):
    files = {
        f"{SITE}/nvidia_nccl_cu12-2.29.2.dist-info": None,
        f"{SITE}/torchvision-0.19.0.dist-info/METADATA": "Name: torchvision\nRequires-Dist: torch (==2.4.0)\n",
        f"{SITE}/torchaudio-2.8.0.dist-info/METADATA": "Name: torchaudio\nRequires-Dist: torch==2.8\n",
        f"{SITE}/triton-3.4.0.dist-info": None,
    }
    host = gpu_machine(files, metadata="Requires-Dist: triton==3.4.0; platform_system == 'Linux'\nRequires-Dist: nvidia-nvtx-cu12==12.8.90\n")
    host.path(f"{SITE}/nvidia_nccl_cu12-2.27.3.dist-info").rmdir()
    told = [(p.package, p.name, p.wanted, p.installed) for p in libraries.collect(host).broken_pins]
    assert told == [
        ("torch", "nvidia-nccl-cu12", "2.27.3", "2.29.2"),
        ("torch", "nvidia-nvtx-cu12", "12.8.90", None),
        ("torchvision", "torch", "2.4.0", "2.8.0+cu128"),
    ]


@pytest.mark.parametrize(
    ("wanted", "there", "fits"),
    [
        ("2.6.0", "2.6.0+cu124", True),
        ("2.6", "2.6.0", True),
        ("2.6.0", "2.6.1", False),
        ("2.6.0+cu124", "2.6.0+cpu", False),
        ("2.6.*", "2.6.3", True),
        ("2.6.*", "2.60.3", False),
        ("2.7.0.dev20250101", "2.7.0.dev20250101+cu128", True),
        ("2.6.0", None, False),
    ],
)
def test_what_fits_a_pin(wanted, there, fits):
    assert libraries._fits(wanted, there) == fits


@pytest.mark.parametrize(
    ("asked", "lacking"),
    [
        ("ofi", False),
        ("libnccl-net-ofi.so", False),
        ("/opt/ofi/lib/libnccl-net-ofi.so", False),
        ("none", False),
        ("gib", True),
        ("/no/such.so", True),
        (None, False),
    ],
)
def test_network_plugins(gpu_machine, asked, lacking):
    environ = {"LD_LIBRARY_PATH": "/opt/ofi/lib"} | ({"NCCL_NET_PLUGIN": asked} if asked else {})
    files = {"/opt/ofi/lib/libnccl-net-ofi.so": "", "/opt/ofi/lib/libnccl-net.so": "-> libnccl-net-ofi.so", "/opt/ofi/lib/libother.so": ""}
    seen = libraries.collect(gpu_machine(files, environ=environ))
    assert [re.sub("-ofi", "", p) for p in seen.net_plugins] == ["/opt/ofi/lib/libnccl-net.so"]
    assert seen.net_plugin_lacking == lacking


def test_a_cpu_build_and_none_at_all(machine, gpu_machine):
    seen = libraries.collect(gpu_machine({f"{SITE}/torch/version.py": "__version__ = '2.8.0+cpu'\ncuda: Optional[str] = None\n"}))
    assert (seen.torch.cuda, seen.torch.architectures, seen.unread) == (None, None, ())
    host = machine({"/usr/bin/python3.11": ""}, environ={"PATH": "/usr/bin", "VIRTUAL_ENV": "/usr"})
    with pytest.raises(NotHere):
        libraries.collect(host)


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 90, library()[:150], nccl("2.27.3")[:-70], b"text"])
def test_damaged_libraries(gpu_machine, content):
    names = ("torch/lib/libtorch_cuda.so", "torch/lib/libtorch_python.so", "nvidia/nccl/lib/libnccl.so.2")
    for name in names:
        seen = libraries.collect(gpu_machine({f"{SITE}/{name}": content}))
        assert seen.torch.version == "2.8.0+cu128"


def test_real_libraries_say_what_they_need(tmp_path):
    torch = next((p for p in map(Host().path, [f"{d}/torch/lib/libtorch_python.so" for d in sys.path if d]) if p.exists()), None)
    if torch is None:
        pytest.skip("no torch beside us")
    found = elf.links(Host(), str(torch))
    assert "libc10.so" in found.needed and any("$ORIGIN" in p for p in found.rpath + found.runpath)


def test_this_machine():
    seen = snapshot.take(Host(), only=["libraries"])
    part = seen.parts["libraries"]
    assert part.state in ("read", "absent")
    assert snapshot_file.decode(snapshot_file.encode(seen), name="it").parts["libraries"].facts == part.facts
