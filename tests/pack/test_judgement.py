"""What is said of a host before anything is written, and of what an environment's own Python found out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.chinese import zh

from unhang.pack import verify
from unhang.pack.load import Target, preflight
from unhang.pack.manifest import Entry, Manifest, Python, Torch

MANIFEST = Manifest(
    prefix="/old/env",
    kind="venv",
    machine="x86_64",
    glibc="2.34",
    cpu_flags=("avx2", "avx512f"),
    python=Python(version="3.11.7", abi="cpython-311", interpreter=None),
    torch=Torch(version="2.13.0", cuda="12.8"),
    distributions={},
    sources=(),
    moves=(("/old/env", ""),),
    places={"lib/a.so": "binary"},
    entries=(Entry("lib", "dir", 0o755), Entry("lib/a.so", "file", 0o644, 10**9, "0" * 64)),
)
TARGET = Target(machine="x86_64", glibc="2.35", free_bytes=2 * 10**9, free_inodes=10**6, driver="570.124.06", cpu_flags=("avx2", "avx512f", "avx"))


@pytest.mark.parametrize(
    ("changed", "dest", "found"),
    [
        ({}, "/new/env", []),
        ({"machine": "aarch64"}, "/new/env", [("arch-not-in-build", "error")]),
        ({"glibc": "2.28"}, "/new/env", [("library-link", "error")]),
        ({"glibc": None}, "/new/env", [("library-link", "error")]),
        ({"free_bytes": 10**9}, "/new/env", [("disk-full", "error")]),
        ({"free_inodes": 1}, "/new/env", [("disk-full", "error")]),
        ({"free_inodes": None}, "/new/env", []),
        ({"driver": "470.57.02"}, "/new/env", [("driver-too-old", "warning")]),
        ({"driver": "540.4.0", "machine": "x86_64"}, "/new/env", []),
        ({"driver": "35.4.1"}, "/new/env", []),
        ({"driver": None}, "/new/env", []),
        ({"cpu_flags": ("avx2",)}, "/new/env", [("arch-not-in-build", "note")]),
        ({}, "/a/longer/env", [("env-relocation", "error")]),
    ],
)
def test_preflight(changed, dest, found):
    said = list(preflight(MANIFEST, dest, replace(TARGET, **changed), needs_bytes=MANIFEST.size_bytes))
    assert [(f.cause, f.severity) for f in said] == found
    assert all(zh(f.says) and zh(f.leads_to) for f in said)
    assert not any("of the rank that failed" in r.says for f in said for r in f.remedies)


def test_the_shortest_path_of_the_prefix_counts():
    by_link = replace(MANIFEST, moves=(("/old/env", ""), ("/c", "")))
    assert [f.cause for f in preflight(by_link, "/new/env", TARGET, needs_bytes=1)] == ["env-relocation"]


GOOD = {
    "imports": {"tried": 2, "failed": []},
    "modules": {"torch": "torch", "numpy": "numpy"},
    "pip": [0, ""],
    "scripts": {"tried": 1, "failed": []},
    "gloo": [0, ""],
    "nccl": [0, '"2.27.5"\n'],
}
LACKS = "Traceback (most recent call last):\nModuleNotFoundError: No module named '{}'\n"
WRAPPED = (
    "\nDuring handling of the above exception, another one occurred:\n\nTraceback (most recent call last):\nImportError: Failed to import hatchet.\n"
)
LIBRARY = "Traceback (most recent call last):\nImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("changed", "area", "state", "cause"),
    [
        ({}, "gloo", "ok", None),
        ({"gloo": [None, ""]}, "gloo", "found", "rank-exception"),
        ({"gloo": [1, LIBRARY]}, "gloo", "found", "library-link"),
        ({"gloo": None}, "gloo", "absent", None),
        ({"nccl": [1, "Segmentation fault"]}, "nccl", "found", None),
        ({"nccl": [0, "null"]}, "nccl", "found", None),
        ({"pip": [1, "a 1.0 requires b, which is not installed."]}, "pip", "found", "version-mismatch"),
        ({"pip": None}, "pip", "absent", None),
        ({"imports": {"tried": 2, "failed": [{"module": "numpy", "output": LIBRARY}]}}, "imports", "found", "library-link"),
        ({"imports": {"tried": 2, "failed": [{"module": "numpy", "output": LACKS.format("torch.nn")}]}}, "imports", "found", None),
        ({"imports": {"tried": 2, "failed": [{"module": "numpy", "output": LACKS.format("flash_attn")}]}}, "imports", "ok", None),
        ({"scripts": {"tried": 2, "failed": [{"script": "/e/bin/view", "output": LACKS.format("hatchet") + WRAPPED}]}}, "scripts", "ok", None),
        (
            {"scripts": {"tried": 2, "failed": [{"script": "/e/bin/view", "output": LACKS.format("hatchet") + LIBRARY}]}},
            "scripts",
            "found",
            "library-link",
        ),
    ],
)
def test_interpretation(changed, area, state, cause):
    found = {a.id: (a, findings) for a, findings in verify.interpret(GOOD | changed, MANIFEST)}
    assert list(found) == ["imports", "pip", "scripts", "gloo", "nccl"]
    assert found[area][0].state == state
    assert all(a.state == "ok" for id, (a, _) in found.items() if id != area)
    if cause is not None:
        assert [f.cause for f in found[area][1]] == [cause]


def test_a_python_that_does_not_start_is_one_finding():
    (area, findings), *others = verify.interpret(
        "Fatal Python error: init_fs_encoding: No module named 'encodings'\nModuleNotFoundError: No module named 'encodings'", MANIFEST
    )
    assert (area.state, area.summary, [f.cause for f in findings]) == ("found", "its Python does not start", ["env-relocation"])
    assert [(a.id, a.state) for a, _ in others] == [(id, "unknown") for id in ("pip", "scripts", "gloo", "nccl")]


def test_a_reason_is_given_once():
    failed = {"tried": 3, "failed": [{"module": name, "output": LIBRARY} for name in ("torch", "numpy")]}
    found = {a.id: findings for a, findings in verify.interpret(GOOD | {"imports": failed, "gloo": [1, LIBRARY]}, MANIFEST)}
    assert [f.says.partition(": ")[0] for f in found["imports"]] == ["cannot import torch (torch), numpy (numpy)"]
    assert [(f.says, f.remedies) for f in found["gloo"]] == [("2 ranks of torchrun fail at an all_reduce: as above", ())]
