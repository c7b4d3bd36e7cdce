"""A small virtual environment with an editable install, console scripts and a C extension's worth of paths; nothing of it comes from an index."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# A build backend of the project's own: no Python has one installed everywhere.
BACKEND = """
import pathlib, zipfile
def build_editable(directory, config_settings=None, metadata_directory=None):
    name, wheel = "demo_pkg-0.1", "demo_pkg-0.1-py3-none-any.whl"
    files = {
        "_demo_pkg.pth": f"{pathlib.Path.cwd() / 'src'}\\n",
        f"{name}.dist-info/METADATA": "Metadata-Version: 2.1\\nName: demo-pkg\\nVersion: 0.1\\n",
        f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: here\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{name}.dist-info/entry_points.txt": "[console_scripts]\\ndemo-cli = demo_pkg:main\\n",
        f"{name}.dist-info/top_level.txt": "demo_pkg\\n",
    }
    with zipfile.ZipFile(pathlib.Path(directory) / wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{name}.dist-info/RECORD", "".join(f"{path},,\\n" for path in files))
    return wheel
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "demo-pkg"
version = "0.1"
"""
MAIN = 'WORD = "first"\ndef main():\n    import sys\n    print(WORD, sys.prefix, sys.base_prefix)\n'


def run(*argv: object, **more) -> str:
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=300, check=False, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def unhang(*argv: object, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "unhang", "pack", *map(str, argv)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code != 2 else done.stderr


@pytest.fixture(scope="module")
def env(tmp_path_factory) -> Path:
    """At `here/env`, with its editable sources at `here/project`."""
    here = tmp_path_factory.mktemp("here")
    project, made = here / "project", here / "env"
    (project / "src" / "demo_pkg").mkdir(parents=True)
    for path, text in {"pyproject.toml": PROJECT, "backend.py": BACKEND, "src/demo_pkg/__init__.py": MAIN, ".gitignore": "*.log\n*.so\n"}.items():
        (project / path).write_text(text)
    (project / "train.log").write_text("left behind\n")
    (project / "__pycache__").mkdir()
    (project / "__pycache__" / "backend.pyc").write_bytes(os.fsencode(here))
    (project / "src" / "demo_pkg" / "built.so").write_bytes(b"\x7fELF, of a build in place")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "first")):
        run("git", "-C", project, *words)
    (here / "alias").symlink_to(here)
    run(sys.executable, "-m", "venv", "--without-pip", made)
    pip = (sys.executable, "-m", "pip", "--python", made / "bin" / "python", "--disable-pip-version-check", "install", "-q")
    run(*pip, "--no-index", "--no-build-isolation", "--no-deps", "-e", here / "alias" / "project")
    site = next((made / "lib").glob("python3*")) / "site-packages"
    (site / "plain.pc").write_text(f"prefix={made}\nlibs=-L{made}/lib -I{made}/include other={made}-2/lib\n")
    (site / "absolute").symlink_to(made / "bin")
    (site / "one.bin").write_bytes(b"\0" * 4096 + str(made).encode())
    (site / "one.bin").chmod(0o440)
    (site / "two.bin").hardlink_to(site / "one.bin")
    return made


@pytest.fixture(scope="module")
def packed(env) -> Path:
    unhang("save", env, env.parent / "env.tar.zst")
    return env.parent / "env.tar.zst"


def package(site: Path, name: str, code: str) -> None:
    """Install a module by hand."""
    (site / f"{name}.py").write_text(textwrap.dedent(code))
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    # Wheels of compiled code name modules here that they do not hold.
    (info / "top_level.txt").write_text(f"{name}\n{name}_kernels\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{name}-1.0.dist-info/METADATA,,\n")
