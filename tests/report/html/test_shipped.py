"""The page's static files are in what is installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.integration
def test_the_wheel_has_every_static_file(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    static = {f"unhang/report/html/{f.name}" for f in resources.files("unhang.report.html").iterdir() if f.name.endswith((".js", ".css", ".html"))}
    assert len(static) >= 8 and static <= set(zipfile.ZipFile(wheel).namelist())
