"""Which NCCL or RCCL a torch would load: linked in, beside it, conda's, preloaded; and the plugins that NCCL loads."""

from __future__ import annotations

import pytest
from tests.hosts.elf import library
from tests.tables import for_each

from unhang.facts import snapshot, variable_readers, variables, which_nccl
from unhang.facts.variable_readers import Reader
from unhang.variables import examine

SITE = "/env/lib/python3.11/site-packages"
TORCH_CUDA = f"{SITE}/torch/lib/libtorch_cuda.so"
WHEEL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
RPATH = "$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"
CUDA = "__version__ = '2.9.1'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
ROCM = "__version__ = '2.9.1'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n"
CPU = "__version__ = '2.9.1'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"


def nccl(release, *names):
    return library(constants=b"\0".join([f"NCCL version {release}+cuda12.8".encode(), *(n.encode() for n in names), b""]))


@pytest.fixture
def lay_out(machine):
    """An environment /env with a torch; texts and bytes, and dist-infos by their names."""

    def lay_out(files=(), *, torch="torch-2.9.1", records=(), environ=None):
        told = {f"{SITE}/{name}.dist-info": None for name in (torch, *records) if name} | dict(files)
        host = machine({k: v for k, v in told.items() if not isinstance(v, bytes)}, environ={"VIRTUAL_ENV": "/env"} | (environ or {}))
        for name, content in told.items():
            if isinstance(content, bytes):
                host.path(name).parent.mkdir(parents=True, exist_ok=True)
                host.path(name).write_bytes(content)
        return host

    return lay_out


def found(host, site=None):
    """Release and files of what makes the collectives, by library."""
    return {one.id: (one.version, one.binaries) for one in variable_readers.installed(host, site) if one.id in ("nccl", "rccl")}


LINKED = {TORCH_CUDA: library(needed=("libnccl.so.2",), rpath=RPATH)}
INSIDE = {TORCH_CUDA: library(needed=("libcudart.so.12",), constants=b"\0NCCL version 2.21.5+cuda12.4\0")}
UNKNOWN = {"nccl": ("", ())}


@for_each(
    ("files", "more", "expected"),
    [
        # The wheel beside torch, of which the record may be wrong.
        (LINKED | {WHEEL: nccl("2.27.5")}, {"records": ("nvidia_nccl_cu12-2.27.5",)}, {"nccl": ("2.27.5", (WHEEL,))}),
        (LINKED | {WHEEL: nccl("2.29.7")}, {"records": ("nvidia_nccl_cu12-2.27.5",)}, {"nccl": ("2.29.7", (WHEEL,))}),
        (LINKED | {WHEEL: b"?"}, {"records": ("nvidia_nccl_cu12-2.27.5",)}, {"nccl": ("2.27.5", (WHEEL,))}),
        (LINKED | {WHEEL: b"?"}, {"records": ("nvidia_nccl_cu12-2.27.5", "nvidia_nccl_cu13-2.30.7")}, {"nccl": ("", (WHEEL,))}),
        ({WHEEL: nccl("2.27.5")}, {"records": ("nvidia_nccl_cu12-2.27.5",)}, {"nccl": ("2.27.5", (WHEEL,))}),
        ({}, {"records": ("nvidia_nccl_cu12-2.27.5",)}, {"nccl": ("2.27.5", ())}),
        # Linked into torch.
        (INSIDE, {}, {"nccl": ("2.21.5", (TORCH_CUDA,))}),
        (INSIDE | {WHEEL: nccl("2.27.5")}, {"records": ("nvidia_nccl_cu12-2.27.5",)}, {"nccl": ("2.21.5", (TORCH_CUDA,))}),
        ({TORCH_CUDA: library(needed=("libcudart.so.12",))}, {}, UNKNOWN),
        ({TORCH_CUDA: b"NCCL_DEBUG"}, {}, UNKNOWN),
        # Preloaded.
        (
            LINKED | {WHEEL: nccl("2.21.5"), "/x/libnccl.so.2": nccl("2.28.9")},
            {"environ": {"LD_PRELOAD": "/x/libjemalloc.so /x/libnccl.so.2"}},
            {"nccl": ("2.28.9", ("/x/libnccl.so.2",))},
        ),
        (
            {TORCH_CUDA: b"", WHEEL: b"", "/x/libnccl.so.2.28.9": b"?"},
            {"environ": {"LD_PRELOAD": "/x/libnccl.so.2.28.9"}},
            {"nccl": ("2.28.9", ("/x/libnccl.so.2.28.9",))},
        ),
        (LINKED | {WHEEL: nccl("2.21.5")}, {"environ": {"LD_PRELOAD": "libnccl.so.2"}}, UNKNOWN),
        (LINKED | {WHEEL: nccl("2.21.5")}, {"environ": {"LD_PRELOAD": "/x/libmscclpp_nccl.so"}}, UNKNOWN),
        (LINKED | {WHEEL: nccl("2.21.5")}, {"environ": {"LD_AUDIT": "/x/libmscclpp_audit_nccl.so"}}, UNKNOWN),
        (INSIDE | {"/x/libnccl.so.2": nccl("2.28.9")}, {"environ": {"LD_PRELOAD": "/x/libnccl.so.2"}}, UNKNOWN),
        # The image's, which torch of its own build is linked to.
        (
            {TORCH_CUDA: library(needed=("libnccl.so.2",)), "/usr/lib/x86_64-linux-gnu/libnccl.so.2": nccl("2.26.2")},
            {},
            {"nccl": ("2.26.2", ("/usr/lib/x86_64-linux-gnu/libnccl.so.2",))},
        ),
        (LINKED, {}, UNKNOWN),
        # Nothing says which.
        ({f"{SITE}/torch/version.py": CUDA}, {}, UNKNOWN),
        ({}, {"torch": "torch-2.9.1+cu128"}, UNKNOWN),
        ({}, {}, UNKNOWN),
        ({"/usr/lib64/libnccl.so.2.22.3": b"?"}, {"torch": "torch-2.9.0a0+gitabc"}, UNKNOWN),
        ({}, {"torch": "torch-2.9.0a0+gitabc", "records": ("nvidia_nccl_cu12-2.27.5",)}, UNKNOWN),
        # torch for CPUs.
        ({f"{SITE}/torch/version.py": CPU}, {}, {}),
        ({f"{SITE}/torch/lib/libtorch_cpu.so": b""}, {}, {}),
        ({}, {"torch": "torch-2.13.0+cpu"}, {}),
    ],
)  # fmt: skip
def test_which_nccl(lay_out, files, more, expected):
    assert found(lay_out(files, **more)) == expected


@pytest.mark.parametrize(
    ("files", "more", "binaries"),
    [
        ({f"{SITE}/torch/lib/librccl.so": b"NCCL_RINGS"}, {}, (f"{SITE}/torch/lib/librccl.so",)),
        ({"/opt/rocm/lib/librccl.so.1": b""}, {"torch": "torch-2.9.1+rocm6.4"}, ("/opt/rocm/lib/librccl.so.1",)),
        ({f"{SITE}/torch/version.py": ROCM}, {}, ()),
        ({f"{SITE}/torch/version.py": ROCM}, {"records": ("nvidia_nccl_cu12-2.27.5",)}, ()),
        ({f"{SITE}/torch/lib/libtorch_hip.so": b""}, {}, ()),
        ({f"{SITE}/torch/lib/librccl.so": b""}, {"environ": {"LD_PRELOAD": "/x/librccl.so.1"}}, ()),
    ],
)
def test_rccl(lay_out, files, more, binaries):
    assert found(lay_out(files, **more)) == {"rccl": ("", binaries)}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/env/lib/libnccl.so.2.33.1": b"?", "/env/lib/libnccl.so.2": "-> libnccl.so.2.33.1"}, ("2.33.1", ("/env/lib/libnccl.so.2.33.1",))),
        ({"/env/lib/libnccl.so.2": b"?", "/env/conda-meta/nccl-2.27.5-h1_0.json": "{}"}, ("2.27.5", ("/env/lib/libnccl.so.2",))),
        # conda's Python hands its RPATH down.
        (
            {"/env/lib/libtorch_cuda.so": library(needed=("libnccl.so.2",)), "/env/lib/libnccl.so.2": nccl("2.25.1")},
            ("2.25.1", ("/env/lib/libnccl.so.2",)),
        ),
        ({"/env/lib/libnccl.so.2": nccl("2.25.1"), f"{SITE}/nvidia_nccl_cu12-2.27.5.dist-info": None}, ("", ())),
    ],
)
def test_conda(lay_out, files, expected):
    assert found(lay_out({"/env/conda-meta/history": ""} | files)) == {"nccl": expected}


def test_condas_torch_has_its_libraries_in_the_environment(lay_out):
    host = lay_out({"/env/conda-meta/history": "", "/env/lib/libtorch_cpu.so": b"", f"{SITE}/torch/lib/libtorch_python.so": b""})
    (torch,) = (one for one in variable_readers.installed(host) if one.id == "torch")
    assert torch.binaries == (f"{SITE}/torch/lib/libtorch_python.so", "/env/lib/libtorch_cpu.so")


def test_what_this_host_preloads_says_nothing_about_another_environment(lay_out):
    host = lay_out(
        LINKED | {WHEEL: nccl("2.21.5"), "/x/libnccl.so.2": nccl("2.28.9")},
        environ={"LD_PRELOAD": "/x/libnccl.so.2", "LD_LIBRARY_PATH": "/x", "LD_AUDIT": "/x/libaudit_nccl.so"},
    )
    assert found(host, SITE) == {"nccl": ("2.21.5", (WHEEL,))}
    unlinked = lay_out({TORCH_CUDA: library(needed=("libnccl.so.2",)), "/usr/lib64/libnccl.so.2": nccl("2.28.9")})
    assert found(unlinked, SITE) == UNKNOWN


def test_plugins(lay_out):
    host = lay_out(
        {
            "/plug/libnccl-net.so": "x",
            "/plug/libnccl-tuner-aws.so.1": "x",
            "/plug/libmine.so": "x",
            "/plug/libnccl.so.2": "x",
            "/plug/libother.so": "x",
            "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so.0": "x",
            "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so": "-> libnccl-net.so.0",
            "/usr/local/gib/lib64/libnccl-net_internal.so": "x",
            "/usr/local/gib/lib64/libnccl-env.so": "x",
            "/opt/far/profiler.so": "x",
            "/cached/libnccl-profiler.so": "x",
            "/etc/ld.so.cache": b"glibc\0libnccl-profiler.so\0/cached/libnccl-profiler.so\0/gone/libnccl-net.so\0",
        },
        environ={"LD_LIBRARY_PATH": "relative:/plug", "NCCL_TUNER_PLUGIN": "libmine.so", "NCCL_PROFILER_PLUGIN": "/opt/far/profiler.so"},
    )
    assert set(which_nccl.plugins(host)) == {
        "/plug/libnccl-net.so",
        "/plug/libnccl-tuner-aws.so.1",
        "/plug/libmine.so",
        "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",
        "/usr/local/gib/lib64/libnccl-net_internal.so",
        "/usr/local/gib/lib64/libnccl-env.so",
        "/opt/far/profiler.so",
        "/cached/libnccl-profiler.so",
    }
    assert variables.collect(host).plugins == which_nccl.plugins(host)
    assert variable_readers.plugins(lay_out()) is None


def looked_at(host, environ_name):
    """What a machine says of a variable that is set on it, its files searched and by its snapshot alone."""
    seen = snapshot.take(host, only=["variables"]).get(variables.SUBJECT)
    libraries = [*variable_readers.installed(host), *filter(None, [variable_readers.plugins(host)])]
    there = [
        variable_readers.Library(id=one.id, version=one.version, binaries=tuple(str(host.path(b)) for b in one.binaries), sources=one.sources)
        for one in libraries
    ]
    for scan in (examine.scanner(there, Reader(None)), examine.nothing_to_scan):
        yield next(j for j in examine.of_environment(seen, scan) if j.name == environ_name)


@pytest.mark.parametrize(
    ("name", "files", "environ", "states"),
    [
        ("NCCL_IBEXT_DISABLE", {"/plug/libnccl-net.so": b"\0NCCL_IBEXT_DISABLE\0"}, {"LD_LIBRARY_PATH": "/plug"}, ("in-binary", "foreign")),
        ("NCCL_OF_SOMEBODY", {"/plug/libnccl-tuner.so": b"\0NCCL_OF_SOMEBODY\0"}, {"LD_LIBRARY_PATH": "/plug"}, ("in-binary", "unknown")),
        ("NCCL_GIN_TYPE", {"/x/libnccl.so.2.28.9": b"\0NCCL_GIN_TYPE\0"}, {"LD_PRELOAD": "/x/libnccl.so.2.28.9"}, ("read", "read")),
        ("NCCL_GIN_TYPE", {}, {}, ("not-read", "not-read")),
        ("NCCL_FUTURE_KNOB", {"/x/libnccl.so.2.99.1": b"\0NCCL_FUTURE_KNOB\0"}, {"LD_PRELOAD": "/x/libnccl.so.2.99.1"}, ("in-binary", "unknown")),
    ],
)
def test_a_variable_of_what_is_loaded_is_not_called_unread(lay_out, name, files, environ, states):
    told = LINKED | {WHEEL: nccl("2.21.5", "NCCL_DEBUG")} | files
    seen = tuple(looked_at(lay_out(told, environ={name: "1"} | environ), name))
    assert tuple(one.state for one in seen) == states
