"""What a Python would load, asked of that Python: releases from metadata, NCCL as torch would find it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unhang.facts.host import Host
from unhang.settings.installed import installed


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory of packages, and a Python that has no others: what lies beside this one may be a torch with an NCCL."""
    folder = tmp_path / "lib" / "python3" / "site-packages"
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def lay(name, version):
        metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return folder

    lay.python = str(tmp_path / "python")
    Path(lay.python).write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    Path(lay.python).chmod(0o755)
    return lay


def test_releases_as_their_metadata_tells(site):
    site("torch", "2.9.1+cu128")
    site("accelerate", "1.15.0")
    site("pytorch_lightning", "2.6.6")
    folder = site("nvidia_nccl_cu12", "2.27.5")
    library = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"NCCL version 2.27.5+cuda12.9\0")
    found = installed(site.python)
    assert found.torch == (2, 9) and found.nccl == (2, 27, 5)
    assert found.packages["accelerate"] == "1.15.0" and found.packages["lightning"] == "2.6.6"


def test_a_torch_for_cpus_has_no_nccl(site):
    folder = site("torch", "2.13.0+cpu")
    (folder / "torch").mkdir()
    (folder / "torch" / "version.py").write_text("cuda: Optional[str] = None\nhip = None\n")
    found = installed(site.python)
    assert found.torch == (2, 13) and found.nccl is None


def test_a_python_that_cannot_be_asked_has_nothing(tmp_path):
    assert installed(str(tmp_path / "python")).torch is None
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no json\n")
    broken.chmod(0o755)
    assert installed(str(broken), Host()).packages == {}
